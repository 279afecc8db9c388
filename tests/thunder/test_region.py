"""Grouping, flattening and dead code, on traces and on the printed result."""

import re
from typing import Any

import pytest
import thunder
import torch
from against_eager import check, jit, regions
from thunder.core import devices, dtypes, prims, symbol, transform_common
from thunder.core.proxies import TensorProxy
from thunder.core.symbol import BoundSymbol, BoundSymbolTag
from thunder.core.trace import TraceCtx, tracectx
from thunder.extend import FUEL_LEVEL

from thunder_mdfuse import explain, mdfuse_executor
from thunder_mdfuse.errors import ExecutorError
from thunder_mdfuse.thunder.effects import has_effect, writes_of
from thunder_mdfuse.thunder.grouping import Grouping
from thunder_mdfuse.thunder.region import dead_code_free, flatten, inputs_of


def traced(function: Any, *shapes: tuple[int, ...]) -> list[BoundSymbol]:
    """The symbols that ``function`` leaves behind, called on CPU tensors of ``shapes``."""
    trace = TraceCtx()
    with tracectx(trace):
        make = lambda s: TensorProxy(shape=s, dtype=dtypes.float32, device=devices.cpu)
        function(*map(make, shapes))
    return list(trace.bound_symbols)


def names(groups: Any) -> list[list[str]]:
    return [[b.sym.name for b in group] for _, group in groups]


def grouped(bsyms: list[BoundSymbol], *alone: str) -> list[list[str]]:
    return names(Grouping(bsyms, lambda b: b.sym.name not in alone).groups())


def test_a_chain_is_one_region() -> None:
    bsyms = traced(lambda x: prims.exp(prims.neg(prims.abs(x))), (4,))
    assert grouped(bsyms) == [["abs", "neg", "exp"]]


def test_a_region_closes_where_a_path_leaves_and_comes_back() -> None:
    def function(x: Any) -> None:
        a = prims.abs(x)
        prims.add(a, prims.tan(a))

    bsyms = traced(function, (4,))
    assert grouped(bsyms, "tan") == [["abs"], ["tan"], ["add"]]


def test_what_is_independent_joins_the_latest_region() -> None:
    def function(x: Any, y: Any) -> None:
        prims.tan(prims.abs(x))
        prims.neg(y)

    bsyms = traced(function, (4,), (5,))
    assert grouped(bsyms, "tan") == [["abs", "neg"], ["tan"]]


def test_a_late_member_keeps_the_order_of_others() -> None:
    # abs and exp are one region, which runs after tan because exp needs it, though abs came first.
    def function(x: Any, y: Any) -> None:
        a = prims.abs(x)
        b = prims.tan(y)
        prims.add(prims.exp(b), a)

    bsyms = traced(function, (4,), (4,))
    assert grouped(bsyms, "tan") == [["tan"], ["abs", "exp", "add"]]


def test_a_cycle_through_a_region_that_began_earlier_is_seen() -> None:
    # The first region gets a late member that depends on the second; then the second must not take
    # anything that depends on the first.
    def function(x: Any, y: Any) -> None:
        a = prims.abs(x)
        u = prims.tan(a)
        s = prims.sin(y)
        w = prims.cos(prims.mul(s, u))
        prims.add(a, prims.mul(w, s))

    groups = grouped(traced(function, (4,), (4,)), "tan", "cos")
    flat = [n for g in groups for n in g]
    assert sorted(flat) == sorted(["abs", "tan", "sin", "mul", "cos", "mul", "add"])
    assert flat.index("tan") > flat.index("abs") and flat.index("cos") > flat.index("tan")


def test_backward_and_forward_do_not_mix() -> None:
    bsyms = traced(lambda x: prims.exp(prims.neg(x)), (4,))
    bsyms[1].tags.add(BoundSymbolTag.BACKWARD)
    assert grouped(bsyms) == [["neg"], ["exp"]]


def test_flatten_hands_the_backward_tag_down() -> None:
    jitted = jit(lambda x, y: x * 2 + y)
    jitted(torch.ones(3), torch.ones(3))
    composite = thunder.last_traces(jitted)[0].bound_symbols[-2]
    assert composite.subsymbols
    composite.tags.add(BoundSymbolTag.BACKWARD)
    leaves = flatten(composite)
    assert [b.sym.name for b in leaves] == ["add"]
    assert all(BoundSymbolTag.BACKWARD in b.tags for b in leaves)


def test_dead_code_and_unused_inputs_go() -> None:
    def function(x: Any, y: Any) -> None:
        prims.neg(y)
        prims.exp(prims.abs(x))

    bsyms = traced(function, (4,), (4,))
    kept = dead_code_free(bsyms, bsyms[-1].flat_proxy_outs)
    assert [b.sym.name for b in kept] == ["abs", "exp"]
    assert inputs_of(kept) == list(bsyms[1].flat_proxy_args)


def test_random_numbers_stay_in_order() -> None:
    def function(x: Any) -> None:
        for _ in range(2):
            prims.randn((4,), device=devices.cpu, dtype=dtypes.float32)
            prims.uniform((4,), 0.0, 1.0, device=devices.cpu, dtype=dtypes.float32)

    bsyms = traced(function, (4,))
    assert all(map(has_effect, bsyms))
    assert names(Grouping(bsyms, lambda b: b.sym.name == "uniform").groups()) == [
        ["randn"],
        ["uniform"],
        ["randn"],
        ["uniform"],
    ]


def copied(function: Any) -> list[list[str]]:
    return grouped(traced(function, (4,), (4,)))


def test_a_read_before_a_write_stays_before_it() -> None:
    def function(x: Any, y: Any) -> None:
        prims.tan(y)
        prims.copy_(prims.abs(x), y, grad_enabled=False)
        prims.sin(y)

    (only,) = copied(function)
    assert only == ["tan", "abs", "copy_", "sin"]


def test_a_view_is_not_read_in_the_region_that_writes_its_storage() -> None:
    def function(x: Any, y: Any) -> None:
        view = prims.transpose(y, (0,))
        prims.copy_(prims.abs(x), y, grad_enabled=False)
        prims.sin(view)

    groups = copied(function)
    assert not any("copy_" in g and "sin" in g for g in groups), groups


def test_two_writes_to_a_storage_are_in_two_regions() -> None:
    def function(x: Any, y: Any) -> None:
        prims.copy_(prims.abs(x), y, grad_enabled=False)
        prims.copy_(prims.tan(x), y, grad_enabled=False)

    groups = copied(function)
    assert [g.count("copy_") for g in groups] == [1, 1]


def test_writes_of_composites_are_found() -> None:
    bsyms = traced(lambda x, y: prims.copy_(x, y, grad_enabled=False), (4,), (4,))
    assert writes_of(bsyms[0]) == {bsyms[0].args[1].name}


def test_a_printed_trace_shows_the_prims() -> None:
    jitted = jit(lambda x, y: x * 2 + y)
    jitted(torch.ones(2, 3), torch.ones(3))
    text = str(thunder.last_traces(jitted)[-1])
    _, _, region = text.partition("= mdFusion0(x, y)")
    shown = re.findall(r"^ +# t\d+ = ([\w.]+)\(", region, re.MULTILINE)
    assert shown == ["prims.mul", "prims.broadcast_in_dim", "prims.add"]


def test_regions_are_numbered_in_order() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return torch.roll(x * 2, 1) * 3

    jitted = check(function, [torch.ones(1, 1, 5)])
    assert [r.name for r in regions(jitted)] == ["mdFusion0", "mdFusion1"]


def test_fuel_bounds_the_number_of_regions() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return torch.roll(x * 2, 1) * 3

    x = torch.randn(1, 1, 5)
    mdfuse_executor.set_fuel(1)
    try:
        jitted = jit(function)
        torch.testing.assert_close(jitted(x), function(x))
        assert not mdfuse_executor.get_fuel()
    finally:
        mdfuse_executor.set_fuel(FUEL_LEVEL.UNLIMITED)
    assert len(regions(jitted)) == 1
    assert "the fuel ran out" in str(explain(jitted))
    assert mdfuse_executor.get_fuel(1000)
    with pytest.raises(ExecutorError, match="non-negative"):
        mdfuse_executor.set_fuel(-1)


def test_views_alone_are_left_to_torch() -> None:
    jitted = check(lambda x: x.t().unsqueeze(0), [torch.randn(2, 3)])
    assert not regions(jitted)
    assert "only views" in str(explain(jitted))


def test_intermediates_are_recomputed_rather_than_saved() -> None:
    jitted = check(
        lambda x: torch.nn.functional.gelu(x, approximate="tanh"),
        [torch.randn(4, 9, requires_grad=True)],
    )
    forward, _ = regions(jitted)
    # The result alone leaves the forward: its gradient is computed from x.
    assert len(forward.outputs) == 1


def test_what_is_written_is_made_in_another_region() -> None:
    def function(x: Any, y: Any) -> None:
        made = prims.neg(y)
        prims.sin(prims.copy_(prims.abs(x), made, grad_enabled=False))

    groups = copied(function)
    assert not any("neg" in g and "copy_" in g for g in groups), groups


def test_a_regions_tags_are_not_asked_for_once_for_each_symbol(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def asked(count: int) -> int:
        seen: list[BoundSymbol] = []

        def has_tags(bsym: BoundSymbol, tags: set[Any]) -> bool:
            seen.extend([bsym] * (1 + len(bsym.subsymbols)))
            return symbol.has_tags(bsym, tags)

        def chain(x: torch.Tensor) -> torch.Tensor:
            for _ in range(count):
                x = torch.sin(x) * x
            return x

        monkeypatch.setattr(transform_common, "has_tags", has_tags)
        jitted = thunder.jit(chain, executors=[mdfuse_executor])
        jitted(torch.rand(4, requires_grad=True)).sum().backward()
        monkeypatch.undo()
        return len(seen)

    assert asked(40) < 2.5 * asked(20)
