"""Parallelized modules through thunderfx: one graph, and loss and gradients as on one rank."""

import copy
from typing import Any

import torch
from models.parallel import tensor_parallel_feed
from models.test_decoders import gradients, made
from multirank.decoders import SMALL, compare, step, texts
from multirank.ranks import DEVICE, TOLERANCE
from thunder.dynamo import thunderfx
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard

from thunder_mdfuse import explain, mdfuse_executor
from thunder_mdfuse.bench.llama import FeedForward, Llama, tensor_parallel


def in_one_graph(model: Any) -> Any:
    torch.compiler.reset()
    return thunderfx(model, executors=[mdfuse_executor])


def check_one_graph(fused: Any) -> None:
    (graph,) = fused._backend.subgraph_infos
    assert not graph.split_reasons and len(graph.thunder_compiled_fns) == 1, graph.split_reasons
    assert explain(fused).unfused == ()


def by_dynamo(mesh: DeviceMesh) -> None:
    """Under the modes that count collectives dynamo runs nothing: the programs say what is sent."""
    right = made(Llama, SMALL).to(DEVICE)
    model, eager = (tensor_parallel(copy.deepcopy(right), mesh) for _ in range(2))
    fused = in_one_graph(model)
    wanted, theirs = step(right, right, texts(0)), step(eager, eager, texts(0))
    loss = fused(*texts(0))
    torch.testing.assert_close(loss, wanted.loss, rtol=TOLERANCE, atol=TOLERANCE)
    compare(gradients(model, loss), wanted.gradients)
    check_one_graph(fused)
    regions = explain(fused).regions
    for part, eagers in (("forward", theirs.forward), ("backward", theirs.backward)):
        sent = sum(len(r.collectives) for r in regions if r.part == part)
        assert 0 < sent <= eagers.collectives, part


def fully_sharded(mesh: DeviceMesh) -> None:
    """Parameters cut on both axes: gathered along one by FSDP's hooks, which dynamo leaves to
    torch, and used as they are cut along the other.
    """
    right = made(FeedForward, SMALL).to(DEVICE)
    model = tensor_parallel_feed(copy.deepcopy(right), mesh["tp"])
    fully_shard(model, mesh=mesh["dp"])
    fused = in_one_graph(model)
    numbers = torch.Generator().manual_seed(0)
    x = torch.randn(4, SMALL.length, SMALL.width, generator=numbers).to(DEVICE)
    for _ in range(2):
        wanted = gradients(right, right(x).square().mean())
        own = x.chunk(2)[mesh.get_local_rank("dp")]
        model.zero_grad()  # before the forward pass, after which the parameters are whole on dp
        compare(gradients(model, fused(own).square().mean()), wanted)
    check_one_graph(fused)
