"""The table of claims: complete over Thunder's prims, and a Reason for every refusal."""

from pathlib import Path
from typing import Any

import pytest
import thunder.torch as ltorch
from thunder.core import devices, dtypes, prims
from thunder.core.prims import PrimIDs
from thunder.core.proxies import TensorProxy
from thunder.core.symbol import BoundSymbol
from thunder.core.trace import TraceCtx, tracectx
from thunder.torch.experimental.dtensor_torch_and_prims import DTensorPrimIDs

from thunder_mdfuse import mdfuse_executor
from thunder_mdfuse.ir.ops import OPS
from thunder_mdfuse.ir.types import DType
from thunder_mdfuse.thunder import coverage
from thunder_mdfuse.thunder.claims import CLAIMS, UNCLAIMED, is_leaf, ops_of, refusal
from thunder_mdfuse.thunder.values import NUMBER_DTYPES, TORCH_DTYPES, dtype_of


def proxy(*shape: int, dtype: Any = dtypes.float32, device: str = "cpu") -> TensorProxy:
    return TensorProxy(shape=shape, dtype=dtype, device=devices.to_device(device))


def bound(function: Any, *args: Any, **kwargs: Any) -> BoundSymbol:
    """The last symbol of a trace in which ``function`` was called on proxies that ``args`` make."""
    trace = TraceCtx()
    with tracectx(trace):
        function(*(a() if callable(a) and not isinstance(a, type) else a for a in args), **kwargs)
    return trace.bound_symbols[-1]


def test_every_prim_is_claimed_or_has_a_reason() -> None:
    ids = {*PrimIDs, *DTensorPrimIDs}
    assert ids <= CLAIMS.keys() | UNCLAIMED.keys()
    assert not CLAIMS.keys() & UNCLAIMED.keys()
    assert all(reason.text for reason in UNCLAIMED.values())


def test_claims_name_operations() -> None:
    assert {op for id in CLAIMS for op in ops_of(id)} <= OPS.keys()


def test_what_is_said_of_all_prims_is_true(pytestconfig: pytest.Config) -> None:
    page = Path(__file__).parents[2] / "docs" / "coverage.md"
    if pytestconfig.getoption("--update-golden"):
        page.write_text(coverage.text())
    found = page.read_text()
    assert found == coverage.text(), f"{page} is out of date: run pytest --update-golden"
    rows = [line for line in found.splitlines() if line.startswith("| `")]
    assert len(rows) == len({*CLAIMS, *PrimIDs, *DTensorPrimIDs})


def test_thunder_sees_all_claims() -> None:
    assert CLAIMS.keys() <= mdfuse_executor.implmap.keys()


def test_dtypes_of_the_ir_are_all_reachable() -> None:
    assert set(TORCH_DTYPES.values()) == set(DType)
    assert {dtype_of(t) for t in NUMBER_DTYPES} == set(NUMBER_DTYPES.values())
    assert dtype_of(dtypes.complex32) is None


@pytest.mark.parametrize(
    ("symbol", "text"),
    [
        (lambda: bound(prims.abs, lambda: proxy(4, dtype=dtypes.complex32)), "which the IR lacks"),
        (lambda: bound(prims.neg, lambda: proxy(4, device="meta")), "cpu and cuda are supported"),
        (lambda: bound(prims.device_put, lambda: proxy(4), devices.to_device("meta")), "between"),
        (lambda: bound(prims.item, lambda: proxy(1)), "waits for the device"),
        (lambda: bound(prims.clone, lambda: proxy(4), memory_format=1), "clone with"),
        (
            lambda: bound(prims.iota, 0, start=0, step=1, device=devices.cpu, dtype=dtypes.int64),
            "length 0",
        ),
        (lambda: bound(prims.sign, lambda: proxy(4, dtype=dtypes.complex64)), "complex"),
        (lambda: bound(prims.real, lambda: proxy(4, dtype=dtypes.complex64)), "another dtype"),
        (lambda: bound(ltorch.sort, lambda: proxy()), "0-dim"),
        (lambda: bound(ltorch.unfold, lambda: proxy(), 0, 1, 1), "0-dim"),
        (lambda: bound(prims.bitcast, lambda: proxy(4), dtypes.int32), "view of another dtype"),
        (
            lambda: bound(prims.tensor_from_sequence, [0.5] * 33, dtype=None, device=devices.cpu),
            "more than 32 numbers",
        ),
    ],
)
def test_refusals_say_why(symbol: Any, text: str) -> None:
    bsym = symbol()
    reason = refusal(bsym)
    assert reason is not None and text in reason.text, reason
    assert not mdfuse_executor.can_fuse(bsym)


def test_a_composite_is_refused_for_its_leaf() -> None:
    def composite(x: Any) -> Any:
        return ltorch.mul(prims.bitcast(x, dtypes.int32), 2)

    symbol = ltorch.torchsymbol(id="test.composite")(composite)
    bsym = bound(symbol, lambda: proxy(6))
    reason = refusal(bsym)
    assert reason is not None and reason.text.startswith("bitcast:")


def test_number_prims_are_claimed() -> None:
    for prim, args in ((prims.eq, (1, 2)), (prims.add, (1.0, 2.0)), (prims.signbit, (1,))):
        bsym = prim.bind(*args, output=None)
        assert is_leaf(bsym), refusal(bsym)
    assert is_leaf(prims.convert_element_type.bind(1, float, output=1.0))


def test_a_host_scalar_beside_another_device_is_a_number() -> None:
    with tracectx(TraceCtx()):
        x = TensorProxy(shape=(4,), dtype=dtypes.float32, device=devices.to_device("cuda:0"))
        bsym = prims.mul.bind(x, proxy(), output=x)
        assert is_leaf(bsym)
        two = prims.mul.bind(x, proxy(4), output=x)
    reason = refusal(two)
    assert reason is not None and "tensors on cpu, cuda:0" in reason.text


def test_elementwise_rows_name_ops_of_the_ir() -> None:
    # A row for a name that the IR lacks would fail only when a program is translated.
    for name in ("abs", "floor_div", "shift_left", "shift_right", "trunc_div", "lerp", "where"):
        assert name in OPS
    for id in CLAIMS:
        if isinstance(id, PrimIDs) and id.name.lower() in OPS:
            assert OPS[id.name.lower()].name == id.name.lower()
