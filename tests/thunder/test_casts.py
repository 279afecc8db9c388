"""Casts that a user writes are told from promotions, in the program and in its gradient."""

from typing import Any

import pytest
import torch
from against_eager import check, jit, regions
from thunder.extend import FUEL_LEVEL

from thunder_mdfuse import mdfuse_executor
from thunder_mdfuse.ir.attrs import CastAttrs

BF16, F32 = torch.bfloat16, torch.float32

WRITTEN: dict[str, Any] = {
    "to": lambda x: x.to(BF16).to(F32),
    "to by keyword": lambda x: x.to(dtype=BF16).to(dtype=F32),
    "to with a device": lambda x: x.to("cpu", BF16).to("cpu", F32),
    "unbound": lambda x: torch.Tensor.to(torch.Tensor.to(x, BF16), F32),
    "by name": lambda x: x.bfloat16().float(),
    "half and double": lambda x: x.half().double(),
    "type_as": lambda x: x.type_as(x.bfloat16()).float(),
}


def casts(region: Any) -> list[CastAttrs]:
    (entry,) = region.entries
    attrs = (n.attrs for n in entry.translated.fusion.nodes)
    return [a for a in attrs if isinstance(a, CastAttrs)]


@pytest.mark.parametrize("name", WRITTEN)
def test_written_casts_are_marked_and_round(name: str) -> None:
    function = WRITTEN[name]
    jitted = check(lambda x: function(x * 3) * 2, [torch.randn(4, 9, requires_grad=True)])
    for region in regions(jitted):
        assert len(casts(region)) == 2
        assert all(a.user for a in casts(region)), region


def test_promotions_are_not_marked() -> None:
    jitted = jit(lambda x, y: x * y)
    jitted(torch.randn(4).bfloat16(), torch.randn(4))
    (region,) = regions(jitted)
    assert casts(region) and not any(a.user for a in casts(region))


def test_a_cast_to_the_same_dtype_is_the_tensor_itself() -> None:
    x = torch.randn(4)
    jitted = jit(lambda x: (x.float(), x.to(F32), x * 2))
    found = jitted(x)
    assert found[0].data_ptr() == found[1].data_ptr() == x.data_ptr()
    (region,) = regions(jitted)
    assert not casts(region)


def test_a_cast_to_integers_ends_the_gradient() -> None:
    jitted = check(lambda x: x * x.long(), [torch.randn(4, requires_grad=True)])
    assert regions(jitted)


def test_without_fuel_a_cast_still_runs() -> None:
    mdfuse_executor.set_fuel(0)
    try:
        check(lambda x: x.to(BF16).float() * 2, [torch.randn(4, requires_grad=True)])
    finally:
        mdfuse_executor.set_fuel(FUEL_LEVEL.UNLIMITED)


def test_without_fuel_attention_still_runs() -> None:
    attention = torch.nn.functional.scaled_dot_product_attention
    inputs = [torch.randn(2, 3, 4, 8, requires_grad=True) for _ in range(3)]
    mdfuse_executor.set_fuel(0)
    try:
        jitted = check(lambda q, k, v: attention(q, k, v, is_causal=True), inputs)
    finally:
        mdfuse_executor.set_fuel(FUEL_LEVEL.UNLIMITED)
    assert not regions(jitted)


def test_attention_is_one_step() -> None:
    attention = torch.nn.functional.scaled_dot_product_attention
    jitted = check(
        lambda q, k, v: attention(q * 2, k, v), [torch.randn(2, 3, 4, 8) for _ in range(3)]
    )
    (region,) = regions(jitted)
    assert [b.sym.name for b in region.bsyms] == ["mul", "mdfuse_sdpa"]
