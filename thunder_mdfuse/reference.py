"""The reference backend: a local program executed node by node with the torch-call table.

Every op rounds and lays out its result as eager torch does, so this is what a region means, slowly.
It is the default on CPU tensors. It is never the oracle of a test that runs it: that is the user's
function.
"""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, Protocol

import torch

from thunder_mdfuse.errors import ProgramError
from thunder_mdfuse.ir.graph import Fusion, Node, Output, Use
from thunder_mdfuse.ir.layout import Decider, layouts
from thunder_mdfuse.ir.ops import row
from thunder_mdfuse.ir.sizes import evaluate
from thunder_mdfuse.runtime.aten import ATEN
from thunder_mdfuse.runtime.binding import bind as bind
from thunder_mdfuse.runtime.binding import evaluate_attrs


class Communicate(Protocol):
    """What starts and ends collectives: ``runtime/communicate.py``, or a simulated mesh."""

    def start(self, node: Node, tensor: torch.Tensor, attrs: Any) -> Any: ...

    def wait(self, pending: Any) -> torch.Tensor: ...


@torch.no_grad()
def run_reference(
    fusion: Fusion,
    inputs: Sequence[Any],
    symbols: Mapping[str, int],
    communicate: Communicate | None = None,
) -> list[Any]:
    """The outputs of the local program ``fusion`` for ``inputs``, which ``bind`` has checked.

    ``symbols`` has a value for every size symbol and this rank's position ``@axis`` for every team.
    An output that is a view in eager torch shares its input's storage; one with ``writes`` is put
    into that input, after everything was read, and the input is what is returned.
    """
    device = next((x.device for x in inputs if isinstance(x, torch.Tensor)), torch.device("cpu"))
    strides = tuple(x.stride() if isinstance(x, torch.Tensor) else None for x in inputs)
    fresh = _fresh_strides(fusion, strides, tuple(sorted(symbols.items())), device.type)
    values: dict[Use, Any] = {}
    last_reads = _last_reads(fusion)
    for i, node in enumerate(fusion.nodes):
        args = [values[a] for a in node.args]
        results = _run(node, args, inputs, symbols, communicate, device)
        for r, result in enumerate(results):
            values[Use(i, r)] = _laid_out(result, fresh.get(Use(i, r)))
        for use in last_reads.get(i, ()):
            del values[use]
    return _leave(fusion, values)


@lru_cache(maxsize=256)
def _fresh_strides(
    fusion: Fusion,
    strides: tuple[tuple[int, ...] | None, ...],
    symbols: tuple[tuple[str, int], ...],
    device: str,
) -> dict[Use, tuple[int, ...]]:
    """The strides of every computed value that is no view, as eager torch would allocate it."""
    hints = dict(symbols)
    rules = "cuda" if device == "cuda" else "cpu"
    found = layouts(fusion, strides, Decider(hints, fusion.guards), rules)
    return {
        use: tuple(evaluate(s, hints) for s in layout.strides)
        for use, layout in found.items()
        if layout.base == use and fusion.nodes[use.node].op != "input"
    }


def _laid_out(result: Any, strides: tuple[int, ...] | None) -> Any:
    """``result`` with ``strides``: an op here is given broadcast operands, and eager's was not."""
    if strides is None or not isinstance(result, torch.Tensor) or result.stride() == strides:
        return result
    made = torch.empty_strided(result.shape, strides, dtype=result.dtype, device=result.device)
    return made.copy_(result)


def _last_reads(fusion: Fusion) -> dict[int, list[Use]]:
    """For each node the values that nothing reads after it."""
    kept = {o.value for o in fusion.outputs} | {Use(n) for n in fusion.inputs}
    found: dict[int, list[Use]] = {}
    for use, readers in fusion.users.items():
        if use not in kept:
            found.setdefault(readers[-1], []).append(use)
    return found


def _run(
    node: Node,
    args: list[Any],
    inputs: Sequence[Any],
    symbols: Mapping[str, int],
    communicate: Communicate | None,
    device: torch.device,
) -> tuple[Any, ...]:
    attrs = evaluate_attrs(node.attrs, symbols)
    if node.op == "input":
        return (inputs[attrs.position],)
    kind = row(node.op).kind
    if kind not in ("start", "wait"):
        return ATEN[node.op](args, attrs, [t.dtype for t in node.types], device)
    if communicate is None:
        raise ProgramError(
            f"{node.op} is a collective, but no mesh was given to run it on; pass the DeviceMesh "
            "of the DTensors that the program was made for"
        )
    if kind == "start":
        return (communicate.start(node, args[0], attrs),)
    return (communicate.wait(args[0]),)


def _leave(fusion: Fusion, values: Mapping[Use, Any]) -> list[Any]:
    """The output values, once the written inputs have been written."""
    written = [o for o in fusion.outputs if o.writes is not None]
    storages = {_storage(_target(values, o)) for o in written}
    sources = []
    for output in written:
        source = values[output.value]
        # What is written may itself lie in storage that an earlier write changes.
        own = output.value == Use(output.writes or 0)
        sources.append(source.clone() if not own and _storage(source) in storages else source)
    for output, source in zip(written, sources, strict=True):
        _target(values, output).copy_(source)
    return [values[o.value] if o.writes is None else _target(values, o) for o in fusion.outputs]


def _target(values: Mapping[Use, Any], output: Output) -> torch.Tensor:
    assert output.writes is not None
    target: torch.Tensor = values[Use(output.writes)]
    return target


def _storage(x: torch.Tensor) -> int:
    return x.untyped_storage().data_ptr()
