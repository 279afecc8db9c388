"""From a region's symbols to a Fusion, for one description of its inputs.

In: flat symbols, input and output proxies, and for each input what it is in this specialisation: a
tensor type (sizes may be symbols), a scalar type, or a number that is baked in. Out: a verified
global Fusion whose first outputs are the region's, in order, and after them the writes that the
region does not return.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from thunder.core.proxies import Proxy, TensorProxy
from thunder.core.symbol import BoundSymbol

from thunder_mdfuse.errors import IRError
from thunder_mdfuse.ir.graph import Builder, Fusion, Output, Use
from thunder_mdfuse.ir.types import DType, Mesh, Placements, ScalarType, TensorType
from thunder_mdfuse.ir.verify import verify
from thunder_mdfuse.thunder.claims import CLAIMS
from thunder_mdfuse.thunder.values import Values, known_dtype

Given = TensorType | ScalarType | bool | int | float | complex


@dataclass(frozen=True)
class Translated:
    """A fusion and which region input each of its inputs is."""

    fusion: Fusion
    positions: tuple[int, ...]


def translate(
    bsyms: Sequence[BoundSymbol],
    inputs: Sequence[Proxy],
    outputs: Sequence[Proxy],
    given: Sequence[Given],
    mesh: Mesh | None = None,
    pins: Mapping[str, Placements] | None = None,
) -> Translated:
    """The fusion of ``bsyms``. Raises ``IRError`` when sizes that must be equal are not known to
    be.
    """
    values = Values(Builder(mesh))
    positions = []
    for i, (proxy, what) in enumerate(zip(inputs, given, strict=True)):
        if isinstance(what, TensorType | ScalarType):
            values.bind(proxy, values.builder.input(what))
            positions.append(i)
        elif type(what) is int:
            values.env[proxy.name] = what
        else:
            values.bind(proxy, values.builder.const(what))
    for bsym in bsyms:
        _translate_symbol(values, bsym, pins or {})
    return Translated(_finish(values, outputs), tuple(positions))


def _translate_symbol(v: Values, bsym: BoundSymbol, pins: Mapping[str, Placements]) -> None:
    outs = tuple(bsym.flat_outs)
    names = (o.name if isinstance(o, Proxy) else "" for o in outs)
    v.begin(outs, tuple(pins.get(name) for name in names))
    build = CLAIMS[bsym.sym.id].build
    assert build is not None, f"{bsym.sym.name} was not rewritten before its translation"
    found = build(v, *bsym.args, **bsym.kwargs)
    results = (found,) if isinstance(found, Use) or not isinstance(found, Sequence) else found
    for out, value in zip(outs, results, strict=True):
        if isinstance(out, TensorProxy) and isinstance(value, Use):
            _check(bsym, out, v.type(value))
        v.bind(out, value)


def _check(bsym: BoundSymbol, proxy: TensorProxy, found: TensorType | ScalarType) -> None:
    """Our own tables against Thunder's meta functions."""
    dtype = known_dtype(proxy.dtype)
    if not isinstance(found, TensorType):
        assert proxy.ndim == 0, f"{bsym.sym.name}: {proxy.name} became the scalar {found}"
        return
    # Thunder types prims.sum of bools as bool; torch, and we, count in i64.
    counted = found.dtype is DType.I64 and dtype.kind in ("bool", "int", "uint")
    if (found.dtype is not dtype and not counted) or found.ndim != proxy.ndim:
        raise IRError(f"{bsym.sym.name}: {proxy.type_string()} became {found}")


def _finish(v: Values, outputs: Sequence[Proxy]) -> Fusion:
    written = {name: Output(value, storage.node) for name, value, storage in v.writes}
    wanted = [written.pop(p.name) if p.name in written else Output(v.value(p)) for p in outputs]
    fusion = v.builder.finish((*wanted, *written.values()), tuple(v.guards))
    return verify(fusion, "translation")
