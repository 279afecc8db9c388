"""Layouts that drawn programs do not reach: attention, other ranks, the user's own broadcasts."""

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention as attention

from thunder_mdfuse.errors import IRError
from thunder_mdfuse.ir import layout, sizes
from thunder_mdfuse.ir.layout import Decider, layouts
from thunder_mdfuse.ir.ops import OPS
from thunder_mdfuse.ir.text import parse


def lines(text, strides, decide=None, device="cpu"):
    fusion = parse(text)
    found = layouts(fusion, strides, decide or Decider(), device)
    return {str(u): f"{x.base} + {x.offset} {list(x.strides)}" for u, x in found.items()}


def test_every_stride_rule_of_the_op_table_exists():
    named = {op.strides for op in OPS.values()} - {"none"}
    assert named == set(layout._RULES)
    views = {op.name for op in OPS.values() if op.is_view}
    assert views == set(layout._VIEWS)


def test_input_strides_must_fit():
    text = "local\n%0 = input(position=0) : f32[2, 3]\nreturn %0"
    with pytest.raises(IRError, match="strides for 1 inputs are needed, found 0"):
        lines(text, [])
    with pytest.raises(IRError, match="needs 2 strides"):
        lines(text, [(1,)])


def test_a_symbol_without_a_hint_is_named():
    text = "local\n%0 = input(position=0) : f32[2, s7]\nreturn %0"
    with pytest.raises(IRError, match="depends on s7, for which no hint"):
        lines(text, [None], Decider({"s0": 1}))


BROADCAST = """\
local
%0 = input(position=0) : f32[5]
%1 = input(position=1) : f32[1, 5]
%2 = broadcast_in_dim(%0; shape=[1, 5], dims=[1]{explicit}) : f32[1, 5]
%3 = add(%2, %1) : f32[1, 5]
return %3
"""


def test_a_broadcast_is_implicit_unless_the_user_wrote_it():
    """Torch gives ``x + y`` and ``x[None] + y`` other strides, and so do we."""
    x, y = torch.randn(5), torch.randn(5, 1).t()
    implicit = lines(BROADCAST.format(explicit=""), [(1,), y.stride()])["%3"]
    explicit = lines(BROADCAST.format(explicit=", explicit=true"), [(1,), y.stride()])["%3"]
    assert implicit == f"%3 + 0 {list((x + y).stride())}"
    assert explicit == f"%3 + 0 {list((x[None] + y).stride())}"
    assert implicit != explicit


PROMOTED = """\
local
%0 = input(position=0) : f16[3, 4]
%1 = input(position=1) : f32[3, 4]
%2 = cast(%0; dtype=f32{user}) : f32[3, 4]
%3 = add(%2, %1) : f32[3, 4]
return %3
"""


def test_a_promotion_is_a_copy_on_cpu_and_not_on_cuda():
    x = torch.randn(1, 4).half().expand(3, 4)
    y = torch.randn(4, 3).t()
    strides = [x.stride(), y.stride()]
    promoted = PROMOTED.format(user="")
    assert lines(promoted, strides)["%3"] == f"%3 + 0 {list((x + y).stride())}"
    # CUDA's kernels cast what they load: they see an f16 tensor as an f32 one of its strides.
    loaded = x[:1].float().expand(3, 4) + y
    assert lines(promoted, strides, device="cuda")["%3"] == f"%3 + 0 {list(loaded.stride())}"
    users = lines(PROMOTED.format(user=", user=true"), strides, device="cuda")["%3"]
    assert users == f"%3 + 0 {list((x.float() + y).stride())}"


def test_a_number_made_a_tensor_has_storage_of_its_own():
    text = """local
    %0 = const(value='2.0', dtype=f64) : f64
    %1 = broadcast_in_dim(%0; shape=[2, 3], dims=[]) : f64[2, 3]
    return %1"""
    theirs = torch.tensor(2.0).expand(2, 3)
    assert lines(text, []) == {"%1": f"%1 + 0 {list(theirs.stride())}"}


ORDERS = {"heads first": (0, 1, 2, 3), "sequence first": (0, 2, 1, 3), "turned": (0, 1, 3, 2)}


def tensor_in(shape, order, dtype):
    memory = torch.randn([shape[d] for d in order], dtype=dtype)
    return memory.permute([order.index(d) for d in range(len(shape))])


def attention_lines(q, k, dtype, attrs, strides, device="cpu"):
    q, k = (", ".join(map(str, shape)) for shape in (q, k))
    text = f"""local
    %0 = input(position=0) : {dtype}[{q}]
    %1 = input(position=1) : {dtype}[{k}]
    %2 = input(position=2) : {dtype}[{k}]
    %3 = input(position=3) : {dtype}[{q}]
    %4 = sdpa(%0, %1, %2{attrs}) : {dtype}[{q}]
    %5 = sdpa_backward(%3, %0, %1, %2{attrs}) : {dtype}[{q}] | {dtype}[{k}] | {dtype}[{k}]
    return %4, %5, %5.1, %5.2"""
    found = lines(text, [*strides, None], device=device)
    return [found[name].split(" + 0 ")[1] for name in ("%4", "%5", "%5.1", "%5.2")]


SHAPES = [(2, 3, 4, 8), (2, 3, 1, 8), (1, 1, 4, 8), (2, 1, 4, 1)]


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", ["f32", "bf16", "f64"])
def test_attention_on_cpu(order, shape, dtype):
    theirs = {"f32": torch.float32, "bf16": torch.bfloat16, "f64": torch.float64}[dtype]
    longer = (*shape[:2], shape[2] + 1, shape[3])
    qkv = [tensor_in(s, ORDERS[order], theirs) for s in (shape, longer, longer)]
    strides = [x.stride() for x in qkv]
    for attrs, causal in (("", False), ("; is_causal=true", True)):
        leaves = [x.detach().requires_grad_() for x in qkv]
        out = attention(*leaves, is_causal=causal)
        grads = torch.autograd.grad(out, leaves, torch.ones(shape, dtype=theirs))
        eager = [str(list(x.stride())) for x in (out, *grads)]
        assert attention_lines(shape, longer, dtype, attrs, strides) == eager


@pytest.mark.parametrize("shape", [(2, 4, 8), (2, 2, 3, 4, 8), (2, 3, 0, 8)], ids=str)
def test_attention_by_matrix_products_on_cpu(shape):
    x = torch.randn(shape, requires_grad=True)
    out = attention(x, x, x)
    ours = attention_lines(shape, shape, "f32", "", [x.stride()] * 3)[0]
    assert ours == str(list(out.stride()))


def test_attention_with_dropout_on_cpu_is_row_major():
    x = torch.randn(2, 5, 3, 8).transpose(1, 2)
    strides = [x.stride()] * 3
    ours = attention_lines((2, 3, 5, 8), (2, 3, 5, 8), "f32", "; dropout_p=0.5", strides)
    assert ours[0] == str(list(attention(x, x, x, dropout_p=0.5).stride()))


def test_attention_on_cuda_follows_the_meta_functions_of_its_kernels():
    shape = (2, 3, 5, 8)
    for order in ("heads first", "sequence first"):
        q = tensor_in(shape, ORDERS[order], torch.float16).to("meta")
        like = torch.ops.aten._scaled_dot_product_flash_attention(q, q, q)[0]
        ours = attention_lines(shape, shape, "f16", "", [q.stride()] * 3, "cuda")
        assert ours == [str(list(like.stride()))] * 4
        q = q.float()
        aside = torch.ops.aten._scaled_dot_product_efficient_attention(q, q, q, None, False)[0]
        ours = attention_lines(shape, shape, "f32", "", [q.stride()] * 3, "cuda")
        assert ours == [str(list(aside.stride()))] * 4


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16", "f64"])
def test_attention_on_cuda(dtype):
    theirs = {"f32": "float32", "f16": "float16", "bf16": "bfloat16", "f64": "float64"}[dtype]
    shape = (2, 3, 64, 64)
    for order in ("heads first", "sequence first"):
        x = tensor_in(shape, ORDERS[order], getattr(torch, theirs)).cuda()
        leaves = [x.detach().requires_grad_() for _ in range(3)]
        out = attention(*leaves)
        grads = torch.autograd.grad(out, leaves, torch.ones_like(out))
        eager = [str(list(t.stride())) for t in (out, *grads)]
        assert attention_lines(shape, shape, dtype, "", [x.stride()] * 3, "cuda") == eager


UNEVEN = """\
local
%0 = input(position=0) : f32[max(0, min(3, 5 - 3*@tp)), 4, 2]
%1 = reshape(%0; shape=[max(0, min(3, 5 - 3*@tp)), 8]) : f32[max(0, min(3, 5 - 3*@tp)), 8]
%2 = neg(%1) : f32[max(0, min(3, 5 - 3*@tp)), 8]
return %1, %2
"""


def test_one_layout_for_all_ranks_of_a_team():
    """Position 2 has no rows and position 1 fewer; the layout is one, and no guard names a rank."""
    decide = Decider(positions={"tp": 3})
    found = lines(UNEVEN, [None], decide)
    assert found["%1"] == "%0 + 0 [8, 1]"
    assert found["%2"] == "%2 + 0 [8, 1]"
    assert decide.guards == []


def test_a_view_must_be_one_on_every_rank():
    """Rows that lie apart can be joined where there is one row: at the last position only."""
    text = """local
    %0 = input(position=0) : f32[max(0, min(2, 3 - 2*@tp)), 4]
    %1 = reshape(%0; shape=[4*max(0, min(2, 3 - 2*@tp))]) : f32[4*max(0, min(2, 3 - 2*@tp))]
    return %1"""
    apart = lines(text, [(9, 1)], Decider(positions={"tp": 2}))
    assert apart["%1"] == "%1 + 0 [1]"
    joined = lines(text, [(4, 1)], Decider(positions={"tp": 2}))
    assert joined["%1"] == "%0 + 0 [1]"


def test_guards_of_a_team_are_facts_without_positions():
    size = sizes.maximum(0, sizes.minimum(sizes.symbol("s0"), 7 - 4 * sizes.symbol("@tp")))
    decide = Decider({"s0": 4}, positions={"tp": 2})
    assert not decide.equal(size, 1)
    assert [str(g) for g in decide.guards] == [
        "min(s0, 7) != 1",
        "min(s0, 3) != 1",
    ]
    # Where positions disagree, position 0 answers and nothing is written down.
    assert decide.equal(size, 4)
    assert len(decide.guards) == 2


CHUNK = """\
local
%0 = input(position=0) : f32[4, 6]
%1 = chunk(%0; team='tp', ranks=2, dim=1) : f32[4, 3]
%2 = all_gather(%1; team='tp', ranks=2, dim=1, size=6) : f32[4, 6]
%3 = wait(%2) : f32[4, 6]
return %1, %3
"""


@pytest.mark.parametrize("strides", [(6, 1), (1, 4), (12, 2)])
def test_a_chunk_is_a_clone_of_a_slice(strides):
    x = torch.empty_strided((4, 6), strides)
    found = lines(CHUNK, [strides])
    assert found["%1"] == f"%1 + 0 {list(x.chunk(2, 1)[0].clone().stride())}"
    assert found["%3"] == "%3 + 0 [6, 1]"


def test_a_strided_chunk_is_a_concatenation():
    text = """local
    %0 = input(position=0) : f32[8, 3]
    %1 = chunk(%0; team='tp', ranks=2, dim=0, split=2) : f32[4, 3]
    return %1"""
    x = torch.randn(3, 8).t()
    theirs = torch.cat([x[0:2], x[4:6]])
    assert lines(text, [x.stride()])["%1"] == f"%1 + 0 {list(theirs.stride())}"


def test_a_symbolic_program_asks_little():
    """Sizes at least 2, as a specialised program has them, leave nothing to ask."""
    text = """local
    %0 = input(position=0) : f32[s0, s1, s2]
    %1 = input(position=1) : f32[s2]
    %2 = broadcast_in_dim(%1; shape=[s0, s1, s2], dims=[2]) : f32[s0, s1, s2]
    %3 = mul(%0, %2) : f32[s0, s1, s2]
    %4 = reshape(%3; shape=[s0*s1, s2]) : f32[s0*s1, s2]
    %5 = permute(%4; dims=[1, 0]) : f32[s2, s0*s1]
    %6 = exp(%5) : f32[s2, s0*s1]
    %7 = sum(%6; dims=[0]) : f32[s0*s1]
    return %7
    where 1 < s0
    where 1 < s1
    where 1 < s2"""
    fusion = parse(text)
    decide = Decider({"s0": 2, "s1": 3, "s2": 4}, fusion.guards)
    found = layouts(fusion, [None, None], decide)
    assert found[fusion.outputs[0].value].strides == (1,)
    assert decide.guards == []


def test_strides_may_be_symbols_too():
    text = """local
    %0 = input(position=0) : f32[4, 6]
    %1 = reshape(%0; shape=[24]) : f32[24]
    %2 = reshape(%0; shape=[4, 2, 3]) : f32[4, 2, 3]
    return %1, %2"""
    apart, even = Decider({"t": 8}), Decider({"t": 6})
    assert list(lines(text, [(sizes.symbol("t"), 1)], apart).values()) == [
        "%0 + 0 [t, 1]",
        "%1 + 0 [1]",
        "%0 + 0 [t, 3, 1]",
    ]
    assert list(map(str, apart.guards)) == ["t != 6"]
    assert list(lines(text, [(sizes.symbol("t"), 1)], even).values()) == [
        "%0 + 0 [t, 1]",
        "%0 + 0 [1]",
        "%0 + 0 [6, 3, 1]",
    ]
    assert list(map(str, even.guards)) == ["t == 6"]


GLOBAL = """\
global mesh[tp=2]
%0 = input(position=0) : f32[8, 6] @ [Shard(0)]
%1 = reshard(%0; placements=[Replicate]) : f32[8, 6] @ [Replicate]
%2 = to_local(%0; shape=[4, 6]) : f32[4, 6]
%3 = from_local(%2; shape=[8, 6], placements=[Shard(0)]) : f32[8, 6] @ [Shard(0)]
return %1, %3
"""


def test_changes_of_placement_keep_the_order_of_dims():
    assert lines(GLOBAL, [(1, 8)]) == {
        "%0": "%0 + 0 [1, 8]",
        "%1": "%1 + 0 [1, 8]",
        "%2": "%2 + 0 [1, 4]",
        "%3": "%3 + 0 [1, 8]",
    }
