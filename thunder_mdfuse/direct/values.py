"""What a definition's author holds: tensors and numbers of a fusion that is being built."""

from collections.abc import Callable
from typing import Any, Protocol

from thunder_mdfuse.direct.dtypes import DataType, data_type
from thunder_mdfuse.errors import DefinitionError
from thunder_mdfuse.ir.graph import Use
from thunder_mdfuse.ir.sizes import Size
from thunder_mdfuse.ir.types import DType, TensorType

Number = bool | int | float | complex


class Owner(Protocol):
    """The definition that a value belongs to."""

    perform: Callable[..., Any]

    def tensor_type(self, use: Use) -> TensorType: ...


def _binary(name: str) -> Callable[[Any, Any], Any]:
    return lambda self, other: self.owner.perform(name, self, other)


def _swapped(name: str) -> Callable[[Any, Any], Any]:
    return lambda self, other: self.owner.perform(name, other, self)


def _unary(name: str) -> Callable[[Any], Any]:
    return lambda self: self.owner.perform(name, self)


class Operators:
    """Python's operators, each as the op of that name. ``==`` and ``!=`` compare identity."""

    __add__, __radd__ = _binary("add"), _swapped("add")
    __sub__, __rsub__ = _binary("sub"), _swapped("sub")
    __mul__, __rmul__ = _binary("mul"), _swapped("mul")
    __truediv__, __rtruediv__ = _binary("truediv"), _swapped("truediv")
    __mod__, __rmod__ = _binary("remainder"), _swapped("remainder")
    __pow__, __rpow__ = _binary("pow"), _swapped("pow")
    __and__, __rand__ = _binary("bitwise_and"), _swapped("bitwise_and")
    __or__, __ror__ = _binary("bitwise_or"), _swapped("bitwise_or")
    __xor__, __rxor__ = _binary("bitwise_xor"), _swapped("bitwise_xor")
    __lt__, __le__, __gt__, __ge__ = map(_binary, ("lt", "le", "gt", "ge"))
    __neg__, __abs__, __invert__ = map(_unary, ("neg", "abs", "bitwise_not"))

    def __bool__(self) -> bool:
        raise DefinitionError(
            f"the truth of {self!r} was asked while a fusion is defined, where it has no value "
            "yet; choose with fd.ops.where"
        )


class TensorView(Operators):
    """A tensor of a fusion. Its methods ``size`` and ``shape`` define numbers in the fusion."""

    def __init__(self, owner: Owner, use: Use) -> None:
        self.owner, self.use = owner, use

    @property
    def type(self) -> TensorType:
        """dtype and sizes, as expressions of the inputs' sizes."""
        return self.owner.tensor_type(self.use)

    @property
    def ndim(self) -> int:
        """Number of dims."""
        return self.type.ndim

    def dtype(self) -> DataType:
        """The element type."""
        return data_type(self.type.dtype)

    def size(self, dim: int) -> "Scalar":
        """The size of ``dim`` as a number of the fusion; the same as ``fd.ops.size``."""
        found: Scalar = self.owner.perform("size", self, dim)
        return found

    def shape(self) -> "list[Scalar]":
        """The sizes of all dims; the same as ``fd.ops.shape``."""
        return list(self.owner.perform("shape", self))

    __matmul__ = _binary("matmul")

    def __repr__(self) -> str:
        return f"TensorView({self.type})"


class Scalar(Operators):
    """A number of a fusion: known now (``known``), a size, or computed at run time (``use``).

    ``origin``: the op and the operands that it came from, so that it may serve as a size.
    """

    def __init__(
        self,
        owner: Owner,
        dtype: DType,
        *,
        use: Use | None = None,
        size: Size | None = None,
        known: Number | None = None,
        origin: "tuple[str, tuple[Scalar, ...]] | None" = None,
    ) -> None:
        self.owner, self.ir_dtype, self.use, self.known = owner, dtype, use, known
        self.size, self.origin = known if type(known) is int else size, origin

    def dtype(self) -> DataType:
        """The type of the number."""
        return data_type(self.ir_dtype)

    def is_symbolic(self) -> bool:
        """Whether it has no value before the fusion runs."""
        return self.known is None and not isinstance(self.size, int)

    def __repr__(self) -> str:
        shown = self.known if self.known is not None else self.size
        return f"Scalar({self.ir_dtype}{'' if shown is None else f' {shown}'})"
