"""Forward hooks of modules that are traced: torch's order and results, errors that name them."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import thunder
import torch
import torch.distributed as dist
from against_eager import jit
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    parallelize_module,
)

from thunder_mdfuse.errors import ExecutorError


@pytest.fixture(scope="module")
def mesh() -> Iterator[DeviceMesh]:
    """A mesh of this process alone."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield init_device_mesh("cpu", (1,), mesh_dim_names=("tp",))
    dist.destroy_process_group()


class Scaled(nn.Module):
    def forward(self, x: torch.Tensor, *, factor: float = 1.0) -> torch.Tensor:
        return x * factor


class Outer(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x, factor=3.0) + 1


def hooked() -> Scaled:
    """With a hook of each kind, whose order shows in the result."""
    module = Scaled()
    module.register_forward_pre_hook(lambda m, args: args[0] + 1)
    module.register_forward_pre_hook(lambda m, args: None)
    module.register_forward_pre_hook(
        lambda m, args, kwargs: ((args[0] * 2,), {"factor": kwargs["factor"] + 1}), with_kwargs=True
    )
    module.register_forward_hook(lambda m, args, out: out - args[0])
    module.register_forward_hook(
        lambda m, args, kwargs, out: out * kwargs["factor"], with_kwargs=True
    )
    module.register_forward_hook(lambda m, args, out: None)
    return module


def test_hooks_run_in_torchs_order() -> None:
    x = torch.randn(3)
    for module, call in (
        (Outer(hooked()), lambda m: m(x)),
        (hooked(), lambda m: m(x, factor=3.0)),
    ):
        torch.testing.assert_close(call(jit(module)), call(module))


def test_other_jits_of_thunder_have_its_own_way() -> None:
    module, x = Outer(hooked()), torch.randn(3)
    torch.testing.assert_close(thunder.jit(module)(x), module(x))


def test_what_a_hook_holds_is_guarded() -> None:
    """A hook is traced anew when a number that it reads from its module changes."""
    inner = Scaled()
    inner.shift = 1.0
    inner.register_forward_hook(lambda m, args, out: out + m.shift)
    module, x = Outer(inner), torch.randn(3)
    jitted = jit(module)
    torch.testing.assert_close(jitted(x), module(x))
    inner.shift = 2.0
    torch.testing.assert_close(jitted(x), module(x))


def test_errors_of_a_hook_are_its_own() -> None:
    def refuse(module: Any, args: Any) -> None:
        raise ValueError("not today")

    module = Scaled()
    module.register_forward_pre_hook(refuse)
    with pytest.raises(ValueError, match="not today"):
        jit(Outer(module))(torch.randn(3))


def prints_value(module: Any, args: Any, out: torch.Tensor) -> torch.Tensor:
    return torch._assert_tensor_metadata(out, None, None, torch.float32) or out


@pytest.mark.parametrize("wrap", [Outer, lambda inner: inner])
def test_a_hook_that_cannot_be_traced_is_named(wrap: Callable[[Any], nn.Module]) -> None:
    module = Scaled()
    module.register_forward_hook(prints_value)
    with pytest.raises(ExecutorError, match=r"forward hook .*prints_value of a Scaled cannot"):
        jit(wrap(module))(torch.randn(3))


def test_the_hooks_of_fully_shard_are_named(mesh: DeviceMesh) -> None:
    module = fully_shard(Scaled(), mesh=mesh)
    with pytest.raises(ExecutorError, match=r"forward pre-hook torch.distributed.fsdp.*Scaled can"):
        jit(Outer(module))(torch.randn(3))


def test_a_root_that_is_parallelized(mesh: DeviceMesh) -> None:
    """And one whose output is a DTensor: its gradient comes as one."""
    x = torch.randn(4, 8, requires_grad=True)
    for local in (True, False):
        linear = nn.Linear(8, 6)
        right = linear(x)
        cut = parallelize_module(linear, mesh, ColwiseParallel(use_local_output=local))
        found = jit(cut)(x)
        assert isinstance(found, DTensor) is not local
        whole = found if local else found.full_tensor()
        torch.testing.assert_close(whole, right)
        (ours,) = torch.autograd.grad(whole.sum(), x)
        (eager,) = torch.autograd.grad(right.sum(), x)
        torch.testing.assert_close(ours, eager)


def test_inputs_by_name(mesh: DeviceMesh) -> None:
    """PrepareModuleInput for keywords: a hook that takes them."""

    class Pair(nn.Module):
        def forward(self, x: Any, *, y: Any) -> Any:
            return x.to_local() + y.to_local() * 2

    class Root(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.pair = Pair()

        def forward(self, x: Any) -> Any:
            return self.pair(x, y=x + 1)

    whole = (Replicate(),)
    style = PrepareModuleInput(
        input_layouts=whole,
        desired_input_layouts=whole,
        input_kwarg_layouts={"y": Replicate()},
        desired_input_kwarg_layouts={"y": Replicate()},
    )
    module, x = parallelize_module(Root(), mesh, {"pair": style}), torch.randn(4)
    torch.testing.assert_close(jit(module)(x), x + (x + 1) * 2)
