"""The decoders cut by ``parallelize_module``, as a user of torch writes it."""

from typing import Any

from models.gpt2 import GPT2
from models.moe import Grouped, Moe
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import (
    DTensor,
    Partial,
    Placement,
    Replicate,
    Shard,
    distribute_module,
    distribute_tensor,
)
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    PrepareModuleInput,
    PrepareModuleInputOutput,
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


def tensor_parallel_encoder(model: Any, mesh: DeviceMesh) -> Any:
    """A BERT of transformers': heads and hidden units cut."""
    columns = ("attention.self.query", "attention.self.key", "attention.self.value")
    plan = {name: ColwiseParallel() for name in (*columns, "intermediate.dense")}
    plan |= {name: RowwiseParallel() for name in ("attention.output.dense", "output.dense")}
    for layer in model.encoder.layer:
        parallelize_module(layer, mesh, plan)
    return model


class CutExperts(ParallelStyle):
    """The experts' matrices cut along ``dim``; ``given``: how a plain tensor of rows lies;
    ``asked``: as what the result is handed on, None for the DTensor as it is.
    """

    def __init__(self, dim: int, given: Placement, asked: Placement | None = None) -> None:
        super().__init__()
        self.dim, self.given, self.asked = dim, given, asked

    def _apply(self, module: nn.Module, mesh: DeviceMesh) -> nn.Module:
        return distribute_module(module, mesh, self._cut, self._prepared, self._handed_on)

    def _cut(self, name: str, module: Grouped, mesh: DeviceMesh) -> None:
        weight = distribute_tensor(module.weight, mesh, [Shard(self.dim)])
        module.weight = nn.Parameter(weight, requires_grad=module.weight.requires_grad)

    def _prepared(self, module: Grouped, inputs: Any, mesh: DeviceMesh) -> Any:
        rows, ends = inputs
        if not isinstance(rows, DTensor):
            rows = DTensor.from_local(rows, mesh, [self.given], run_check=False)
        return rows, DTensor.from_local(ends, mesh, [Replicate()], run_check=False)

    def _handed_on(self, module: Grouped, output: Any, mesh: DeviceMesh) -> Any:
        if self.asked is None:
            return output
        return output.redistribute(placements=[self.asked]).to_local()


def expert_parallel(model: Moe, mesh: DeviceMesh) -> Moe:
    """Each expert, and the shared one, cut as a feed-forward block; what all of them leave pending
    is reduced once, behind their sum.
    """
    columns = {f"experts.{name}": CutExperts(1, Replicate()) for name in ("gate", "up")}
    columns |= {f"shared.{name}": ColwiseParallel() for name in ("gate", "up")}
    rows = {
        "experts.down": CutExperts(2, Shard(1), Partial()),
        "shared.down": RowwiseParallel(output_layouts=Partial()),
    }
    whole = PrepareModuleInputOutput(
        input_layouts=Replicate(),
        desired_input_layouts=Replicate(),
        use_local_input=True,
        output_layouts=Partial(),
        desired_output_layouts=Replicate(),
    )
    return parallelize_module(model, mesh, {**columns, **rows, "": whole})


# How a decoder of DTensors is cut on the last axis of a mesh, by the ends of parameters' names.
_ROWS = ("q.weight", "k.weight", "v.weight", "gate.weight", "up.weight", "head.weight")
_COLUMNS = ("out.weight", "down.weight")


def on_all_axes(model: Llama, mesh: DeviceMesh) -> Llama:
    """All parameters and buffers DTensors on a mesh of any number of axes: cut on the last of them,
    the same along the others, where a batch may be cut.
    """
    rest = [Replicate()] * (mesh.ndim - 1)
    for module in model.modules():
        for name, x in list(module.named_parameters(recurse=False)):
            full = f"{_name_of(model, module)}.{name}"
            cut = Shard(0) if full.endswith(_ROWS) else Shard(1)
            last = cut if full.endswith(_ROWS + _COLUMNS) else Replicate()
            setattr(module, name, nn.Parameter(distribute_tensor(x.data, mesh, [*rest, last])))
        for name, x in list(module.named_buffers(recurse=False)):
            setattr(module, name, distribute_tensor(x, mesh, [*rest, Replicate()]))
    return model


def _name_of(model: nn.Module, module: nn.Module) -> str:
    return next(name for name, found in model.named_modules() if found is module)
