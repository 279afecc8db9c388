"""The fusion under construction: a ``Builder``, and what the author's values stand for in it.

Sizes of inputs that are not given become symbols. An op that needs two sizes to be equal makes them
one: a symbol is put in place of the other, everywhere in what is built so far, and the author's
values are moved along. So a fusion for ``x + y`` knows one shape, however ``x`` and ``y`` were
defined. Where neither size is a symbol the equality becomes a guard, checked at each call.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

from thunder_mdfuse.direct.dtypes import promoted
from thunder_mdfuse.direct.values import Number, Scalar, TensorView
from thunder_mdfuse.errors import DefinitionError
from thunder_mdfuse.ir import attrs as at
from thunder_mdfuse.ir import sizes
from thunder_mdfuse.ir.graph import Builder, Fusion, Guard, Node, Output, Use
from thunder_mdfuse.ir.sizes import Size
from thunder_mdfuse.ir.types import DType, Mesh, Placements, ScalarType, TensorType, Type
from thunder_mdfuse.runtime.aten import ATEN

_NUMBER_DTYPES = {bool: DType.BOOL, int: DType.I64, float: DType.F64, complex: DType.C128}
_SIZE_OPS: dict[str, Any] = {
    "add": sizes.add,
    "sub": lambda a, b: sizes.add(a, sizes.multiply(-1, b)),
    "mul": sizes.multiply,
    "neg": lambda a: sizes.multiply(-1, a),
    "trunc_div": sizes.floordiv,
    "floor_div": sizes.floordiv,
    "fmod": sizes.mod,
    "remainder": sizes.mod,
    "minimum": sizes.minimum,
    "maximum": sizes.maximum,
}
_DIVISIONS = ("trunc_div", "floor_div", "fmod", "remainder")


class Scope:
    """All that a definition has built. Op functions get it as their first argument."""

    def __init__(self, perform: Callable[..., Any], tell: Callable[..., None]) -> None:
        """``perform``: the op of a name as the author calls it, for operators of values.
        ``tell``: is given a tensor, the method of it that the author called, and the arguments.
        """
        self._perform, self._tell = perform, tell
        self.builder = Builder()
        self.guards: dict[Guard, None] = {}
        self.draws = 0
        self.sized: dict[int, Size] = {}  # input position of a number -> the size that it is
        self.positions: dict[int, int] = {}  # input node -> its position
        self._values: list[TensorView | Scalar] = []
        self._symbols = 0
        self._names: dict[str, Size] = {}  # what was put in place of a symbol

    @property
    def perform(self) -> Callable[..., Any]:
        """The op of a name on values, recorded."""
        return self._perform

    def tell(self, value: TensorView, call: str, *args: Any) -> None:
        """Note what was said of ``value``."""
        self._tell(value, call, *args)

    # --- inputs and values ------------------------------------------------------------------

    def new_symbol(self) -> Size:
        """A size that is not known yet."""
        self._symbols += 1
        return sizes.symbol(f"s{self._symbols - 1}")

    def input(self, type: Type) -> TensorView | Scalar:
        """A further input."""
        use = self.builder.input(type)
        self.positions[use.node] = len(self.positions)
        return self._known(use)

    def _known(self, use: Use, **origin: Any) -> TensorView | Scalar:
        found = self.builder.type_of(use)
        value: TensorView | Scalar
        if isinstance(found, TensorType):
            value = TensorView(self, use)
        else:
            value = Scalar(self, found.dtype, use=use, **origin)
        self._values.append(value)
        return value

    def tensor_type(self, use: Use) -> TensorType:
        """The type of a tensor."""
        return self.builder.tensor(use)

    def tensor(self, x: Any, name: str = "the operand") -> TensorView:
        """``x``, which must be a tensor of this fusion."""
        if not isinstance(x, TensorView):
            raise DefinitionError(f"{name} must be a tensor of the fusion, found {x!r}")
        self._own(x)
        return x

    def _own(self, x: TensorView | Scalar) -> None:
        if x.owner is not self:
            raise DefinitionError(f"{x!r} belongs to another fusion; pass it as an input")

    def scalar(self, x: Any) -> Scalar:
        """A number, as the author's own kind of value."""
        if isinstance(x, Scalar):
            self._own(x)
            return x
        if type(x) not in _NUMBER_DTYPES:
            raise DefinitionError(
                f"a number, or a number or tensor of the fusion, is needed, found {x!r}"
            )
        return Scalar(self, _NUMBER_DTYPES[type(x)], known=x)

    def operand(self, x: Any) -> TensorView | Scalar:
        """A tensor or number of the fusion, or a Python number."""
        return self.tensor(x) if isinstance(x, TensorView) else self.scalar(x)

    def use(self, x: Any) -> Use:
        """``x`` as a value of the program."""
        x = self.operand(x)
        if isinstance(x, TensorView) or x.use is not None:
            found: Use = x.use
            return found
        if x.known is not None:
            return self.builder.const(x.known, x.ir_dtype)
        assert x.size is not None
        return self.builder.op("size", (), at.SizeAttrs(x.size))[0]

    def number(self, x: Any, what: str) -> Number:
        """``x`` as a number that is known now, for what a kernel is specialised on."""
        value = self.scalar(x)
        found = value.size if value.known is None else value.known
        if isinstance(found, bool | int | float | complex):
            return found
        raise DefinitionError(f"{what} must be known when the fusion is defined, found {value!r}")

    def integer(self, x: Any, what: str) -> int:
        """``x`` as an integer that is known now."""
        found = self.number(x, what)
        if isinstance(found, bool) or not isinstance(found, int):
            raise DefinitionError(f"{what} must be an integer, found {found!r}")
        return found

    def size(self, x: Any) -> Size:
        """``x`` as a size: an integer, a size of a tensor, or an integer that the fusion is given.

        A number that is given at run time becomes a symbol, so that new values compile nothing.
        """
        return self._size(self.scalar(x))

    def _size(self, x: Scalar) -> Size:
        if x.size is None and x.origin is not None:
            op, operands = x.origin
            found = [self.size(o) for o in operands] if op in _SIZE_OPS else []
            if found and _exact(op, found):
                x.size = _SIZE_OPS[op](*found)
        given = x.use is not None and x.use.node in self.positions
        if x.size is None and x.use is not None and given and x.ir_dtype is DType.I64:
            x.size = self.new_symbol()
            self.sized[self.positions[x.use.node]] = x.size
        if x.size is None:
            raise DefinitionError(
                f"{x!r} cannot be a size: a size is an integer, a size of a tensor, an Int that "
                "the fusion is given, or made of these by + - * div remainder minimum maximum"
            )
        return x.size

    def sizes(self, xs: Any) -> tuple[Size, ...]:
        """All of ``xs`` as sizes."""
        if isinstance(xs, TensorView | Scalar | int):
            raise DefinitionError(f"a list of sizes is needed, found {xs!r}")
        return tuple(map(self.size, xs))

    # --- nodes ------------------------------------------------------------------------------

    def op(self, name: str, args: Sequence[Any], attrs: at.Attrs = at.NO_ATTRS) -> Any:
        """The result of one node; a tuple where the op has several."""
        uses = self.builder.op(name, tuple(map(self.use, args)), attrs)
        results = tuple(map(self._known, uses))
        return results if len(results) > 1 else results[0]

    def number_op(self, name: str, args: Sequence[Scalar], attrs: at.Attrs = at.NO_ATTRS) -> Scalar:
        """An op on numbers alone, worked out now where all are known."""
        (use,) = self.builder.op(name, tuple(map(self.use, args)), attrs)
        dtype = self.builder.type_of(use).dtype
        known = [a.known if a.known is not None else a.size for a in args]
        if all(isinstance(k, bool | int | float | complex) for k in known):
            (found,) = ATEN[name](known, attrs, [dtype])
            return Scalar(self, dtype, known=found)
        found = [a.size for a in args]
        if name in _SIZE_OPS and None not in found and _exact(name, found):
            return self._keep(Scalar(self, dtype, size=_SIZE_OPS[name](*found)))
        made = self._known(use, origin=(name, tuple(args)))
        assert isinstance(made, Scalar)
        return made

    def size_value(self, size: Size) -> Scalar:
        """A size as a number of the fusion."""
        return self._keep(Scalar(self, DType.I64, size=size))

    def _keep(self, value: Scalar) -> Scalar:
        self._values.append(value)
        return value

    def cast(self, x: TensorView, dtype: DType, user: bool = False) -> TensorView:
        """``x`` in another dtype. ``user``: it rounds even where a promotion would not."""
        if x.type.dtype is dtype and not user:
            return x
        found: TensorView = self.op("cast", (x,), at.CastAttrs(dtype, user))
        return found

    def widened(self, x: TensorView) -> TensorView:
        """``x`` in the dtype in which kernels compute it."""
        return self.cast(x, x.type.dtype.compute)

    def broadcast(
        self,
        x: TensorView,
        shape: tuple[Size, ...],
        dims: tuple[int, ...] | None = None,
        explicit: bool = False,
    ) -> TensorView:
        """``x`` with its dims at ``dims`` of ``shape`` (None: at the end)."""
        if x.type.shape == shape:
            return x
        if dims is None:
            dims = tuple(range(len(shape) - x.ndim, len(shape)))
        attrs = at.BroadcastAttrs(shape, dims, explicit)
        found: TensorView = self.op("broadcast_in_dim", (x,), attrs)
        return found

    def full(self, number: Any, shape: tuple[Size, ...], dtype: DType) -> TensorView:
        """A tensor filled with one number."""
        found: TensorView = self.op("full", (number,), at.FactoryAttrs(shape, dtype))
        return found

    def reshape(self, x: TensorView, shape: tuple[Size, ...]) -> TensorView:
        """``x`` with as many elements in another shape."""
        if x.type.shape == shape:
            return x
        found: TensorView = self.op("reshape", (x,), at.ShapeAttrs(shape))
        return found

    # --- dtypes and shapes that meet --------------------------------------------------------

    def common_dtype(self, args: Sequence[TensorView | Scalar]) -> DType:
        """The dtype in which ``args`` meet, by torch's rule of promotion."""
        tensors = [a.type for a in args if isinstance(a, TensorView)]
        whole = [t.dtype for t in tensors if t.ndim]
        single = [t.dtype for t in tensors if not t.ndim]
        return promoted(whole, single, [a.ir_dtype for a in args if isinstance(a, Scalar)])

    def together(self, args: Sequence[TensorView | Scalar]) -> list[TensorView | Scalar]:
        """``args`` with all tensors broadcast to their common shape."""
        tensors = [a for a in args if isinstance(a, TensorView)]
        shape = self.common_shape(tensors)
        return [
            self.broadcast(self.fitted(a, shape), shape) if isinstance(a, TensorView) else a
            for a in args
        ]

    def common_shape(self, tensors: Sequence[TensorView], before: int = 0) -> tuple[Size, ...]:
        """The shape that ``tensors`` broadcast to, their last ``before`` dims left out."""
        last = {t: t.ndim - before for t in tensors}
        result: list[Size] = []
        for place in range(1, max(last.values(), default=0) + 1):
            size: Size = 1
            for t in tensors:
                other = t.type.shape[last[t] - place] if place <= last[t] else 1
                if size == 1:
                    size = other
                elif other != 1:
                    self.equate(size, other)
                    size = self.renamed(size)
            result.append(size)
        # An equality found late may have renamed what was collected early.
        return tuple(self.renamed(s) for s in reversed(result))

    def fitted(self, x: TensorView, shape: tuple[Size, ...]) -> TensorView:
        """``x`` with the names of ``shape`` for sizes that a guard makes equal to them."""
        own = x.type.shape
        wanted = shape[len(shape) - len(own) :]
        return self.reshape(x, tuple(a if a == 1 else b for a, b in zip(own, wanted, strict=True)))

    def require(self, x: TensorView, dim: int, size: Size) -> None:
        """What is built holds only where ``dim`` of ``x`` has ``size``."""
        self.equate(x.type.shape[dim], size)

    def equate(self, a: Size, b: Size) -> None:
        """Make two sizes one. Raises ``DefinitionError`` for sizes that never are."""
        a, b = self.renamed(a), self.renamed(b)
        difference = sizes.add(a, sizes.multiply(-1, b))
        if difference == 0:
            return
        if isinstance(difference, int):
            raise DefinitionError(
                f"sizes {a} and {b} differ where equal ones are needed; a dim of size 1 that is to "
                "be broadcast must be defined with size 1"
            )
        for old, new in ((b, a), (a, b)):
            name = _bare(old)
            if name is not None and name not in sizes.symbols(new):
                self._rename(name, new)
                return
        self.guards[Guard(a, "==", b)] = None

    def renamed(self, size: Size) -> Size:
        """``size`` by the names that symbols have now."""
        while sizes.symbols(size) & self._names.keys():
            size = sizes.substitute(size, self._names)
        return size

    def _rename(self, name: str, size: Size) -> None:
        self._names[name] = size
        old, self.builder = self.builder, Builder()
        moved: dict[Use, Use] = {}
        positions = {}
        for i, node in enumerate(old.nodes):
            results = self._again(node, tuple(moved[a] for a in node.args))
            moved |= {Use(i, r): use for r, use in enumerate(results)}
            if node.op == "input":
                positions[results[0].node] = self.positions[i]
        self.positions = positions
        for value in self._values:
            if value.use is not None:
                value.use = moved[value.use]
            if isinstance(value, Scalar) and value.size is not None:
                value.size = self.renamed(value.size)
        self.guards = {_mapped(g, self.renamed): None for g in self.guards}
        self.sized = {position: self.renamed(s) for position, s in self.sized.items()}

    def _again(self, node: Node, args: tuple[Use, ...]) -> tuple[Use, ...]:
        """``node`` in the new builder, sizes by their new names."""
        if node.op != "input":
            return self.builder.op(node.op, args, _mapped(node.attrs, self.renamed))
        (found,) = node.types
        if isinstance(found, TensorType):
            found = replace(found, shape=tuple(map(self.renamed, found.shape)))
        return (self.builder.input(found),)

    # --- the end ----------------------------------------------------------------------------

    def finish(
        self,
        outputs: Sequence[tuple[Any, TensorView | None]],
        carrier: bool,
        mesh: Mesh | None = None,
        pins: Mapping[TensorView, Placements] | None = None,
    ) -> Fusion:
        """The fusion of ``outputs``, each with the input that it is written into, if any.

        ``carrier``: whether a further input comes last, an empty tensor whose shape is the sizes of
        ``sized``: what the program knows of those numbers, and of the device. ``pins``: placements
        on ``mesh``; a value that is asked to have two is a ``DefinitionError``.
        """
        values = [(self.use(value), target) for value, target in outputs]
        builder = Builder(mesh)
        builder.nodes = list(self.builder.nodes)
        for value, places in (pins or {}).items():
            _pin(builder, value.use, places)
        if carrier:
            of = TensorType(DType.BOOL, tuple(self.sized.values()))
            builder.node(Node("input", (), at.InputAttrs(len(self.positions)), (of,)))
        wanted = tuple(
            Output(value, None if target is None else target.use.node) for value, target in values
        )
        return builder.finish(wanted, tuple(self.guards))

    def scalar_input(self, dtype: DType) -> Scalar:
        """A number that the fusion is given."""
        found = self.input(ScalarType(dtype))
        assert isinstance(found, Scalar)
        return found


def _pin(builder: Builder, use: Use, places: Placements) -> None:
    node = builder.nodes[use.node]
    found = builder.tensor(use)
    if found.placements not in (None, places):
        raise DefinitionError(
            f"one value is to have {found} and {found.placed(places)}: equal ops are one; set the "
            "sharding of one of them only"
        )
    types = tuple(found.placed(places) if r == use.result else t for r, t in enumerate(node.types))
    builder.nodes[use.node] = replace(node, types=types)


def _exact(op: str, found: Sequence[Any]) -> bool:
    """Whether the size expression means what the op on integers means: signs and zeros differ."""
    if op not in _DIVISIONS:
        return True
    return found[1] != 0 and all(map(sizes.nonnegative, found))


def _bare(size: Size) -> str | None:
    """The name of a size that is one symbol."""
    names = sizes.symbols(size)
    if len(names) != 1:
        return None
    (name,) = names
    return name if size == sizes.symbol(name) else None


def _mapped(record: Any, change: Any) -> Any:
    """``record`` with ``change`` applied to every size in it."""
    changes: Mapping[str, Any] = {
        f.name: _changed(getattr(record, f.name), change) for f in fields(record)
    }
    return replace(record, **changes)


def _changed(value: Any, change: Any) -> Any:
    if isinstance(value, sizes.Expr):
        return change(value)
    if isinstance(value, tuple):
        return tuple(_changed(v, change) for v in value)
    return value
