"""The decoders cut by ``parallelize_module``, as a user of torch writes it."""

from models.gpt2 import GPT2
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    PrepareModuleOutput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

from thunder_mdfuse.bench.llama import COLUMNS, FeedForward, Llama


def tensor_parallel_feed(feed: FeedForward, mesh: DeviceMesh) -> FeedForward:
    plan = {name: ColwiseParallel() for name in ("gate", "up")}
    return parallelize_module(feed, mesh, {**plan, "down": RowwiseParallel()})


def sequence_parallel(model: Llama, mesh: DeviceMesh) -> Llama:
    """As ``tensor_parallel``, with the sequence cut where activations were whole; logits stay cut
    for ``loss_parallel``.
    """
    whole = (Replicate(), None, None)
    plan = {
        "tokens": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)),
        "norm": SequenceParallel(),
        "head": ColwiseParallel(
            input_layouts=Shard(1), output_layouts=Shard(-1), use_local_output=False
        ),
    }
    parallelize_module(model, mesh, plan)
    for layer in model.layers:
        plan = {name: ColwiseParallel() for name in COLUMNS}
        plan |= {name: SequenceParallel() for name in ("attention_norm", "feed_norm")}
        plan |= {
            "attention": PrepareModuleInput(
                input_layouts=(Shard(1), None, None), desired_input_layouts=whole
            ),
            "attention.out": RowwiseParallel(output_layouts=Shard(1)),
            "feed": PrepareModuleInput(
                input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),)
            ),
            "feed.down": RowwiseParallel(output_layouts=Shard(1)),
            "": PrepareModuleOutput(
                output_layouts=Shard(1), desired_output_layouts=Shard(1), use_local_output=True
            ),
        }
        parallelize_module(layer, mesh, plan)
    return model


def sequence_parallel_gpt2(model: GPT2, mesh: DeviceMesh) -> GPT2:
    """Between the layers DTensors of which the sequence is cut, dropout among them."""

    def cut(dim: int) -> RowwiseParallel:
        return RowwiseParallel(
            input_layouts=Replicate(), output_layouts=Shard(dim), use_local_output=False
        )

    plan = {"tokens": cut(1), "places": cut(0), "norm": SequenceParallel()}
    parallelize_module(model, mesh, plan)
    for block in model.blocks:
        plan = {
            "norm1": SequenceParallel(),
            "norm2": SequenceParallel(),
            "qkv": ColwiseParallel(input_layouts=Shard(1), output_layouts=Replicate()),
            "out": cut(1),
            "up": ColwiseParallel(input_layouts=Shard(1)),
            "down": RowwiseParallel(output_layouts=Shard(1), use_local_output=False),
        }
        parallelize_module(block, mesh, plan)
    return model
