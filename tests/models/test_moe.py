"""A layer of experts for inference, on plain tensors: prefill and decode as eager."""

from collections.abc import Callable
from typing import Any

import pytest
import thunder
import torch
from models.moe import Moe

from thunder_mdfuse import explain, mdfuse_executor
from thunder_mdfuse.bench.llama import Config

SMALL = Config(width=32, hidden=48)


@pytest.mark.parametrize(
    ("dtype", "tolerance", "mode"),
    [(torch.float32, 1e-5, torch.no_grad), (torch.bfloat16, 2e-2, torch.inference_mode)],
)
def test_prefill_and_decode(dtype: torch.dtype, tolerance: float, mode: Callable[[], Any]) -> None:
    torch.manual_seed(0)
    layer = Moe(SMALL).to(dtype).requires_grad_(False)
    jitted = thunder.jit(layer, executors=[mdfuse_executor])
    for tokens in (9, 1):
        x = torch.randn(2 if tokens > 1 else 1, tokens, SMALL.width, dtype=dtype)
        with mode():
            found, wanted = jitted(x), layer(x)
        torch.testing.assert_close(found, wanted, rtol=tolerance, atol=tolerance)
        said = explain(jitted)
        assert said.unfused == () and len(said.regions) == 1, said
        # The products of the experts, and what sorts tokens by them, are torch's; no step beside.
        names = [s.name for r in said.regions for s in r.aten_steps]
        assert names.count("grouped_mm") == 3 and set(names) <= ATEN, names


ATEN = {"linear", "topk", "argsort", "grouped_mm", "sort", "cumsum"}
