"""What becomes of a user's functions of DTensors, on a mesh of this process alone.

Values and traffic over several ranks are in tests/multirank/dtensor_functions.py.
"""

import importlib
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from against_eager import jit
from thunder.core.devices import cpu
from thunder.core.dtypes import float32
from thunder.core.proxies import TensorProxy
from thunder.core.symbol import Symbol
from thunder.core.trace import TraceCtx, tracectx
from thunder.extend import FUEL_LEVEL
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_module, distribute_tensor

from thunder_mdfuse import explain, mdfuse_executor
from thunder_mdfuse.thunder import dtensor_eager, patches, region
from thunder_mdfuse.thunder.dtensor_doors import OPERATORS


@pytest.fixture(scope="module")
def mesh() -> Iterator[DeviceMesh]:
    """A mesh of this process alone."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield init_device_mesh("cpu", (1,), mesh_dim_names=("tp",))
    dist.destroy_process_group()


def placed(mesh: DeviceMesh, *shape: int) -> DTensor:
    made = torch.Generator().manual_seed(len(shape))
    return distribute_tensor(torch.randn(shape, generator=made), mesh, [Shard(0)])


def check(function: Callable[..., Any], *inputs: DTensor) -> Any:
    """The jitted function, whose results are eager's and DTensors."""
    jitted = jit(function)
    found, wanted = jitted(*inputs), function(*inputs)
    pairs = zip(found, wanted, strict=True) if isinstance(wanted, tuple) else [(found, wanted)]
    for x, y in pairs:
        assert isinstance(x, DTensor) and x.placements == y.placements
        torch.testing.assert_close(x.to_local(), y.to_local())
    return jitted


FLOATS: dict[str, Callable[[Any], Any]] = {
    "__add__": lambda x: x + 1,
    "__radd__": lambda x: 1 + x,
    "__sub__": lambda x: x - x,
    "__rsub__": lambda x: 1 - x,
    "__mul__": lambda x: x * 2,
    "__rmul__": lambda x: 2 * x,
    "__truediv__": lambda x: x / 2,
    "__rtruediv__": lambda x: 1 / x,
    "__floordiv__": lambda x: x // 2,
    "__pow__": lambda x: x**2,
    "__rpow__": lambda x: 2**x,
    "__matmul__": lambda x: x @ x,
    "__neg__": lambda x: -x,
    "__abs__": lambda x: abs(x),
    "__getitem__": lambda x: x[1:, 2],
    "__eq__": lambda x: x == 1,
    "__ne__": lambda x: x != 1,
    "__lt__": lambda x: x < 0,
    "__le__": lambda x: x <= 0,
    "__gt__": lambda x: x > 0,
    "__ge__": lambda x: x >= 0,
}
BOOLS: dict[str, Callable[[Any], Any]] = {
    "__and__": lambda x: x & ~x,
    "__or__": lambda x: x | ~x,
    "__xor__": lambda x: x ^ x,
    "__invert__": lambda x: ~x,
}


@pytest.mark.parametrize("name", FLOATS)
def test_an_operator(name: str, mesh: DeviceMesh) -> None:
    assert name in OPERATORS
    assert not explain(check(FLOATS[name], placed(mesh, 8, 8))).unfused


@pytest.mark.parametrize("name", BOOLS)
def test_an_operator_of_bools(name: str, mesh: DeviceMesh) -> None:
    assert name in OPERATORS
    check(BOOLS[name], placed(mesh, 8, 8) > 0)


def written(x: Any, y: Any) -> Any:
    z = x * 1.0
    z += y
    z *= 2
    z[0] = y[1]
    return z - y


def test_what_is_written_in_place(mesh: DeviceMesh) -> None:
    check(written, placed(mesh, 4, 8), placed(mesh, 4, 8))


@pytest.mark.parametrize("name", ["T", "mT"])
def test_a_property(name: str, mesh: DeviceMesh) -> None:
    check(lambda x: getattr(x, name) * 2, placed(mesh, 4, 8))


def test_what_a_function_asks_of_its_arguments(mesh: DeviceMesh) -> None:
    def function(x: Any) -> Any:
        assert isinstance(x, torch.Tensor) and isinstance(x, (int, DTensor))
        assert not isinstance(x, (int, nn.Parameter))
        assert x.placements == (Shard(0),) and x.device_mesh.ndim == 1
        return x * float(x.shape[0])

    check(function, placed(mesh, 4, 8))


def test_a_parameter_is_one(mesh: DeviceMesh) -> None:
    module = distribute_module(nn.Linear(8, 8), mesh)
    function = lambda w: w * (2.0 if isinstance(w, nn.Parameter) else 3.0)
    found = jit(function)(module.weight)
    torch.testing.assert_close(found.to_local(), 2 * module.weight.to_local())


def test_a_module_and_its_gradients(mesh: DeviceMesh) -> None:
    module = distribute_module(nn.Linear(8, 8), mesh)
    x = distribute_tensor(torch.randn(4, 8), mesh, [Replicate()])
    wanted = module(x)
    wanted.sum().backward()
    expected = [p.grad.full_tensor() for p in module.parameters()]
    module.zero_grad()
    jitted = jit(module)
    found = jitted(x)
    found.sum().backward()
    torch.testing.assert_close(found.to_local(), wanted.to_local())
    for p, grad in zip(module.parameters(), expected, strict=True):
        assert isinstance(p.grad, DTensor)
        torch.testing.assert_close(p.grad.full_tensor(), grad)


def test_a_plain_tensor_beside_a_dtensor_is_the_same_on_all_ranks(mesh: DeviceMesh) -> None:
    x, y = placed(mesh, 4, 8), torch.randn(8)
    for function in (lambda x, y: x * y, lambda x, y: y - x, lambda x, y: torch.add(x, y)):
        found = jit(function)(x, y)
        assert isinstance(found, DTensor) and found.placements == (Shard(0),)
        torch.testing.assert_close(found.to_local(), function(x.to_local(), y))


def test_no_grad_and_detach_end_a_gradient(mesh: DeviceMesh) -> None:
    def function(x: Any) -> Any:
        with torch.no_grad():
            y = x * 3.0
        return x * y + x.detach() * 2.0

    x, z = (placed(mesh, 4, 8).requires_grad_() for _ in range(2))
    jit(function)(x).to_local().sum().backward()
    function(z).to_local().sum().backward()
    torch.testing.assert_close(x.grad.to_local(), z.grad.to_local())


# Thunder's own, under autocast.
@pytest.mark.filterwarnings("ignore:torch.get_autocast:DeprecationWarning")
@pytest.mark.parametrize("outside", [True, False])
def test_autocast(outside: bool, mesh: DeviceMesh) -> None:
    def inner(x: Any, w: Any) -> Any:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return F.linear(x, w)

    inputs = placed(mesh, 4, 8), placed(mesh, 6, 8)
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=outside):
        function = F.linear if outside else inner
        found, wanted = jit(function)(*inputs), function(*inputs)
    assert found.dtype == wanted.dtype == torch.bfloat16
    torch.testing.assert_close(found.to_local(), wanted.to_local())


def test_a_look_up_leaves_eager_dtensor_as_it_was(mesh: DeviceMesh) -> None:
    rows = distribute_tensor(torch.tensor([1, 3]), mesh, [Replicate()])
    table = placed(mesh, 8, 4)
    jit(lambda i, w: F.embedding(i, w))(rows, table)
    found = F.embedding(rows, table).full_tensor()
    torch.testing.assert_close(found, table.full_tensor()[[1, 3]])


def test_what_no_region_takes_runs_as_eager_dtensor_does(mesh: DeviceMesh) -> None:
    jitted = check(lambda x: torch.zeros_like(x), placed(mesh, 4, 8))
    (left,) = explain(jitted).unfused
    assert "needs a tensor among its inputs" in left.reason.text
    mdfuse_executor.set_fuel(0)
    try:
        jitted = check(lambda x: torch.exp(x) * 2, placed(mesh, 4, 8))
    finally:
        mdfuse_executor.set_fuel(FUEL_LEVEL.UNLIMITED)
    assert {u.reason.text for u in explain(jitted).unfused} == {
        "the fuel ran out (MDFUSE_FUEL or set_fuel)"
    }


def test_plain_tensors_pass_through_the_doors() -> None:
    def function(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        z = torch.add(x, y, alpha=2) * (x - y) / (y.mul(y) + 1)
        return F.linear(z[1:] @ y.T, x[:, :3]) ** 2 + (~(x > 0))[0]

    x, y = torch.randn(3, 3), torch.randn(3, 3)
    torch.testing.assert_close(jit(function)(x, y), function(x, y))


def test_a_leaf_that_no_claim_takes_is_never_dropped() -> None:
    symbol = Symbol(name="unheard_of", meta=lambda x: x, id="unheard_of")

    with tracectx(TraceCtx(None)):
        x = TensorProxy(shape=(2,), device=cpu, dtype=float32)
        bsym = symbol.bind(x, output=TensorProxy(like=x))
    with pytest.raises(AssertionError, match="unheard_of makes"):
        region.flatten(bsym)


def test_patches_are_made_once() -> None:
    splitter = importlib.import_module("thunder.dynamo.splitter")
    assert splitter.is_node_supported_by_thunder.mdfuse, "patched by its import"

    def places() -> list[Any]:
        direct = [getattr(patches.ltorch, name).meta for name in patches._CALLED_DIRECTLY]
        return [
            *direct,
            patches.dtensor_utils.check_dtensor_cotangent_metadata_in_backward,
            patches.update_aliases._get_new_alias,
            patches.prims.update_aliases.meta,
            patches.jit_ext._general_jit_lookaside_map[isinstance],
            patches.jit_ext.interpreter_needs_wrap,
            patches.jit_ext.handle_check_dtensor_spec_in_prologue,
            patches.for_calls.TraceCtx.python_callable,
            patches.for_calls.thunder.thunder_general_jit,
            patches.clang.maybe_broadcast,
            patches.jit_ext.propagate_constraints,
            patches.jit_ext.JitCtx.proxify,
            *(getattr(kind, name) for kind, name, _ in patches.for_calls._CONVERSIONS),
            splitter.is_node_supported_by_thunder,
            splitter.translate_dtensor_ops,
        ]

    before = places()
    assert patches.guard_arguments(mdfuse_executor)
    patches.apply(mdfuse_executor)
    assert all(x is y for x, y in zip(before, places(), strict=True))


WITHOUT = """
import sys, warnings
import torch, torch.distributed as dist
import torch.nn.functional as F
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor
from thunder_mdfuse.thunder import patches
del patches.PATCHES[:]
import thunder
from thunder_mdfuse import explain, mdfuse_executor
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
mesh = init_device_mesh("cpu", (1,))
x = distribute_tensor(torch.randn(4, 8), mesh, [Shard(0)]).requires_grad_()
f = lambda x: F.gelu(torch.tanh(x)).sum(1)
jitted = thunder.jit(f, executors=[mdfuse_executor])
out = jitted(x)
(found,) = torch.autograd.grad(out, x, torch.ones_like(out))
(wanted,) = torch.autograd.grad(f(x), x, torch.ones_like(out))
torch.testing.assert_close(found.to_local(), wanted.to_local())
assert explain(jitted).regions and not explain(jitted).unfused
dist.destroy_process_group()
dim = thunder.jit(lambda x, d: x.sum(d) * 2, executors=[mdfuse_executor], cache="symbolic values")
x = torch.randn(3, 3)
for d in (0, 1):
    torch.testing.assert_close(dim(x, d), x.sum(d) * 2)
assert thunder.cache_misses(dim) == 1 and "may be another" in str(explain(dim))
print("done")
"""


def test_without_the_patches_the_rest_works() -> None:
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT], capture_output=True, text=True, timeout=120
    )
    assert done.stdout.strip().endswith("done"), done.stderr


def test_another_version_of_thunder_is_told_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patches, "version", lambda name: "0.9.1")
    with pytest.warns(UserWarning, match=r"Thunder 0\.9\.1 is not 0\.2\.6") as told:
        patches.apply(mdfuse_executor)
        assert not patches.guard_arguments(mdfuse_executor)
    assert len(told) == len(patches.PATCHES) + 1


def asked(layers: int, mesh: DeviceMesh, monkeypatch: pytest.MonkeyPatch) -> int:
    """How often eager DTensor is asked for an MLP of so many equal layers, with gradients."""

    def mlp(x: Any, weights: Any) -> Any:
        for up, down in weights:
            x = x + F.linear(F.gelu(F.linear(x[:, 0:], up)), down).redistribute(
                placements=[Replicate()]
            )
        return x

    questions: list[str] = []
    for name in ("results", "gradients"):
        ask = getattr(dtensor_eager, name)

        def counted(call: Any, *args: Any, ask: Any = ask) -> Any:
            questions.append(call.name)
            return ask(call, *args)

        monkeypatch.setattr(dtensor_eager, name, counted)
    pairs = [
        tuple(distribute_tensor(torch.randn(8, 8), mesh, [Shard(d)]) for d in (0, 1))
        for _ in range(layers)
    ]
    weights = [tuple(w.requires_grad_() for w in pair) for pair in pairs]
    x = distribute_tensor(torch.randn(4, 8), mesh, [Replicate()])
    jit(mlp)(x, weights).to_local().sum().backward()
    monkeypatch.undo()
    return len(questions)


def test_equal_layers_ask_eager_once(mesh: DeviceMesh, monkeypatch: pytest.MonkeyPatch) -> None:
    assert asked(4, mesh, monkeypatch) == asked(2, mesh, monkeypatch) > 0
