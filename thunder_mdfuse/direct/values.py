"""What a definition's author holds: tensors and numbers of a fusion that is being built."""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from thunder_mdfuse.direct import mesh as on
from thunder_mdfuse.direct.dtypes import DataType, ParallelType, data_type
from thunder_mdfuse.errors import DefinitionError
from thunder_mdfuse.ir.graph import Use
from thunder_mdfuse.ir.sizes import Size
from thunder_mdfuse.ir.types import DType, TensorType

Number = bool | int | float | complex


class Owner(Protocol):
    """The definition that a value belongs to."""

    @property
    def perform(self) -> Callable[..., Any]: ...

    def tell(self, value: "TensorView", call: str, *args: Any) -> None: ...

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
        self.mesh: on.DeviceMesh | None = None
        self.loops = [on.Loop(d) for d in range(self.type.ndim)]

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

    # --- shardings --------------------------------------------------------------------------

    def set_device_mesh(self, mesh: on.DeviceMesh) -> None:
        """The tensor lives on ``mesh``: replicated along each axis that no loop is spread over."""
        self.mesh = mesh
        self.owner.tell(self, "set_device_mesh", mesh)

    def axis(self, index: int) -> "Axis":
        """The loop ``index``, negative from the end."""
        return Axis(self, self._place(index))

    def split(self, axis: int, factor: int, inner_split: bool = True) -> None:
        """Cut a loop in two, of which the inner one, or else the outer, has ``factor`` steps."""
        self.loops = on.split(self.loops, self._place(axis), factor, inner_split)
        self.owner.tell(self, "split", axis, factor, inner_split)

    def inner_split(self, axis: int, factor: int) -> None:
        """Cut a loop in two, the inner one of ``factor`` steps."""
        self.split(axis, factor, True)

    def outer_split(self, axis: int, factor: int) -> None:
        """Cut a loop in two, the outer one of ``factor`` steps."""
        self.split(axis, factor, False)

    def get_loop_domain(self) -> "list[Axis]":
        """The loops, from the outermost."""
        return [Axis(self, i) for i in range(len(self.loops))]

    def get_logical_domain(self) -> "list[Dim]":
        """The dims, however they are split."""
        return [Dim(self, d) for d in range(self.ndim)]

    def set_allocation_domain(
        self,
        new_allocation_domain: "Sequence[Axis | Dim]",
        new_contiguity: bool | Sequence[bool | None],
    ) -> None:
        """Say in which order the loops lie in memory: each loop of the tensor, once.

        It is checked and written down, and moves nothing: kernels are made for the layout in which
        a local tensor comes, and what they make lies as torch would lay it out. Raises
        ``DefinitionError`` for other loops than the tensor's.
        """
        domain = [d.loop() if isinstance(d, Dim) else d for d in new_allocation_domain]
        own = all(isinstance(a, Axis) and a.tensor is self for a in domain)
        if not own or sorted(a.index for a in domain) != list(range(len(self.loops))):
            raise DefinitionError(
                f"an allocation domain is each of the {len(self.loops)} loops of the tensor, once, "
                f"as get_loop_domain gives them; found {domain}"
            )
        flags = [new_contiguity] if isinstance(new_contiguity, bool) else list(new_contiguity)
        if any(f not in (True, False, None) for f in flags):
            raise DefinitionError(f"contiguity is True, False or None, found {flags}")
        self.owner.tell(self, "set_allocation_domain", domain, new_contiguity)

    def _place(self, axis: int) -> int:
        if not -len(self.loops) <= axis < len(self.loops):
            raise DefinitionError(f"axis {axis} found, the tensor has {len(self.loops)} axes")
        return axis % len(self.loops)

    def __repr__(self) -> str:
        return f"TensorView({self.type})"


class Axis:
    """One loop of a tensor."""

    def __init__(self, tensor: TensorView, index: int) -> None:
        self.tensor, self.index = tensor, index

    def extent(self) -> int | None:
        """The number of steps; None for what the other loops of the dim leave."""
        return self.tensor.loops[self.index].extent

    def is_reduction(self) -> bool:
        """False: a result has no loops that were summed away."""
        return False

    def parallelize(self, parallel_type: ParallelType) -> None:
        """Spread the loop over the mesh axis ``parallel_type``."""
        on.parallelize(self.tensor.loops, self.index, parallel_type)
        self.tensor.owner.tell(self.tensor, f"axis({self.index}).parallelize", parallel_type)

    def __repr__(self) -> str:
        return f"Axis({self.tensor.loops[self.index]})"


class Dim:
    """One dim of a tensor. Where it is not split, it is also the one loop over it."""

    def __init__(self, tensor: TensorView, index: int) -> None:
        self.tensor, self.index = tensor, index

    def extent(self) -> "Scalar":
        """The size, as a number of the fusion; the same as ``tensor.size``."""
        return self.tensor.size(self.index)

    def is_reduction(self) -> bool:
        """False: a result has no dims that were summed away."""
        return False

    def loop(self) -> Axis:
        """The loop over the dim. Raises ``DefinitionError`` where it is split into several."""
        own = [i for i, loop in enumerate(self.tensor.loops) if loop.dim == self.index]
        if len(own) > 1:
            raise DefinitionError(
                f"dim {self.index} of {self.tensor!r} is split into axes {own}; take one of these "
                "from get_loop_domain or axis"
            )
        return Axis(self.tensor, own[0])

    def parallelize(self, parallel_type: ParallelType) -> None:
        """Spread the dim over the mesh axis ``parallel_type``."""
        self.loop().parallelize(parallel_type)

    def __repr__(self) -> str:
        return f"Dim({self.index}: {self.tensor.type.shape[self.index]})"


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
