"""Bound programs: chunks at every position, collectives, and what lives how long."""

import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch

from thunder_mdfuse.codegen.cuda import write_kernel
from thunder_mdfuse.errors import ProgramError
from thunder_mdfuse.ir import sizes
from thunder_mdfuse.ir.graph import Node
from thunder_mdfuse.ir.text import parse
from thunder_mdfuse.runtime import program as program_module
from thunder_mdfuse.runtime.aten import ATEN
from thunder_mdfuse.runtime.communicate import Terms
from thunder_mdfuse.runtime.program import BoundProgram
from thunder_mdfuse.runtime.report import report
from thunder_mdfuse.schedule.program import InputClass, plan_program
from thunder_mdfuse.schedule.target import H200


def bind(text: str, symbols: dict[str, int] | None = None) -> BoundProgram:
    """A program for the emulator, whose inputs are contiguous and aligned."""
    fusion = parse(text)
    classes = [InputClass(None) for _ in fusion.inputs]
    plan = plan_program(fusion, classes, H200, symbols or {}, "cpu")
    texts = [write_kernel(k) for k in plan.kernels]
    return BoundProgram(plan, texts, symbols or {}, "emulate", torch.device("cpu"), "")


CHUNK = """
local mesh[tp={ranks}] digest d
%0 = input(position=0) : f32[2, {n}]
%1 = mul(%0, %0) : f32[2, {n}]
%2 = chunk(%1; team='tp', ranks={ranks}, dim=1{split}) : f32[2, {size}]
%3 = neg(%2) : f32[2, {size}]
return %3
"""


def _chunks(x: torch.Tensor, ranks: int, split: int) -> list[torch.Tensor]:
    """What each rank holds: DTensor's chunks, of each of ``split`` chunks when it is strided."""
    parts = [p.chunk(ranks, 1) for p in (x.chunk(split, 1) if split > 1 else (x,))]
    empty = x[:, :0]
    return [torch.cat([p[r] if r < len(p) else empty for p in parts], 1) for r in range(ranks)]


def _local_size(n: int, ranks: int) -> str:
    """How the IR writes the size of a chunk that not all ranks have whole."""
    where, full = sizes.symbol("@tp"), -(-n // ranks)
    return str(sizes.minimum(full, sizes.maximum(0, n - where * full)))


@pytest.mark.parametrize(
    ("n", "ranks", "split"), [(24, 2, 1), (7, 2, 1), (5, 4, 1), (24, 2, 2), (24, 2, 3), (24, 4, 2)]
)
def test_chunks_at_every_position(n: int, ranks: int, split: int) -> None:
    extra = f", split={split}" if split > 1 else ""
    size = str(n // ranks) if n % ranks == 0 else _local_size(n, ranks)
    text = CHUNK.format(n=n, ranks=ranks, split=extra, size=size)
    x = torch.randn(2, n)
    for position, expected in enumerate(_chunks(-(x * x), ranks, split)):
        bound = bind(text, {"@tp": position})
        assert [s.kind for s in bound.plan.steps] == ["kernel"]
        (found,) = bound.run([x], None)
        assert torch.equal(found, expected)  # type: ignore[arg-type]


def test_a_strided_chunk_of_unequal_parts_is_an_aten_step() -> None:
    """Index arithmetic would need a case for each part."""
    x = torch.randn(2, 10)
    text = """
    local mesh[tp=2] digest d
    %0 = input(position=0) : f32[2, 10]
    %1 = chunk(%0; team='tp', ranks=2, dim=1, split=2) : f32[2, 2*min(3, max(0, -3*@tp + 5))]
    return %1
    """
    for position, expected in enumerate(_chunks(x, 2, 2)):
        bound = bind(text, {"@tp": position})
        assert [s.kind for s in bound.plan.steps] == ["aten"]
        (found,) = bound.run([x], None)
        assert torch.equal(found, expected)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("op", "reduce"),
    [
        ("sum", lambda parts: parts.sum(0)),
        ("product", lambda parts: parts.prod(0)),
        ("max", lambda parts: parts.amax(0)),
        ("min", lambda parts: parts.amin(0)),
        ("avg", lambda parts: parts.mean(0)),
    ],
)
def test_keep_first_reduces_to_the_value(
    op: str, reduce: Callable[[torch.Tensor], torch.Tensor]
) -> None:
    text = f"""
    local mesh[tp=3] digest d
    %0 = input(position=0) : f32[8]
    %1 = keep_first(%0; team='tp', ranks=3, op='{op}') : f32[8]
    return %1
    """
    x = torch.randn(8)
    parts = [bind(text, {"@tp": r}).run([x], None)[0] for r in range(3)]
    torch.testing.assert_close(reduce(torch.stack(parts)), x)  # type: ignore[arg-type]


REDUCED = """
local mesh[tp=2] digest d
%0 = input(position=0) : f32[8, 16]
%1 = tanh(%0) : f32[8, 16]
%2 = all_reduce(%1; team='tp', ranks=2, op='sum') : f32[8, 16]
%3 = wait(%2) : f32[8, 16]
%4 = exp(%0) : f32[8, 16]
%5 = add(%3, %4) : f32[8, 16]
return %5
"""


class Doubling:
    """A team of two equal ranks; the result lies at an odd place in a larger tensor."""

    def __init__(self) -> None:
        self.events: list[str] = []

    def start(self, node: Node, tensor: torch.Tensor, attrs: Any, terms: Terms) -> torch.Tensor:
        how = [" in place"] * terms.mine + [" alone"] * (not terms.overlaps)
        self.events.append("".join((f"start {node.op} over {attrs.team}", *how)))
        return tensor * 2

    def wait(self, pending: torch.Tensor) -> torch.Tensor:
        self.events.append("wait")
        room = torch.empty(pending.numel() + 1)
        return room[1:].view_as(pending).copy_(pending)


def test_a_collective_goes_through_what_is_given() -> None:
    x, team = torch.randn(8, 16), Doubling()
    (found,) = bind(REDUCED, {"@tp": 0}).run([x], team)  # type: ignore[arg-type]
    torch.testing.assert_close(found, x.tanh() * 2 + x.exp())
    assert team.events == ["start all_reduce over tp in place alone", "wait"]


@pytest.mark.parametrize("later", ["%4", "%1"], ids=["alone", "read afterwards"])
def test_a_collective_of_a_view_of_a_product(later: str) -> None:
    text = f"""
    local mesh[tp=2] digest d
    %0 = input(position=0) : f32[16, 16]
    %1 = linear(%0, %0) : f32[16, 16]
    %2 = reshape(%1; shape=(4, 4, 16)) : f32[4, 4, 16]
    %3 = all_reduce(%2; team='tp', ranks=2, op='sum') : f32[4, 4, 16]
    %4 = wait(%3) : f32[4, 4, 16]
    %5 = tanh({later}) : f32[{"4, 4" if later == "%4" else "16"}, 16]
    return %5, %4
    """
    x, team = torch.randn(16, 16), Doubling()
    found, reduced = bind(text, {"@tp": 0}).run([x], team)  # type: ignore[arg-type]
    torch.testing.assert_close(reduced, (x @ x.t()).view(4, 4, 16) * 2)
    torch.testing.assert_close(found, (reduced if later == "%4" else x @ x.t()).tanh())
    assert (" in place" in team.events[0]) == (later == "%4")


def test_two_collectives_leave_what_both_read() -> None:
    started = "%2 = all_reduce(%1; team='tp', ranks=2, op='sum') : f32[8, 16]"
    again = started.replace("%2", "%3").replace("sum", "max")
    text = (
        REDUCED.partition("%3")[0]
        + f"{again}\n%4 = wait(%2) : f32[8, 16]\n%5 = wait(%3) : f32[8, 16]\n"
        + "%6 = add(%4, %5) : f32[8, 16]\nreturn %6\n"
    )
    x, team = torch.randn(8, 16), Doubling()
    (found,) = bind(text, {"@tp": 0}).run([x], team)  # type: ignore[arg-type]
    torch.testing.assert_close(found, x.tanh() * 4)
    assert team.events[:2] == ["start all_reduce over tp"] * 2


@pytest.mark.parametrize("other", ["%0", "%1"], ids=["an input", "read afterwards"])
def test_a_collective_leaves_what_is_needed(other: str) -> None:
    """``other`` is what is reduced in ``REDUCED``, and then what is read beside the result."""
    text = REDUCED.replace("all_reduce(%1", f"all_reduce({other}").replace("exp(%0)", "exp(%1)")
    assert text != REDUCED
    x, team = torch.randn(8, 16), Doubling()
    (found,) = bind(text, {"@tp": 0}).run([x], team)  # type: ignore[arg-type]
    reduced = x if other == "%0" else x.tanh()
    torch.testing.assert_close(found, reduced * 2 + x.tanh().exp())
    assert team.events == ["start all_reduce over tp alone", "wait"]


def test_a_collective_without_a_mesh_is_refused() -> None:
    with pytest.raises(ProgramError, match="all_reduce over mesh axis 'tp' needs a DeviceMesh"):
        bind(REDUCED, {"@tp": 0}).run([torch.randn(8, 16)], None)


def test_values_live_until_their_last_use(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of four matrices in a row no more than the last one and its result exist at a time."""
    text = """
    local
    %0 = input(position=0) : f32[4, 4]
    %1 = linear(%0, %0) : f32[4, 4]
    %2 = linear(%1, %0) : f32[4, 4]
    %3 = linear(%2, %0) : f32[4, 4]
    %4 = topk(%3; k=2, dim=1) : f32[4, 2] | i64[4, 2]
    %5 = linear(%3, %0) : f32[4, 4]
    %6 = add(%5, %5) : f32[4, 4]
    return %6, %4
    """
    alive: list[weakref.ref[torch.Tensor]] = []
    most = []
    original = ATEN

    def watched(op: str) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            most.append(sum(r() is not None for r in alive))
            results = original[op](*args, **kwargs)
            alive.extend(weakref.ref(r) for r in results)
            return results

        return call

    monkeypatch.setattr(
        program_module, "ATEN", {**original, **{op: watched(op) for op in ("linear", "topk")}}
    )
    bound = bind(text)
    bound.run([torch.randn(4, 4)], None)
    # Before each step: its operand; before the last one also the values of topk, which leave, but
    # not its indices, which nobody wants.
    assert most == [0, 1, 1, 1, 2]
    assert sum(r() is not None for r in alive) == 0


def test_the_report_has_kernels_aten_steps_and_collectives() -> None:
    text = """
    local mesh[tp=2] digest d
    %0 = input(position=0) : f32[8, 16]
    %1 = linear(%0, %0) : f32[8, 8]
    %2 = all_reduce(%1; team='tp', ranks=2, op='sum') : f32[8, 8]
    %3 = wait(%2) : f32[8, 8]
    %4 = exp(%3) : f32[8, 8]
    return %4
    """
    bound = bind(text, {"@tp": 0})
    found = report(bound.plan, {"@tp": 0})
    assert [(r.kind, r.name) for r in found] == [
        ("aten", "linear"),
        ("collective", "all_reduce"),
        ("kernel", "kernel0"),
    ]
    size = 8 * 8 * 4
    assert [(r.bytes_read, r.bytes_written) for r in found] == [
        (2 * 8 * 16 * 4, size),
        (size, size),
        (size, size),
    ]
    # A ring over two ranks sends each half twice.
    assert [r.wire_bytes for r in found] == [0, size, 0]
    assert found[1].detail == "mesh axis tp, 2 ranks"
    assert found[2].ops == ("exp",)
