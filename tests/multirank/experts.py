"""A layer of experts over ranks, for inference: prefill and decode as the layer on one rank."""

import copy

import torch
from models.moe import Moe
from models.parallel import expert_parallel
from models.test_decoders import jit
from multirank.decoders import SMALL
from multirank.ranks import DEVICE
from multirank.traffic import Traffic
from torch.distributed.device_mesh import DeviceMesh

from thunder_mdfuse import explain


def experts(mesh: DeviceMesh) -> None:
    """In bf16, which is all that eager DTensor has grouped products for. In inference mode eager
    DTensor makes no view of a parameter, so its traffic is that without gradients.
    """
    torch.manual_seed(0)
    right = Moe(SMALL).bfloat16().to(DEVICE).requires_grad_(False)
    model, eager = (expert_parallel(copy.deepcopy(right), mesh) for _ in range(2))
    jitted = jit(model)
    for tokens, mode in ((9, torch.inference_mode), (1, torch.no_grad)):
        numbers = torch.Generator().manual_seed(tokens)
        x = torch.randn(1, tokens, SMALL.width, generator=numbers).to(DEVICE, torch.bfloat16)
        with mode():
            jitted(x)  # fake DTensors say how all is placed, and "send" while they do
            with Traffic() as ours:
                found = jitted(x)
        with torch.no_grad(), Traffic() as theirs:
            eager(x)
        torch.testing.assert_close(found.clone(), right(x), rtol=2e-2, atol=2e-2)
        assert ours.collectives == theirs.collectives == 1, f"{ours}, eager has {theirs}"
        assert ours.bytes <= theirs.bytes, f"{ours}, eager has {theirs}"
        assert explain(jitted).unfused == ()
