"""What a user hears who writes more of DTensors than Thunder traces; values are tested in e2e."""

import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from against_eager import jit
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_module, distribute_tensor

from thunder_mdfuse import explain
from thunder_mdfuse.errors import ExecutorError
from thunder_mdfuse.thunder.dtensor_doors import REFUSED


@pytest.fixture(scope="module")
def mesh() -> Iterator[DeviceMesh]:
    """A mesh of this process alone."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield init_device_mesh("cpu", (1,), mesh_dim_names=("tp",))
    dist.destroy_process_group()


def placed(mesh: DeviceMesh, *shape: int) -> DTensor:
    return distribute_tensor(torch.randn(shape), mesh, [Shard(0)])


DTENSOR = r"a DTensor \(cpu f32\[4, 8\] @ \[Shard\(0\)\], mesh\[tp=1\]\)"


class Scale(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(8), requires_grad=False)

    def forward(self, x: Any) -> Any:
        return x * self.scale


MIXED: dict[str, tuple[str, Any]] = {
    "x * y": (r"\*", lambda x, y: x * y),
    "y * x": (r"\*", lambda x, y: y * x),
    "x + y": (r"\+", lambda x, y: x + y),
    "y - x": ("-", lambda x, y: y - x),
    "x @ y": ("@", lambda x, y: x @ y),
    "x *= y": (r"\*=", lambda x, y: x.__imul__(y)),
    "torch.mul": (r"torch\.mul", lambda x, y: torch.mul(x, y)),
    "torch.add": (r"torch\.add", lambda x, y: torch.add(x, other=y)),
    "x.mul": (r"torch\.mul", lambda x, y: x.mul(y)),
    "F.linear": (r"F\.linear", lambda x, y: F.linear(x, y)),
}


@pytest.mark.parametrize("case", MIXED)
def test_a_dtensor_beside_a_plain_tensor(case: str, mesh: DeviceMesh) -> None:
    name, function = MIXED[case]
    plain = r"a plain tensor \(cpu f32\[8\]\)"
    order = (plain, DTENSOR) if case.startswith("y") else (DTENSOR, plain)
    with pytest.raises(ExecutorError, match=f"^{name} of {' and '.join(order)}: .* not both") as e:
        jit(function)(placed(mesh, 4, 8), torch.randn(8))
    assert "distribute_tensor before the call" in str(e.value)


def test_a_plain_parameter_of_a_module(mesh: DeviceMesh) -> None:
    with pytest.raises(ExecutorError, match=rf"^\* of {DTENSOR} and a plain tensor"):
        jit(Scale())(placed(mesh, 4, 8))


def assigned(x: Any) -> Any:
    x[0] = 1.0
    return x


def subtracted(x: Any) -> Any:
    x -= 1.0
    return x


USES: dict[str, tuple[Callable[[Any], Any], ...]] = {
    "-": (lambda x: x - x, lambda x: 1.0 - x),
    "/": (lambda x: x / 2, lambda x: 1 / x),
    "//": (lambda x: x // 2, lambda x: 2 // x),
    "%": (lambda x: x % 2, lambda x: 2 % x),
    "**": (lambda x: x**2, lambda x: 2**x),
    "@": (lambda x: x @ x,),
    "&": (lambda x: x & x, lambda x: 1 & x),
    "|": (lambda x: x | x, lambda x: 1 | x),
    "^": (lambda x: x ^ x, lambda x: 1 ^ x),
    "<<": (lambda x: x << 1,),
    ">>": (lambda x: x >> 1,),
    "~": (lambda x: ~x,),
    "-=": (subtracted,),
    "indexing": (lambda x: x[0],),
    "assignment to an index": (assigned,),
}


@pytest.mark.parametrize(("sign", "use"), [(sign, use) for sign in USES for use in USES[sign]])
def test_an_operator_that_thunder_has_not_for_dtensors(
    sign: str, use: Callable[[Any], Any], mesh: DeviceMesh
) -> None:
    told = rf"^{re.escape(sign)} of {DTENSOR}.* only x \+ y, x \* y"
    with pytest.raises(ExecutorError, match=told) as caught:
        jit(use)(placed(mesh, 4, 8))
    assert "to_local()" in str(caught.value)


def test_every_refused_operator_is_used_above() -> None:
    assert {*REFUSED.values()} - {"+=", "*=", "/=", "**="} == {*USES}


NUMBERS: dict[str, Callable[[Any], Any]] = {
    "an integer": lambda x: x * 2 + 1,
    "torch.mul": lambda x: torch.mul(x, 2),
    "the number first": lambda x: torch.add(torch.mul(2, x), 3),
    "x.add": lambda x: x.add(2).mul(0.5),
    "what the message names": lambda x: x + -1.0 * x * torch.reciprocal(x),
}


@pytest.mark.parametrize("case", NUMBERS)
def test_a_dtensor_and_a_number(case: str, mesh: DeviceMesh) -> None:
    x, jitted = placed(mesh, 4, 8), jit(NUMBERS[case])
    found, wanted = jitted(x), NUMBERS[case](x)
    assert found.placements == wanted.placements
    torch.testing.assert_close(found.to_local(), wanted.to_local())
    assert not explain(jitted).unfused


def test_plain_tensors_pass_through_the_doors() -> None:
    def function(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        z = torch.add(x, y, alpha=2) * (x - y) / (y.mul(y) + 1)
        return F.linear(z[1:] @ y.T, x[:, :3]) ** 2 + (~(x > 0))[0]

    x, y = torch.randn(3, 3), torch.randn(3, 3)
    torch.testing.assert_close(jit(function)(x, y), function(x, y))


# What the README quotes of Thunder itself. When one of these fails, the README is old.


@pytest.mark.parametrize(
    "function",
    [lambda x: x.sum(), lambda x: torch.rsqrt(x), lambda x: F.relu(x), lambda x: abs(x)],
)
def test_thunders_message_for_a_function_that_it_has_not(
    function: Callable[[Any], Any], mesh: DeviceMesh
) -> None:
    with pytest.raises(
        AssertionError, match=r"Expected all inputs to be TensorProxy.*DTensorProxy"
    ):
        jit(function)(placed(mesh, 4, 8))


def test_thunders_message_for_a_missing_gradient_and_the_remedies(mesh: DeviceMesh) -> None:
    module = distribute_module(nn.Linear(8, 8), mesh)
    x = distribute_tensor(torch.randn(4, 8), mesh, [Replicate()])
    with pytest.raises(RuntimeError, match=r"Failed to find a gradient transform .*dtensor_linear"):
        jit(module)(x)
    with pytest.raises(AttributeError, match="'float' object has no attribute 'local_tensor'"):
        jit(lambda x: x * 2.0)(placed(mesh, 4, 8).requires_grad_())
    wanted = module(x).to_local()
    with torch.no_grad():
        torch.testing.assert_close(jit(module)(x).to_local(), wanted)
    module.requires_grad_(False)
    torch.testing.assert_close(jit(module)(x).to_local(), wanted)
