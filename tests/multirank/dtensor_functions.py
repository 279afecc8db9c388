"""Functions of DTensors, forward and backward, through thunder.jit against eager DTensor.

For every function: values, placements, shapes and strides of results and gradients; no more
collectives than eager's and no more bytes; and no step outside of a region but ``left`` of them.
``DEVIATIONS`` are the functions whose placements are not eager's.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import thunder
import torch
import torch.nn.functional as F
from multirank.ranks import DEVICE, TOLERANCE, Case, mesh_of, place
from multirank.traffic import Traffic
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard

from thunder_mdfuse import explain, mdfuse_executor

R, S = Replicate(), Shard
Places = Placement | Sequence[Placement]
# By name: why the placements of the result are not eager's.
DEVIATIONS = {
    "rows of a sharded table": "eager's masked sum holds a mask; ours is masked, a Partial(sum)",
}
# Bytes that ours may send more than eager, and why.
SLACK = {"cross_entropy": 8}  # the number of targets is counted in i64, and not in f32


@dataclass(frozen=True)
class Leaf:
    """An input: where it lies, None for a plain tensor; whole numbers where ``below`` is given."""

    places: Places | None
    shape: tuple[int, ...]
    grad: bool = True
    below: int = 0

    def made(self, mesh: DeviceMesh, seed: int) -> torch.Tensor:
        numbers = torch.Generator().manual_seed(seed)
        if self.below:
            whole = torch.randint(0, self.below, self.shape, generator=numbers)
        else:
            whole = torch.randn(self.shape, generator=numbers)
        if self.places is None:
            return whole.to(DEVICE).requires_grad_(self.grad)
        places = self.places if isinstance(self.places, Sequence) else [self.places]
        cut = [R if p.is_partial() else p for p in places]
        x = place(whole, mesh, *cut)
        if any(p.is_partial() for p in places):
            x = DTensor.from_local(
                x.to_local(), mesh, places, run_check=False, shape=x.shape, stride=x.stride()
            )
        return x.detach().requires_grad_(self.grad)


@dataclass(frozen=True)
class Function:
    name: str
    call: Callable[..., Any]
    inputs: tuple[Leaf, ...]
    left: int = 0


def d(places: Places | None, *shape: int, grad: bool = True) -> Leaf:
    return Leaf(places, shape, grad)


def index(places: Places, below: int, *shape: int) -> Leaf:
    return Leaf(places, shape, False, below)


A = d(S(0), 4, 8)
ROWS = d(S(0), 5, 8)  # of which no number of ranks has equal parts
COLUMNS = d(S(1), 4, 6)


def pointwise() -> Iterator[Function]:
    yield Function("add", lambda a, b: torch.add(a, b, alpha=2) + 1.5, (ROWS, ROWS))
    yield Function("sub", lambda a, b: 1 - (a - b), (ROWS, ROWS))
    yield Function("mul", lambda a, b: 2.0 * (a * b), (ROWS, d(R, 8)))
    yield Function("div", lambda a, b: a / (b * b + 1.0) / 2, (A, A))
    yield Function("pow", lambda a: a**2 + (a * a + 1.0) ** 0.5, (ROWS,))
    yield Function("unequal placements", lambda a, b: a * b, (A, d(S(1), 4, 8)))
    yield Function("beside a replicated one", lambda a, b: a + b, (A, d(R, 4, 8)))
    yield Function("used twice", lambda a, b: (a * b) * a + a, (ROWS, ROWS))
    yield Function("with itself", lambda a: a * a, (ROWS,))
    unary = (torch.neg, torch.exp, torch.tanh, torch.sigmoid, F.relu, F.gelu, F.silu)
    yield Function("unary", lambda a: tuple(f(a) for f in unary), (ROWS,))
    yield Function("rsqrt", lambda a: torch.rsqrt(torch.abs(a) + 1.0), (ROWS,))
    yield Function(
        "where", lambda a, b: (torch.where(a > 0, a, b), torch.where(b > 0, a, 0.0)), (A, A)
    )
    yield Function("masked_fill", lambda a, b: a.masked_fill(b > 0, 2.0), (A, A))
    yield Function("comparison", lambda a: (a > 0, a <= 0.5), (d(S(0), 5, 8, grad=False),))
    yield Function("to bfloat16", lambda a: a.to(torch.bfloat16).float(), (ROWS,))
    stepped = lambda a, b: (torch.minimum(a, b), a.round() * a, b.trunc() * a)
    yield Function("minimum and steps", stepped, (A, A))
    yield Function("clamp", lambda a: a.clamp(-0.5, 0.5), (ROWS,))


def reductions() -> Iterator[Function]:
    yield Function("sum", lambda a: a.sum(), (ROWS,))
    yield Function("over the cut dim", lambda a: (a.sum(0), a.mean(0)), (A,))
    beside = lambda a: (a.sum(1), torch.amax(a, 1), torch.var(a, 1))
    yield Function("beside the cut dim", beside, (ROWS,))
    yield Function("softmax", lambda a: (F.softmax(a, 1), F.log_softmax(a, -1)), (ROWS,))
    yield Function("softmax over the cut dim", lambda a: F.softmax(a, 0), (A,))
    before = lambda x, w, u: F.linear(F.rms_norm(x, (8,), w), u)
    yield Function("a norm before columns", before, (d(R, 4, 8), d(R, 8), d(S(0), 6, 8)))
    yield Function("layer_norm", lambda a, w, b: F.layer_norm(a, (8,), w, b), (A, d(R, 8), d(R, 8)))
    yield Function("rms_norm", lambda a, w: F.rms_norm(a, (8,), w), (A, d(R, 8)))
    yield Function("cross_entropy", F.cross_entropy, (A, index(S(0), 8, 4)))


def shaped(a: Any) -> Any:
    return (
        *(a.view(5, 2, 4), a.unsqueeze(0), torch.transpose(a, 0, 1), a.T, a.mT, a.permute(1, 0)),
        *(a[:, 2:5], *torch.chunk(a, 2, dim=1)),
    )


def views() -> Iterator[Function]:
    yield Function("views", shaped, (ROWS,))
    yield Function("flatten", lambda a: a.flatten(), (A,))
    yield Function("squeeze", lambda a: a.squeeze(0), (d(R, 1, 8),))
    yield Function("contiguous", lambda a: a.t().contiguous(), (A,))
    yield Function("expand", lambda a: a.expand(4, 8), (d(R, 1, 8),))
    joined = lambda a, b: (torch.cat([a, b], 1), torch.stack([a, b]))
    yield Function("cat", joined, (ROWS, ROWS))
    yield Function("split", lambda a: torch.split(a, 4, dim=1), (ROWS,))
    yield Function("slice of the cut dim", lambda a: a[1:3], (A,))
    yield Function("row", lambda a: a[0], (A,))


def products() -> Iterator[Function]:
    yield Function("matmul", lambda a, b: a @ b, (ROWS, d(R, 8, 6)))
    column = (d(R, 4, 8), d(S(0), 6, 8), d(S(0), 6))
    yield Function("column-parallel", F.linear, column)
    yield Function("row-parallel", F.linear, (d(S(1), 4, 8), d(S(1), 6, 8)))
    yield Function(
        "tensor-parallel MLP",
        lambda x, g, u, w: (
            F.linear(F.silu(F.linear(x, g)) * F.linear(x, u), w).redistribute(placements=[R]) + x
        ),
        (d(R, 4, 8), d(S(0), 12, 8), d(S(0), 12, 8), d(S(1), 8, 12)),
    )
    # Eager DTensor convolves patches that do not overlap, and refuses others without padding.
    patches = lambda x, w, b: F.conv2d(x, w, b, stride=3)
    yield Function("patches", patches, (d(S(0), 4, 4, 6, 6), d(R, 6, 4, 3, 3), d(R, 6)))
    yield Function(
        "a pending sum with a whole one",
        lambda x, w: F.linear(x * 2.0, w).sum() + (x * x).sum(),
        (d(R, 4, 8), d(S(0), 6, 8)),
    )
    yield Function("embedding", F.embedding, (index(R, 4, 4), d(R, 16, 8)))
    yield Function("rows of a sharded table", F.embedding, (index(R, 16, 4), d(S(0), 16, 8)))


def changed(a: Any, b: Any) -> Any:
    c = a * 1.0
    c.add_(b)
    return c * 2.0


def without_grad(a: Any) -> Any:
    with torch.no_grad():
        b = a * 3.0
    return a * b


def asked(a: Any) -> Any:
    return a * float(len(a.placements) + a.device_mesh.ndim) if isinstance(a, DTensor) else a


def under_autocast(x: Any, w: Any) -> Any:
    with torch.autocast(DEVICE, dtype=torch.bfloat16):
        return F.linear(x, w)


def of_dtensors() -> Iterator[Function]:
    for to in ([R], [S(1)]):
        yield Function(f"to {to[0]}", lambda a, to=to: a.redistribute(placements=to), (ROWS,))
    yield Function("to_local", lambda a: a.to_local() * 2, (ROWS,))
    yield Function("full_tensor", lambda a: (a * 2).full_tensor(), (d(S(0), 5, 8, grad=False),))
    pending = d(Partial(), 4, 8, grad=False)
    yield Function("sum of sums", lambda a, b: a + b, (pending, pending))
    yield Function("exp of a sum", lambda a: torch.exp(a), (pending,))
    yield Function("an attribute", asked, (ROWS,))
    yield Function("no_grad", without_grad, (ROWS,))
    yield Function("detach", lambda a: a.detach() * a, (ROWS,))
    yield Function("in place", changed, (ROWS, ROWS), left=3)
    yield Function("zeros_like", lambda a: torch.zeros_like(a) + a, (ROWS,))
    yield Function("input returned", lambda a: (a, a * 2.0), (ROWS,))
    yield Function("autocast", under_autocast, (d(S(0), 4, 8), d(R, 6, 8)))


@dataclass
class Outcome:
    """What one side returned, its gradients, and what it said."""

    results: list[Any]
    gradients: list[Any]
    traffic: Traffic


def run(call: Callable[..., Any], inputs: Sequence[Any]) -> Outcome:
    """Call and differentiate, with cotangents that follow from the results' shapes."""
    leaves = [x.detach().clone().requires_grad_(x.requires_grad) for x in inputs]
    with Traffic() as traffic:
        found = call(*leaves)
        results = list(found) if isinstance(found, tuple | list) else [found]
        roots = [x for x in results if isinstance(x, torch.Tensor) and x.requires_grad]
        wanted = [x for x in leaves if x.requires_grad]
        given = [_cotangent(x) for x in roots]
        gradients = torch.autograd.grad(roots, wanted, given, allow_unused=True) if roots else ()
    return Outcome(results, list(gradients), traffic)


def _cotangent(x: torch.Tensor) -> torch.Tensor:
    whole = torch.randn(x.shape, generator=torch.Generator().manual_seed(7)).to(x.dtype)
    if not isinstance(x, DTensor):
        return whole.to(x.device)
    return place(whole, x.device_mesh, *(R if p.is_partial() else p for p in x.placements))


def alike(found: Any, wanted: Any, what: str, placed_as_eager: bool = True) -> None:
    """Assert that two results are one as the other, in all that a user can see."""
    assert type(found) is type(wanted), f"{what}: {type(found)}, wanted {type(wanted)}"
    if not isinstance(wanted, torch.Tensor):
        assert found == wanted, f"{what}: {found}, wanted {wanted}"
        return
    assert found.requires_grad == wanted.requires_grad, f"{what}: requires_grad is not eager's"
    assert found.dtype == wanted.dtype, f"{what}: {found.dtype}, wanted {wanted.dtype}"
    if isinstance(wanted, DTensor) and placed_as_eager:
        assert found.placements == wanted.placements, (
            f"{what}: {found.placements}, wanted {wanted.placements}"
        )
        assert (found.shape, found.stride()) == (wanted.shape, wanted.stride()), what
        if any(p.is_partial() for p in wanted.placements):
            # Only the sum is eager's: its parts may be others.
            found, wanted = found.full_tensor(), wanted.full_tensor()
        else:
            found, wanted = found._local_tensor, wanted._local_tensor
    elif isinstance(wanted, DTensor):
        found, wanted = found.full_tensor(), wanted.full_tensor()
    rough = found.dtype is torch.bfloat16
    near = 2e-2 if rough else TOLERANCE
    torch.testing.assert_close(
        found, wanted, rtol=near, atol=near, check_stride=False, msg=lambda m: f"{what}: {m}"
    )


def check(function: Function, mesh: DeviceMesh) -> None:
    inputs = [leaf.made(mesh, seed) for seed, leaf in enumerate(function.inputs)]
    jitted = thunder.jit(function.call, executors=[mdfuse_executor])
    run(jitted, inputs)  # fake DTensors say how all is placed, and "send" while they do
    eager, ours = run(function.call, inputs), run(jitted, inputs)
    as_eager = function.name not in DEVIATIONS
    for kind, found, wanted in (
        ("result", ours.results, eager.results),
        ("gradient", ours.gradients, eager.gradients),
    ):
        assert len(found) == len(wanted), f"{function.name}: {len(found)} {kind}s"
        for i, (x, y) in enumerate(zip(found, wanted, strict=True)):
            alike(x, y, f"{function.name}, {kind} {i}", as_eager)
    told = f"{function.name}: {ours.traffic}, eager has {eager.traffic}"
    assert ours.traffic.collectives <= eager.traffic.collectives, told
    assert ours.traffic.bytes <= eager.traffic.bytes + SLACK.get(function.name, 0), told
    said = explain(jitted)
    assert len(said.unfused) == function.left, f"{function.name}: {said}"
    # What is added up of a gradient is in the region of the rest.
    parts = [(region.part, region.mesh) for region in said.regions]
    if not function.left:
        assert max(map(parts.count, parts), default=1) == 1, f"{function.name}: {said}"


def on_one_axis() -> Iterator[Function]:
    for group in (pointwise, reductions, views, products, of_dtensors):
        yield from group()


def one_axis(ranks: int) -> None:
    """On GPUs all; on the CPU, where all have a launch of their own, a fixed sample."""
    for function in list(on_one_axis())[:: 1 if DEVICE == "cuda" else 16]:
        check(function, mesh_of(range(ranks)))


CASES = [Case("thunder", "functions", one_axis, 2)]
