"""Conversions to the 8-bit floats, which a GPU makes by instruction and the emulator does not."""

import pytest
import torch

from thunder_mdfuse import mdfuse_executor
from thunder_mdfuse.thunder.frontend import jit

pytestmark = pytest.mark.gpu


def numbers() -> torch.Tensor:
    """Every bf16, and what lies around each bf16 by a bit of f32: every rounding there is."""
    bits = torch.arange(1 << 16, dtype=torch.int64) << 16
    near = torch.stack([bits, bits + 1, bits + 0x7FFF, bits + 0x8000, bits + 0x8001, bits + 0xFFFF])
    near = torch.where(near >= 1 << 31, near - (1 << 32), near)
    return near.to(torch.int32).view(torch.float32).flatten()


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
@pytest.mark.parametrize("count", [0, 1, 3])
def test_every_number_becomes_what_torch_makes_of_it(dtype: torch.dtype, count: int) -> None:
    """Whole vectors, and with ``count`` elements less the last ones one by one."""
    x = numbers().cuda()
    x = x[: x.numel() - count]
    found = jit(lambda a: a.to(dtype), [mdfuse_executor.name])(x)
    right = x.to(dtype)
    same = (found.view(torch.uint8) == right.view(torch.uint8)) | (
        found.float().isnan() & right.float().isnan()
    )
    wrong = (~same).nonzero().flatten()[:5]
    assert not wrong.numel(), (x[wrong], found[wrong].float(), right[wrong].float())
