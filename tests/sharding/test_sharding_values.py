"""Particular programs on simulated meshes, against torch on the full tensors."""

import math
import re
import time

import pytest
import torch
from sharding.simulated import assemble, coordinates, distribute, evaluate, run

from thunder_mdfuse.ir.graph import Use
from thunder_mdfuse.ir.ops import row
from thunder_mdfuse.ir.text import parse, render
from thunder_mdfuse.ir.verify import verify
from thunder_mdfuse.schedule.program import InputClass, plan_program
from thunder_mdfuse.schedule.target import H200
from thunder_mdfuse.sharding.localize import localize
from thunder_mdfuse.sharding.propagate import propagate
from thunder_mdfuse.sharding.reshard import check, reshard

F = torch.nn.functional


def results(text: str, *inputs: torch.Tensor, symbols: dict[str, int] | None = None):
    """The full tensors that the program ``text`` computes; its inputs are full tensors, or local
    ones, the same everywhere, where they are plain."""
    explicit = check(verify(reshard(propagate(parse(text))), "reshard"))
    local = verify(localize(explicit), "localize")
    mesh = explicit.mesh
    held = []
    for i, x in enumerate(inputs):
        places = explicit.nodes[i].types[0].placements
        plain = dict.fromkeys(coordinates(mesh), x)
        held.append(plain if places is None else distribute(x, places, mesh, seed=i))
    found = run(local, held, evaluate, symbols)
    outputs = [explicit.tensor(o.value).placements for o in explicit.outputs]
    return [
        part if places is None else assemble(part, places, mesh)
        for part, places in zip(found, outputs, strict=True)
    ]


def whole_numbers(*shape: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randint(-4, 5, shape, generator=generator).double()


ROWS = ["Shard(0), Replicate", "Replicate, Shard(0)", "Shard(0), Shard(0)", "Shard(0), Shard(1)"]


# Even, uneven, and with empty shards where both axes cut the rows.
COUNTS = [12, 13, 7]


@pytest.mark.parametrize("rows", COUNTS)
@pytest.mark.parametrize("places", ROWS)
def test_row_parallel_embedding(places, rows):
    index, weight = torch.tensor([[0, 7, 3], [11, 4, 8]]) % rows, whole_numbers(rows, 4)
    text = f"""global mesh[dp=2, tp=3]
        %0 = input(position=0) : i64[2, 3] @ [Replicate, Replicate]
        %1 = input(position=1) : f64[{rows}, 4] @ [{places}]
        %2 = embedding(%0, %1; padding_idx=3) : f64[2, 3, 4]
        return %2"""
    assert torch.equal(results(text, index, weight)[0], F.embedding(index, weight))
    local = localize(reshard(propagate(parse(text))))
    gathers = [n.op for n in local.nodes if n.op == "all_gather"]
    assert bool(gathers) is (rows == 7 and places == "Shard(0), Shard(0)")


@pytest.mark.parametrize("rows", COUNTS)
@pytest.mark.parametrize("places", ROWS)
def test_embedding_gradient_in_blocks_of_rows(places, rows):
    index, grad = torch.tensor([[0, 7, 3], [11, 7, 8]]) % rows, whole_numbers(2, 3, 4)
    text = f"""global mesh[dp=2, tp=3]
        %0 = input(position=0) : f64[2, 3, 4] @ [Replicate, Replicate]
        %1 = input(position=1) : i64[2, 3] @ [Replicate, Replicate]
        %2 = embedding_backward(%0, %1; rows={rows}, padding_idx=3) : f64[{rows}, 4] @ [{places}]
        return %2"""
    expected = torch.ops.aten.embedding_dense_backward(grad, index, rows, 3, False)
    assert torch.equal(results(text, grad, index)[0], expected)


@pytest.mark.parametrize("size", [8, 10])
@pytest.mark.parametrize("op", ["gather", "take_along_axis"])
def test_gather_along_a_sharded_dim_never_gathers_the_table(op, size):
    x, index = whole_numbers(5, size), torch.tensor([[3], [0], [7], [size - 1], [2]])
    text = f"""global mesh[dp=2, tp=4]
        %0 = input(position=0) : f64[5, {size}] @ [Shard(0), Shard(1)]
        %1 = input(position=1) : i64[5, 1] @ [Shard(0), Replicate]
        %2 = {op}(%0, %1; dim=1) : f64[5, 1]
        return %2"""
    local = localize(reshard(propagate(parse(text))))
    assert not [n.op for n in local.nodes if n.op.startswith("all_")]
    assert torch.equal(results(text, x, index)[0], torch.gather(x, 1, index))


HEADS = ["Shard(1), Replicate", "Shard(0), Shard(1)", "Shard(2), Shard(1)", "Replicate, Shard(3)"]


@pytest.mark.parametrize("places", HEADS)
@pytest.mark.parametrize("groups", [4, 2])
def test_attention(places, groups):
    q, k, v = (torch.randn(2, h, n, 4).double() for h, n in ((4, 6), (groups, 5), (groups, 5)))
    text = f"""global mesh[dp=2, tp=2]
        %0 = input(position=0) : f64[2, 4, 6, 4] @ [{places}]
        %1 = input(position=1) : f64[2, {groups}, 5, 4] @ [{places}]
        %2 = input(position=2) : f64[2, {groups}, 5, 4] @ [{places}]
        %3 = sdpa(%0, %1, %2; enable_gqa=true) : f64[2, 4, 6, 4]
        return %3"""
    expected = F.scaled_dot_product_attention(q, k, v, enable_gqa=True)
    assert torch.allclose(results(text, q, k, v)[0], expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    "places", ["Shard(0), Shard(1)", "Shard(0), Shard(0)", "Shard(1), Replicate"]
)
def test_shards_draw_what_the_whole_would(places):
    text = """global mesh[dp=2, tp=2]
        %0 = input(position=0) : i64[] @ [Replicate, Replicate]
        %1 = uniform(%0, %0; shape=[5, 6], dtype=f32) : f32[5, 6] @ [PLACES]
        return %1"""
    seed = torch.tensor(3)
    (whole,) = results(text.replace("PLACES", "Replicate, Replicate"), seed)
    (found,) = results(text.replace("PLACES", places), seed)
    assert whole.unique().numel() > 20
    assert torch.equal(found, whole)


def test_symbolic_sizes_uneven_and_empty():
    text = """global mesh[dp=2, tp=4]
        %0 = input(position=0) : f64[s0, 4*s1] @ [Shard(0), Shard(1)]
        %1 = reshape(%0; shape=[s0, 4, s1]) : f64[s0, 4, s1]
        %2 = amax(%1; dims=[0]) : f64[4, s1]
        %3 = sum(%1; dims=[1, 2]) : f64[s0] @ [Shard(0), Shard(0)]
        return %2, %3"""
    for s0, s1 in ((5, 3), (1, 2), (8, 1)):
        x = whole_numbers(s0, 4 * s1)
        first, second = results(text, x, symbols={"s0": s0, "s1": s1})
        assert torch.equal(first, x.reshape(s0, 4, s1).amax(0))
        assert torch.equal(second, x.sum(1))


def test_variance_over_a_sharded_uneven_dim():
    x = whole_numbers(4, 5)
    text = """global mesh[tp=4]
        %0 = input(position=0) : f64[4, 5] @ [Shard(1)]
        %1 = sum(%0; dims=[1]) : f64[4]
        %2 = const(value='5', dtype=i64) : i64
        %3 = div(%1, %2) : f64[4]
        %4 = broadcast_in_dim(%3; shape=[4, 5], dims=[0]) : f64[4, 5]
        %5 = sub(%0, %4) : f64[4, 5]
        %6 = mul(%5, %5) : f64[4, 5]
        %7 = sum(%6; dims=[1]) : f64[4]
        %8 = const(value='4', dtype=i64) : i64
        %9 = div(%7, %8) : f64[4] @ [Replicate]
        return %9"""
    assert torch.allclose(results(text, x)[0], x.var(1), rtol=1e-13)


def test_local_tensors_in_and_out():
    text = """global mesh[dp=2]
        %0 = input(position=0) : f64[3, 4]
        %1 = from_local(%0; shape=[6, 4], placements=[Shard(0)]) : f64[6, 4]
        %2 = sum(%1; dims=[0]) : f64[4] @ [Replicate]
        %3 = to_local(%2; shape=[4]) : f64[4]
        %4 = neg(%3) : f64[4]
        return %4, %1"""
    x = whole_numbers(3, 4)
    local, whole = results(text, x)
    assert all(torch.equal(part, -2 * x.sum(0)) for part in local.values())
    assert torch.equal(whole, torch.cat([x, x]))


# By what is added: plain tensors, plain tensors in a wider dtype, and three of them where what lies
# between is rounded; then where a wider sum is wanted as it is, where something else reads one of
# them, and where one leaves.
PLAIN_SUMS = {
    "plain": ("%8 = add(%6, %7) : f32[8, 4]\nreturn %8", 1, "f32"),
    "wide": (
        "%8 = cast(%6; dtype=f64) : f64[8, 4]\n%9 = cast(%7; dtype=f64) : f64[8, 4]\n"
        "%10 = sub(%8, %9) : f64[8, 4]\n%11 = cast(%10; dtype=f32) : f32[8, 4]\nreturn %11",
        1,
        "f32",
    ),
    "three": (
        "%8 = cast(%6; dtype=f64) : f64[8, 4]\n%9 = cast(%7; dtype=f64) : f64[8, 4]\n"
        "%10 = add(%8, %9) : f64[8, 4]\n%11 = cast(%10; dtype=f32) : f32[8, 4]\n"
        "%12 = cast(%11; dtype=f64) : f64[8, 4]\n%13 = cast(%6.; dtype=f64) : f64[8, 4]\n"
        "%14 = add(%12, %13) : f64[8, 4]\n%15 = cast(%14; dtype=f32) : f32[8, 4]\nreturn %15",
        1,
        "f32",
    ),
    "kept wide": (
        "%8 = cast(%6; dtype=f64) : f64[8, 4]\n%9 = cast(%7; dtype=f64) : f64[8, 4]\n"
        "%10 = sub(%8, %9) : f64[8, 4]\nreturn %10",
        2,
        "f32",
    ),
    "read": ("%8 = add(%6, %7) : f32[8, 4]\n%9 = mul(%6, %8) : f32[8, 4]\nreturn %9", 2, "f32"),
    "left": ("%8 = add(%6, %7) : f32[8, 4]\nreturn %8, %7", 2, "f32"),
}


@pytest.mark.parametrize("name", PLAIN_SUMS)
def test_plain_sums_are_added_before_they_are_reduced(name):
    rest, collectives, sent = PLAIN_SUMS[name]
    third = name == "three"
    more = """
        %20 = input(position=2) : f32[8, 6, 4] @ [Shard(1)]
        %21 = sum(%20; dims=[1]) : f32[8, 4] @ [Partial(sum)]
        %23 = reshard(%21; placements=[Replicate]) : f32[8, 4] @ [Replicate]
        %22 = to_local(%23; shape=[8, 4]) : f32[8, 4]"""
    text = f"""global mesh[tp=2]
        %0 = input(position=0) : f32[8, 6, 4] @ [Shard(1)]
        %1 = input(position=1) : f32[8, 6, 4] @ [Shard(1)]{more if third else ""}
        %2 = sum(%0; dims=[1]) : f32[8, 4] @ [Partial(sum)]
        %3 = sum(%1; dims=[1]) : f32[8, 4] @ [Partial(sum)]
        %4 = reshard(%2; placements=[Replicate]) : f32[8, 4] @ [Replicate]
        %5 = reshard(%3; placements=[Replicate]) : f32[8, 4] @ [Replicate]
        %6 = to_local(%4; shape=[8, 4]) : f32[8, 4]
        %7 = to_local(%5; shape=[8, 4]) : f32[8, 4]
        {rest.replace("%6.", "%22")}"""
    names = list(dict.fromkeys(re.findall(r"^ *(%\d+) =", text, re.MULTILINE)))
    for number, old in enumerate(names):
        text = re.sub(rf"{old}\b", f"@{number}", text)
    text = re.sub(r"@(\d)", r"%\1", text)
    given = [whole_numbers(8, 6, 4).float() * (i + 1) for i in range(2 + third)]
    x, y = (g.sum(1) for g in given[:2])
    wanted = {
        "plain": x + y,
        "wide": x - y,
        "kept wide": (x - y).double(),
        "three": x + y + given[-1].sum(1),
        "read": x * (x + y),
        "left": x + y,
    }[name]
    found = results(text, *given)[0]
    assert all(torch.equal(part, wanted) for part in found.values())
    local = localize(reshard(propagate(parse(text))))
    starts = [i for i, n in enumerate(local.nodes) if n.op == "all_reduce"]
    # Small ones that are not added are sent together.
    values = sum(math.prod(local.tensor(Use(i)).shape) for i in starts) // 32
    assert values == collectives and str(local.tensor(Use(starts[0])).dtype) == sent


def test_a_large_mesh_is_planned_in_a_second():
    layer = """
        %{a} = cast(%{x}; dtype=f32) : f32[s0, 512, 1024]
        %{b} = mul(%{a}, %{a}) : f32[s0, 512, 1024]
        %{c} = sum(%{b}; dims=[2]) : f32[s0, 512]
        %{d} = rsqrt(%{c}) : f32[s0, 512]
        %{e} = broadcast_in_dim(%{d}; shape=[s0, 512, 1024], dims=[0, 1]) : f32[s0, 512, 1024]
        %{f} = mul(%{a}, %{e}) : f32[s0, 512, 1024]
        %{g} = cast(%{f}; dtype=bf16) : bf16[s0, 512, 1024]
        %{h} = linear(%{g}, %1) : bf16[s0, 512, 4096]
        %{i} = exp(%{h}) : bf16[s0, 512, 4096]
        %{j} = linear(%{i}, %2) : bf16[s0, 512, 1024]
        %{k} = add(%{x}, %{j}) : bf16[s0, 512, 1024]"""
    lines = [
        "global mesh[dp=64, cp=8, tp=8]",
        "%0 = input(position=0) : bf16[s0, 512, 1024] @ [Shard(0), Shard(1), Replicate]",
        "%1 = input(position=1) : bf16[4096, 1024] @ [Replicate, Replicate, Shard(0)]",
        "%2 = input(position=2) : bf16[1024, 4096] @ [Replicate, Replicate, Shard(1)]",
    ]
    last = 0
    for i in range(9):
        first = 3 + 11 * i
        lines.append(layer.format(x=last, **{c: first + n for n, c in enumerate("abcdefghijk")}))
        last = first + 10
    fusion = parse("\n".join([*lines, f"return %{last}"]))
    assert len(fusion.nodes) == 102
    begin = time.process_time()
    local = localize(reshard(propagate(fusion)))
    assert time.process_time() - begin < 1.0
    assert [n.op for n in local.nodes].count("all_reduce") == 9


def test_what_follows_from_numbers_alone_leaves_as_a_plain_tensor():
    fusion = parse(
        """global mesh[tp=2]
        %0 = input(position=0) : f64[]
        %1 = input(position=1) : f64[4] @ [Shard(0)]
        %2 = neg(%0) : f64[]
        %3 = broadcast_in_dim(%2; shape=[4], dims=[]) : f64[4]
        %4 = mul(%1, %3) : f64[4]
        return %2, %0, %4"""
    )
    explicit = reshard(propagate(fusion))
    types = [explicit.tensor(o.value).placements for o in explicit.outputs]
    assert [t is None for t in types] == [True, True, False]
    local = localize(explicit)
    assert local.outputs[1].value.node == 0, "an input that is returned stays that input"
    x, scale = whole_numbers(4), torch.tensor(3.0).double()
    assert torch.equal(results(render(fusion), scale, x)[2], -3 * x)


def wide_program(mesh: str, rows: int) -> str:
    """Uneven and strided shards, a dim on two axes, reductions, an embedding, a cross entropy."""
    return f"""global mesh[{mesh}]
        %0 = input(position=0) : f32[{rows}, 1000] @ [Shard(0), Shard(0), Shard(1)]
        %1 = input(position=1) : i64[{rows}, 1] @ [Shard(0), Replicate, Replicate]
        %2 = input(position=2) : f32[{rows}] @ [StridedShard(0, 8), Shard(0), Replicate]
        %3 = amax(%0; dims=[1]) : f32[{rows}]
        %4 = broadcast_in_dim(%3; shape=[{rows}, 1000], dims=[0]) : f32[{rows}, 1000]
        %5 = sub(%0, %4) : f32[{rows}, 1000]
        %6 = exp(%5) : f32[{rows}, 1000]
        %7 = sum(%6; dims=[1]) : f32[{rows}]
        %8 = gather(%5, %1; dim=1) : f32[{rows}, 1]
        %9 = squeeze(%8; dims=[1]) : f32[{rows}]
        %10 = sub(%9, %7) : f32[{rows}]
        %11 = add(%10, %2) : f32[{rows}] @ [Replicate, Replicate, Replicate]
        %12 = argmax(%0; dim=1) : i64[{rows}]
        return %11, %12"""


def test_nothing_in_a_program_grows_with_the_number_of_ranks():
    """8 and 4,096 ranks: texts differ by digits, and plans have as many parts."""
    found, seconds = {}, {}
    for name, mesh, rows in (
        ("few", "dp=2, cp=2, tp=2", 999),
        ("many", "dp=64, cp=8, tp=8", 999),
    ):
        begin = time.process_time()
        local = localize(reshard(propagate(parse(wide_program(mesh, rows)))))
        seconds[name] = time.process_time() - begin
        classes = [InputClass((1000, 1)), InputClass((1, 1)), InputClass((1,))]
        symbols = {f"@{axis.name}": 0 for axis in local.mesh.axes}
        plan = plan_program(local, classes, H200, symbols)
        found[name] = len(local.nodes), len(plan.steps), len(str(plan)) + len(render(local))
    assert seconds["many"] < min(2 * seconds["few"] + 0.2, 3), seconds
    (nodes, steps, text), few = found["many"], found["few"]
    assert (nodes, steps) == few[:2]
    assert text < 1.1 * few[2]


def one_by_one(a: torch.Tensor, b: torch.Tensor, ends: torch.Tensor | None = None) -> torch.Tensor:
    """A grouped product, group by group."""
    if ends is None:
        return torch.bmm(a, b)
    spans = [slice(*span) for span in zip([0, *ends[:-1]], ends, strict=True)]
    if a.ndim == b.ndim == 2:
        return torch.stack([a[:, s] @ b[s] for s in spans])
    if a.ndim == 2:
        return torch.cat([a[s] @ b[g] for g, s in enumerate(spans)])
    return torch.cat([a[g] @ b[:, s] for g, s in enumerate(spans)], 1)


# (a, b, placements of both, whether the result is a pending sum): two or three dims each; b sharded
# by columns, both by the inner dim, both by groups.
GROUPED = [
    ((6, 4), (3, 4, 5), "Replicate; Shard(2)", False),
    ((6, 4), (3, 4, 5), "Shard(1); Shard(1)", True),
    ((6, 4), (3, 4, 5), "Shard(0); Shard(0)", False),  # rows of groups lie anywhere: gathered
    ((3, 5, 4), (4, 6), "Shard(1); Replicate", False),
    ((3, 5, 4), (4, 6), "Shard(2); Shard(0)", True),
    ((5, 6), (6, 4), "Shard(0); Shard(1)", False),
    ((3, 5, 4), (3, 4, 2), "Shard(0); Shard(0)", False),
    ((3, 5, 4), (3, 4, 2), "Partial(sum); Replicate", True),
]


@pytest.mark.parametrize(("a", "b", "places", "pending"), GROUPED)
def test_grouped_products(a, b, places, pending):
    left, right = (p.strip() for p in places.split(";"))
    x, y = whole_numbers(*a).float(), whole_numbers(*b).float()
    flat = 2 in (len(a), len(b))
    offsets = torch.tensor([2, 3, 6], dtype=torch.int32)
    given = (x, y, offsets) if flat else (x, y)
    expected = one_by_one(*given)
    text = f"""global mesh[tp=2]
        %0 = input(position=0) : f32{list(a)} @ [{left}]
        %1 = input(position=1) : f32{list(b)} @ [{right}]
        {"%2 = input(position=2) : i32[3] @ [Replicate]" if flat else ""}
        %{2 + flat} = grouped_mm(%0, %1{", %2" if flat else ""}) : f32{list(expected.shape)}
        return %{2 + flat}"""
    torch.testing.assert_close(results(text, *given)[0], expected)
    placed = propagate(parse(text))
    (place,) = placed.tensor(placed.outputs[0].value).placements
    assert (str(place) == "Partial(sum)") == pending


# Along the sharded dim of 16 or 18 rows over 4 ranks: what is sent for even and for uneven shards.
ALONG_A_SHARDED_DIM = {
    "slice": ("slice(%0; starts=[1, 0], ends=[9, 8], steps=[1, 1])", "f32[8, 8]", "gathers"),
    "pad": ("pad(%0, %1; low=[1, 0], high=[1, 0])", "f32[{n} + 2, 8]", "gathers"),
    "cat": ("cat(%0, %0; dim=0)", "f32[2 * {n}, 8]", "gathers"),
    "sort": ("sort(%0; dim=0)", "f32[{n}, 8] | i64[{n}, 8]", "gathers"),
    "topk": ("topk(%0; k=2, dim=0)", "f32[2, 8] | i64[2, 8]", "gathers"),
    "cumsum": ("cumsum(%0; dim=0)", "f32[{n}, 8]", "gathers"),
    "flip": ("flip(%0; dims=[0])", "f32[{n}, 8]", "exchanges"),
    "reshape": ("reshape(%0; shape=[8 * {n}])", "f32[8 * {n}]", "keeps"),
}


@pytest.mark.parametrize("rows", [16, 18])
@pytest.mark.parametrize("name", ALONG_A_SHARDED_DIM)
def test_what_works_along_a_sharded_dim_sends(name, rows):
    """What the README says of it."""
    node, result, even = ALONG_A_SHARDED_DIM[name]
    for old, new in (("8 * {n}", 8 * rows), ("2 * {n}", 2 * rows), ("{n} + 2", rows + 2)):
        node, result = node.replace(old, str(new)), result.replace(old, str(new))
    text = f"""global mesh[tp=4]
        %0 = input(position=0) : f32[{rows}, 8] @ [Shard(0)]
        %1 = const(value='0.0', dtype=f32) : f32
        %2 = {node} : {result.replace("{n}", str(rows))}
        return %2"""
    local = localize(reshard(propagate(parse(text))))
    sent = [n.op for n in local.nodes if row(n.op).kind == "start"]
    kinds = {"gathers": ["all_gather"], "exchanges": ["permute_ranks"], "keeps": []}
    assert sent == kinds[even if rows == 16 else "gathers"]


# (placements of x, w and bias, groups, the collectives): batch, channels out, channels in, and one
# each of two groups, which keep their channels together.
CONVOLVED = [
    ("Shard(0); Replicate; Replicate", 1, []),
    ("Replicate; Shard(0); Shard(0)", 1, []),
    ("Shard(1); Shard(1); Replicate", 1, ["all_reduce"]),
    ("Shard(2); Replicate; Replicate", 1, ["all_gather"]),
    ("Shard(1); Replicate; Replicate", 2, ["all_gather"]),
]


@pytest.mark.parametrize(("places", "groups", "sent"), CONVOLVED)
def test_convolution(places, groups, sent):
    x, w, b = whole_numbers(2, 4, 4, 5), whole_numbers(6, 4 // groups, 3, 2), whole_numbers(6)
    on = [p.strip() for p in places.split(";")]
    expected = F.conv2d(x, w, b, (1, 2), (1, 0), groups=groups)
    text = f"""global mesh[tp=2]
        %0 = input(position=0) : f64{list(x.shape)} @ [{on[0]}]
        %1 = input(position=1) : f64{list(w.shape)} @ [{on[1]}]
        %2 = input(position=2) : f64[6] @ [{on[2]}]
        %3 = convolution(%0, %1, %2; stride=[1, 2], padding=[1, 0], dilation=[1, 1], groups={groups}
        return %3"""
    text = text.replace(f"groups={groups}", f"groups={groups}) : f64{list(expected.shape)}")
    torch.testing.assert_close(results(text, x, w, b)[0], expected)
    starts = [n.op for n in localize(reshard(propagate(parse(text)))).nodes]
    placed = propagate(parse(text))
    (place,) = placed.tensor(placed.outputs[0].value).placements
    found = [op for op in starts if row(op).kind == "start"]
    assert found == (sent if str(place) != "Partial(sum)" else [])
    assert (str(place) == "Partial(sum)") == (sent == ["all_reduce"])


def test_windows_and_parts_of_floats():
    x = whole_numbers(5, 9) * 0.3
    text = """global mesh[tp=4]
        %0 = input(position=0) : f64[5, 9] @ [Shard(0)]
        %1 = unfold(%0; dim=1, size=3, step=2) : f64[5, 4, 3]
        %2 = mantissa(%1) : f64[5, 4, 3]
        %3 = exponent(%0) : i32[5, 9]
        return %2, %3"""
    mantissa, exponent = results(text, x)
    assert torch.equal(mantissa, torch.frexp(x.unfold(1, 3, 2)).mantissa)
    assert torch.equal(exponent, torch.frexp(x).exponent)
    local = localize(reshard(propagate(parse(text))))
    assert not [n.op for n in local.nodes if row(n.op).kind == "start"]
