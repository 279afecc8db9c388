"""From Thunder's proxies to values of the IR: the scope of one translation.

In: a ``Builder`` and, symbol by symbol, proxies and numbers. A name stands for a ``Use`` (a tensor,
or a number that the program computes) or, when it is an integer that the host knows, for a size.
Sizes of the tensors bind the names of their dims, so that ``prims.shape`` and Thunder's unrolled
number prims fold back into size expressions.
"""

import math
import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
from thunder.core import dtypes
from thunder.core.proxies import NumberProxy, Proxy, TensorProxy

from thunder_mdfuse.errors import IRError
from thunder_mdfuse.ir import sizes
from thunder_mdfuse.ir.attrs import (
    NO_ATTRS,
    Attrs,
    BroadcastAttrs,
    FactoryAttrs,
    SizeAttrs,
)
from thunder_mdfuse.ir.graph import Builder, Guard, Use, number
from thunder_mdfuse.ir.sizes import Size
from thunder_mdfuse.ir.types import DType, Placements, ScalarType, TensorType

TORCH_DTYPES: dict[torch.dtype, DType] = {
    torch.bool: DType.BOOL,
    torch.uint8: DType.U8,
    torch.int8: DType.I8,
    torch.int16: DType.I16,
    torch.int32: DType.I32,
    torch.int64: DType.I64,
    torch.float16: DType.F16,
    torch.bfloat16: DType.BF16,
    torch.float32: DType.F32,
    torch.float64: DType.F64,
    torch.float8_e4m3fn: DType.F8E4M3,
    torch.float8_e5m2: DType.F8E5M2,
    torch.complex64: DType.C64,
    torch.complex128: DType.C128,
}
NUMBER_DTYPES: dict[type, DType] = {
    bool: DType.BOOL,
    int: DType.I64,
    float: DType.F64,
    complex: DType.C128,
}
_SIZE_OPS: dict[str, Callable[..., Size]] = {
    "add": sizes.add,
    "sub": lambda a, b: sizes.add(a, sizes.multiply(-1, b)),
    "mul": sizes.multiply,
    "neg": lambda a: sizes.multiply(-1, a),
    "floor_div": sizes.floordiv,
    "trunc_div": sizes.floordiv,
    "remainder": sizes.mod,
    "minimum": sizes.minimum,
    "maximum": sizes.maximum,
}
_DIVISIONS = ("floor_div", "trunc_div", "remainder")
# Numbers that are all known are worked out here, so that what depends on them is known as well.
_NUMBER_OPS: dict[str, Callable[..., Any]] = {
    "abs": abs,
    "neg": operator.neg,
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "div": operator.truediv,
    "trunc_div": lambda a, b: int(a / b),
    "floor_div": operator.floordiv,
    "remainder": operator.mod,
    "fmod": math.fmod,
    "pow": operator.pow,
    "minimum": min,
    "maximum": max,
    "eq": operator.eq,
    "ne": operator.ne,
    "lt": operator.lt,
    "le": operator.le,
    "gt": operator.gt,
    "ge": operator.ge,
    "signbit": lambda a: math.copysign(1, a) < 0,
    "bitwise_and": operator.and_,
    "bitwise_or": operator.or_,
    "floor": math.floor,
    "ceil": math.ceil,
}


def is_bool_with_int(x: Any) -> bool:
    """Whether ``x`` is what Thunder says of a bool tensor with an int, which torch makes an i64."""
    return x is dtypes.int8_


def dtype_of(x: Any) -> DType | None:
    """The IR's dtype for a Thunder dtype or number type; None when the IR has none."""
    if isinstance(x, type):
        return NUMBER_DTYPES.get(x)
    if is_bool_with_int(x):
        return DType.I64
    found: torch.dtype | None = dtypes.to_torch_dtype(x)
    return None if found is None else TORCH_DTYPES.get(found)


def known_dtype(x: Any) -> DType:
    """``dtype_of`` where a claim's check has made sure that there is one."""
    found = dtype_of(x)
    if found is None:
        raise IRError(f"dtype {x} has no counterpart in the IR")
    return found


class NumberNeeded(Exception):
    """A number that was taken for a run-time value must be known: specialise on its value."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name


class Values:
    """Names of one translation and what they stand for."""

    def __init__(self, builder: Builder) -> None:
        self.builder = builder
        self.env: dict[str, Use | Size] = {}
        self.outs: tuple[Any, ...] = ()
        self.pins: tuple[Placements | None, ...] = ()
        self.writes: list[tuple[str, Use, Use]] = []
        self.guards: dict[Guard, None] = {}
        self.read: set[str] = set()  # names that the present symbol's builder has asked for
        self.draws = 0
        self.drawn: Use | None = None  # the last that torch's generator gave

    def begin(self, outs: tuple[Any, ...], pins: tuple[Placements | None, ...]) -> None:
        """Start on a symbol with flat outputs ``outs``; ``pins``: their placements on a mesh."""
        self.outs, self.pins = outs, pins
        self.read.clear()

    def bind(self, proxy: Any, value: Use | Size) -> None:
        """Let ``proxy``'s name, and those of its dims, stand for ``value`` from now on."""
        if not isinstance(proxy, Proxy):
            return
        self.env[proxy.name] = value
        if isinstance(proxy, TensorProxy) and isinstance(value, Use):
            found = self.builder.type_of(value)
            if isinstance(found, TensorType):
                self.bind_dims(proxy, found.shape)

    def bind_dims(self, proxy: TensorProxy, shape: Sequence[Size]) -> None:
        """Let the names of ``proxy``'s symbolic dims stand for the sizes in ``shape``."""
        for dim, size in zip(proxy._shape, shape, strict=True):
            if isinstance(dim, NumberProxy):
                self.env.setdefault(dim.name, size)

    def find(self, x: Any) -> Use | Size:
        """What a proxy or an integer stands for."""
        if isinstance(x, NumberProxy) and x.name not in self.env and x.is_static_constrained():
            x = x.value
        if isinstance(x, Proxy):
            self.read.add(x.name)
            found = self.env.get(x.name)
            if found is None:
                raise IRError(f"{x.name} is used in a region that neither computes nor is given it")
            return found
        if type(x) is int:
            return x
        return self.builder.const(x)

    def value(self, x: Any) -> Use:
        """``x`` as a value of the program: a tensor, or a number as a scalar."""
        found = self.find(x)
        if isinstance(found, Use):
            return found
        if isinstance(found, int):
            return self.builder.const(found)
        return self.builder.op("size", (), SizeAttrs(found))[0]

    def size(self, x: Any) -> Size:
        """``x`` as a size."""
        found = self.find(x)
        if not isinstance(found, Use):
            return found
        return int(self.number(x).real)

    def sizes(self, xs: Sequence[Any]) -> tuple[Size, ...]:
        """All of ``xs`` as sizes."""
        return tuple(map(self.size, xs))

    def number(self, x: Any) -> bool | int | float | complex:
        """``x`` as a number that is known now, for attributes. Raises ``NumberNeeded``."""
        known = self.known_number(self.find(x))
        if known is None:
            raise NumberNeeded(x.name)
        return known

    def type(self, use: Use) -> TensorType | ScalarType:
        """The type of a value."""
        return self.builder.type_of(use)

    def tensor(self, use: Use) -> TensorType:
        """The type of a value that is a tensor."""
        return self.builder.tensor(use)

    def op(self, name: str, args: Sequence[Use], attrs: Attrs = NO_ATTRS) -> tuple[Use, ...]:
        """A node inside the present symbol; its placements are left to propagation."""
        return self.builder.op(name, tuple(args), attrs)

    def result(self, name: str, args: Sequence[Use], attrs: Attrs = NO_ATTRS) -> tuple[Use, ...]:
        """The node that gives the present symbol's outputs, with the placements that are pinned."""
        pins = self.pins if any(p is not None for p in self.pins) else None
        return self.builder.op(name, tuple(args), attrs, pins)

    def output(self, i: int, name: str, args: Sequence[Use], attrs: Attrs = NO_ATTRS) -> Use:
        """The node that gives output ``i`` of the present symbol and no other."""
        pin = self.pins[i : i + 1]
        pins = None if pin == (None,) else pin or None
        return self.builder.op(name, tuple(args), attrs, pins)[0]

    def next_draw(self) -> int:
        """The number of one more draw: two draws are never one node."""
        self.draws += 1
        return self.draws - 1

    def scalar_op(self, name: str, args: Sequence[Any]) -> Use | Size:
        """An op on numbers alone: sizes stay sizes, and known numbers known, where they can."""
        found = [self.find(a) for a in args]
        known = [self.known_number(f) for f in found]
        if name in _NUMBER_OPS and None not in known:
            return self.known(_NUMBER_OPS[name](*known))
        decided = _decided(name, found, known)
        if decided is not None:
            return self.builder.const(decided)
        whole = [f for f in found if not isinstance(f, Use)]
        divides = name in _DIVISIONS
        exact = not divides or (whole[1:] != [0] and all(map(sizes.nonnegative, whole)))
        if len(whole) == len(found) and name in _SIZE_OPS and exact:
            return _SIZE_OPS[name](*whole)
        return self.builder.op(name, tuple(map(self.value, args)))[0]

    def known(self, value: bool | int | float | complex) -> Use | Size:
        """A number that is known now."""
        return value if type(value) is int else self.builder.const(value)

    def known_number(self, found: Use | Size) -> bool | int | float | complex | None:
        """The number that a value is, when it is known now."""
        if isinstance(found, int):
            return found
        if not isinstance(found, Use) or self.builder.nodes[found.node].op != "const":
            return None
        return number(self.builder.nodes[found.node].attrs)  # type: ignore[arg-type]

    def settled(self, x: Any) -> Any:
        """An argument as it is, but numbers that are known now as numbers: Thunder's may still be
        that of another call.
        """
        if not isinstance(x, NumberProxy) or x.name not in self.env:
            return x
        known = self.known_number(self.env[x.name])
        return x if known is None else known

    def aligned(self, args: Sequence[Any]) -> tuple[Use, ...]:
        """Operands of one shape: Thunder leaves 0-dim CPU tensors as they are, like numbers."""
        uses = tuple(map(self.value, args))
        shapes = [t.shape for t in map(self.type, uses) if isinstance(t, TensorType)]
        common = max(shapes, key=len, default=())
        return tuple(self._broadcast(use, common) for use in uses)

    def _broadcast(self, use: Use, shape: tuple[Size, ...]) -> Use:
        found = self.type(use)
        if isinstance(found, ScalarType) or found.ndim or not shape:
            return use
        return self.op("broadcast_in_dim", (use,), BroadcastAttrs(shape, ()))[0]

    def require_equal(self, a: Size, b: Size) -> None:
        """What is built from now on holds only where two sizes are equal."""
        if a != b:
            if isinstance(a, int) and isinstance(b, int):
                raise IRError(f"sizes {a} and {b} must be equal")
            self.guards[Guard(a, "==", b)] = None

    def full(self, fill: Any, shape: tuple[Size, ...], dtype: DType) -> Use:
        """A tensor filled with one number."""
        return self.op("full", (self.value(fill),), FactoryAttrs(shape, dtype))[0]


def _decided(name: str, found: Sequence[Use | Size], known: Sequence[Any]) -> bool | None:
    """The truth of an op on numbers that one operand decides: sizes are never negative."""
    if name == "signbit" and not isinstance(found[0], Use) and sizes.nonnegative(found[0]):
        return False
    if name == "bitwise_and" and any(k is False for k in known):
        return False
    return True if name == "bitwise_or" and any(k is True for k in known) else None
