"""``explain``: fields for programs, a text for people, errors for what it cannot explain."""

import warnings
from collections.abc import Iterator

import pytest
import thunder
import torch
import torch.distributed as dist
import torch.nn.functional as F
from against_eager import jit
from thunder.dynamo import thunderfx
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor

from thunder_mdfuse import FusionDefinition, explain, mdfuse_executor, pipeline
from thunder_mdfuse.dump import Dump
from thunder_mdfuse.errors import ExecutorError
from thunder_mdfuse.ir.text import parse
from thunder_mdfuse.runtime.report import report
from thunder_mdfuse.schedule.program import InputClass
from thunder_mdfuse.schedule.target import H200
from thunder_mdfuse.thunder.inspect import WIDTH, _kernel_step


@pytest.fixture(scope="module")
def mesh() -> Iterator[DeviceMesh]:
    """A mesh of this process alone."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield init_device_mesh("cpu", (1,), mesh_dim_names=("tp",))
    dist.destroy_process_group()


def test_regions_steps_and_bytes() -> None:
    jitted = jit(lambda x, w: torch.nn.functional.linear(x * 2, w) + 1)
    jitted(torch.randn(4, 8), torch.randn(5, 8))
    said = explain(jitted)
    (region,) = said.regions
    assert (region.name, region.part, region.calls, region.specialisations) == (
        "mdFusion0",
        "forward",
        1,
        1,
    )
    assert region.backend == "reference"
    assert region.ops == ("mul", "linear", "add")
    assert region.inputs == ("cpu f32[4, 8]", "cpu f32[5, 8]")
    assert region.outputs == ("cpu f32[4, 5]",)
    assert [s.kind for s in region.steps] == ["kernel", "aten", "kernel"]
    (linear,) = region.aten_steps
    assert (linear.bytes_read, linear.bytes_written) == (4 * (32 + 40), 4 * 20)
    assert not region.collectives and len(region.kernels) == said.kernels == 2
    moved = [(4 * 32, 4 * 32), (4 * 72, 4 * 20), (4 * 20, 4 * 20)]
    assert said.bytes_moved == sum(map(sum, moved))
    text = str(said)
    for part in (
        "mdFusion0 (forward, 1 call, 1 specialisation, backend reference)\n",
        "  in: cpu f32[4, 8], cpu f32[5, 8]\n  out: cpu f32[4, 5]\n  ops: mul, linear, add\n",
        "kernels generated, not run: the reference backend executed torch ops\n",
        "aten linear",
        "288 B",
    ):
        assert part in text, text
    jitted(torch.randn(4, 8), torch.randn(5, 8))
    assert "(forward, 2 calls, 1 specialisation, " in str(explain(jitted))


def test_the_list_of_operations_is_short() -> None:
    """Counted, wrapped, and without what computes nothing."""

    def function(x: torch.Tensor) -> torch.Tensor:
        for _ in range(9):
            x = torch.sin(x).reshape(4, 4) * 2 + x.t().float()
        names = (torch.cos, torch.tan, torch.exp, torch.sinh, torch.cosh, torch.tanh, torch.erf)
        more = (torch.asinh, torch.atan, torch.floor, torch.ceil, torch.round, torch.trunc)
        for f in (*names, *more, torch.sign, torch.reciprocal, torch.lgamma, torch.digamma):
            x = f(x)
        return x

    jitted = jit(function)
    jitted(torch.rand(4, 4))
    (region,) = explain(jitted).regions
    assert region.ops.count("sin") == 9
    assert not {"reshape", "transpose", "convert_element_type", "broadcast_in_dim"} & {*region.ops}
    text = str(region)
    assert "  ops: sin x9, mul x9, add x9, cos, tan, exp, " in text
    assert max(len(line) for line in text.splitlines()[:6]) <= WIDTH
    assert text.splitlines()[4].startswith("    ")


def test_a_cast_is_listed_where_it_does_something() -> None:
    x = torch.randn(8, 8)
    for function in (lambda x: x.float(), lambda x: torch.sum(x[:, None], 1, dtype=torch.float32)):
        jitted = jit(function)
        jitted(x.bfloat16())
        (region,) = explain(jitted).regions
        assert "cast" in region.ops and region.kernels[0].ops[0] in ("cast", "sum")
    jitted = jit(lambda x: x.float().exp())
    jitted(x)
    assert explain(jitted).regions[0].ops == ("exp",)


@pytest.mark.parametrize(
    ("given", "node", "shown"),
    [
        ("bf16[64]", "cast(%0; dtype=f32) : f32[64]", ("cast",)),
        ("f32[64]", "cast(%0; dtype=f16) : f16[64]", ("cast",)),
        ("f32[4, 16]", "flip(%0; dims=[1]) : f32[4, 16]", ("copy",)),
    ],
)
def test_a_kernel_that_only_moves_says_so(given: str, node: str, shown: tuple[str, ...]) -> None:
    fusion = parse(f"local\n%0 = input(position=0) : {given}\n%1 = {node}\nreturn %1")
    strides = (16, 1) if "," in given else (1,)
    plan, _ = pipeline.plan(fusion, [InputClass(strides)], H200, {}, "cuda", Dump("moves"))
    (kernel,) = plan.kernels
    (step,) = report(plan, {})
    assert _kernel_step(step, kernel).ops == shown
    assert " items of" not in step.detail and step.detail.endswith(", 1 phase")


def test_symbolic_sizes_have_names() -> None:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The 'symbolic values' cache option")
        jitted = jit(lambda x, n: x * n, cache="symbolic values")
        jitted(torch.randn(4, 8), 3)
    (region,) = explain(jitted).regions
    assert set(region.inputs) == {"int i2", "cpu f32[i0, i1]"}
    assert region.outputs == ("cpu f32[i0, i1]",)


def test_dtensors_have_placements_and_one_mesh(mesh: DeviceMesh) -> None:
    x = distribute_tensor(torch.randn(4, 8), mesh, [Replicate()])
    w = distribute_tensor(torch.randn(6, 8), mesh, [Shard(0)])
    jitted = jit(lambda x, w: torch.nn.functional.linear(x, w) * 2)
    jitted(x, w)
    (region,) = explain(jitted).regions
    assert region.inputs == ("cpu f32[4, 8] @ [Replicate]", "cpu f32[6, 8] @ [Shard(0)]")
    assert region.outputs == ("cpu f32[4, 6] @ [Shard(1)]",)
    assert (region.mesh, region.ops) == ("mesh[tp=1]", ("linear", "mul"))
    assert str(region).count("mesh") == 1 and "on mesh[tp=1]" in str(region)


def test_a_region_has_the_plan_that_is_drawn() -> None:
    jitted = jit(lambda x: (x * x).sum())
    loss = jitted(torch.randn(4, requires_grad=True))
    forward, backward = explain(jitted).regions
    assert [s.kind for s in forward.plan.steps] == ["kernel"]
    assert "plan" not in repr(forward)
    with pytest.raises(ExecutorError, match=r"mdFusion\d \(backward\) has not been called yet"):
        _ = backward.plan
    loss.backward()
    assert explain(jitted).regions[1].plan.kernels


def test_what_is_outside_has_its_reason() -> None:
    jitted = jit(lambda x: F.adaptive_avg_pool2d(x, 2) * 2)
    jitted(torch.randn(1, 1, 5, 5))
    left = explain(jitted).unfused
    assert any("avg_pool" in u.symbol and "no claim" in u.reason.text for u in left), left
    assert "outside of regions" in str(explain(jitted))


def test_a_function_without_regions() -> None:
    jitted = jit(lambda x: x.t())
    jitted(torch.randn(2, 3))
    said = explain(jitted)
    assert not said.regions and not said.kernels and not said.bytes_moved
    assert str(said).startswith("no regions")


def test_backward_regions_are_there_before_they_run() -> None:
    jitted = jit(lambda x: (x * x).sum())
    loss = jitted(torch.randn(4, requires_grad=True))
    forward, backward = explain(jitted).regions
    assert (forward.part, backward.part) == ("forward", "backward")
    assert forward.steps and not backward.steps
    assert "not called yet, so not compiled" in str(backward)
    loss.backward()
    assert explain(jitted).regions[1].steps


def test_what_cannot_be_explained() -> None:
    with pytest.raises(ExecutorError, match="call it, then explain it"):
        explain(jit(lambda x: x * 2))
    with pytest.raises(ExecutorError, match=r"thunder\.jit .* found a builtin_function_or_method"):
        explain(torch.sin)
    with pytest.raises(ExecutorError, match=r"a FusionDefinition; .* fd\.executable\.report\(\)"):
        explain(FusionDefinition())
    with pytest.raises(ExecutorError, match="call it, then explain it"):
        explain(thunderfx(nn.Linear(2, 2), executors=[mdfuse_executor]))


def test_what_was_jitted_without_the_executor() -> None:
    told = r"jitted without mdfuse_executor.* pass executors=\[mdfuse_executor\]"
    plain = thunder.jit(lambda x: x * 2)
    plain(torch.randn(3))
    with pytest.raises(ExecutorError, match=told):
        explain(plain)
    compiled = thunderfx(nn.Linear(2, 2))
    compiled(torch.randn(3, 2))
    with pytest.raises(ExecutorError, match=told):
        explain(compiled)


def test_subgraphs_of_thunderfx() -> None:
    net = nn.Sequential(nn.Linear(8, 8), nn.GELU())
    compiled = thunderfx(net, executors=[mdfuse_executor])
    x = torch.randn(3, 8, requires_grad=True)
    torch.testing.assert_close(compiled(x), net(x))
    said = explain(compiled)
    assert {r.part for r in said.regions} == {"forward", "backward"}
    assert said.regions[0].aten_steps and said.regions[0].kernels
