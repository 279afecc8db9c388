"""The IR contract: programs that the design promises, written as text.

Each parses, verifies and prints back as it was written; its layouts are as expected; and the
reference backend does with it what the user's eager function does.
"""

import torch

from thunder_mdfuse.ir.layout import Decider, layouts
from thunder_mdfuse.ir.text import parse, render
from thunder_mdfuse.ir.verify import verify
from thunder_mdfuse.reference import bind, run_reference


def program(text):
    """The fusion that ``text`` writes, which must be its canonical text."""
    fusion = verify(parse(text), "parse")
    assert render(fusion) == text
    assert parse(render(fusion)) == fusion
    assert parse(render(fusion)).key == fusion.key
    return fusion


def places(fusion, strides, **hints):
    """One line for each value: the storage it is in, the offset there, its strides."""
    decide = Decider(hints, fusion.guards)
    found = layouts(fusion, strides, decide, "cpu")
    lines = [f"{u}: {x.base} + {x.offset} {list(x.strides)}" for u, x in found.items()]
    return lines, [str(guard) for guard in decide.guards]


def run(fusion, *inputs, **symbols):
    return run_reference(fusion, inputs, bind(fusion, inputs, symbols))


def same(ours, theirs):
    torch.testing.assert_close(ours, theirs, rtol=0, atol=0, equal_nan=True)
    assert ours.stride() == theirs.stride()


def shares(a, b):
    return a.untyped_storage().data_ptr() == b.untyped_storage().data_ptr()


SYMBOLIC = """\
global
%0 = input(position=0) : f32[s0, s1]
%1 = input(position=1) : f32[s2, s1]
%2 = cat(%0, %1; dim=0) : f32[s0 + s2, s1]
%3 = reshape(%2; shape=[s0*s1 + s1*s2]) : f32[s0*s1 + s1*s2]
return %3
where 1 < s1
"""


def test_symbolic_cat_and_reshape():
    fusion = program(SYMBOLIC)
    lines, guards = places(fusion, [None, None], s0=2, s1=3, s2=4)
    assert lines == [
        "%0: %0 + 0 [s1, 1]",
        "%1: %1 + 0 [s1, 1]",
        "%2: %2 + 0 [s1, 1]",
        "%3: %2 + 0 [1]",
    ]
    assert guards == []
    for rows, more in ((2, 4), (1, 1), (0, 3)):
        a, b = torch.randn(rows, 3), torch.randn(more, 3)
        (out,) = run(fusion, a, b)
        same(out, torch.cat((a, b)).reshape(-1))


TRANSPOSE_AND_WRITE = """\
global
%0 = input(position=0) : f32[2, 3]
%1 = permute(%0; dims=[1, 0]) : f32[3, 2]
%2 = const(value='1.0', dtype=f64) : f64
%3 = add(%0, %2) : f32[2, 3]
%4 = reshape(%1; shape=[6]) : f32[6]
return %1, %4, %3 -> %0
"""


def test_a_transpose_is_returned_beside_a_write_to_its_storage():
    fusion = program(TRANSPOSE_AND_WRITE)
    lines, _ = places(fusion, [None])
    assert lines[1:] == [
        "%1: %0 + 0 [1, 3]",
        "%3: %3 + 0 [3, 1]",
        "%4: %4 + 0 [1]",
    ]

    def eager(x):
        turned, y = x.t(), x + 1
        flat = turned.reshape(6)
        return turned, flat, x.copy_(y)

    x, theirs_x = torch.arange(6.0).view(2, 3), torch.arange(6.0).view(2, 3)
    turned, flat, written = run(fusion, x)
    for ours, theirs in zip((turned, flat, written), eager(theirs_x), strict=True):
        same(ours, theirs)
    # The view shows what was written later; the copy keeps what was there before.
    assert written is x
    assert shares(turned, x)
    assert not shares(flat, x)


ALIAS = """\
local
%0 = input(position=0) : f32[4, 6]
%1 = slice(%0; starts=[1, 0], ends=[4, 6], steps=[2, 3]) : f32[2, 2]
%2 = squeeze(%1; dims=[]) : f32[2, 2]
%3 = broadcast_in_dim(%2; shape=[2, 1, 2], dims=[0, 2]) : f32[2, 1, 2]
return %0, %3
"""


def test_an_output_aliases_an_input():
    fusion = program(ALIAS)
    lines, _ = places(fusion, [(1, 4)])
    assert lines[-1] == "%3: %0 + 1 [2, 24, 12]"
    x = torch.randn(6, 4).t()
    whole, part = run(fusion, x)
    theirs = x[1:4:2, ::3].unsqueeze(1)
    assert whole is x
    same(part, theirs)
    assert part.data_ptr() == theirs.data_ptr()


SEVERAL = """\
global
%0 = input(position=0) : f32[3, 5]
%1 = var_mean(%0; dims=[1], correction=1.0) : f32[3] | f32[3]
%2 = topk(%0; k=2, dim=1) : f32[3, 2] | i64[3, 2]
return %1, %1.1, %2, %2.1
"""


def test_several_results():
    fusion = program(SEVERAL)
    lines, _ = places(fusion, [(1, 3)])
    assert lines[1:] == [
        "%1: %1 + 0 [1]",
        "%1.1: %1.1 + 0 [1]",
        "%2: %2 + 0 [2, 1]",
        "%2.1: %2.1 + 0 [2, 1]",
    ]
    x = torch.randn(3, 5)
    theirs = (*torch.var_mean(x, 1), *x.topk(2, 1))
    for ours, their in zip(run(fusion, x), theirs, strict=True):
        same(ours, their)


CASTS = """\
global
%0 = input(position=0) : bf16[8]
%1 = cast(%0; dtype=f32) : f32[8]
%2 = const(value='0.1', dtype=f64) : f64
%3 = mul(%1, %2) : f32[8]
%4 = cast(%3; dtype=bf16) : bf16[8]
%5 = cast(%4; dtype=f32) : f32[8]
%6 = cast(%5; dtype=f16, user=true) : f16[8]
%7 = cast(%6; dtype=f32, user=true) : f32[8]
return %7
"""


def test_a_users_cast_beside_a_promotion():
    fusion = program(CASTS)
    kinds = [node.attrs.user for node in fusion.nodes if node.op == "cast"]
    assert kinds == [False, False, False, True, True]
    x = torch.randn(8).bfloat16()
    (out,) = run(fusion, x)
    same(out, (x.float() * 0.1).bfloat16().float().half().float())


DROPOUT = """\
global
%0 = input(position=0) : f32[64, 32]
%1 = rng_state(draw=0, count=2048) : i64[] | i64[]
%2 = uniform(%1, %1.1; shape=[64, 32], dtype=f32) : f32[64, 32]
%3 = const(value='0.25', dtype=f64) : f64
%4 = ge(%2, %3) : bool[64, 32]
%5 = const(value='0.0', dtype=f64) : f64
%6 = where(%4, %0, %5) : f32[64, 32]
%7 = const(value='1.3333333333333333', dtype=f64) : f64
%8 = mul(%6, %7) : f32[64, 32]
return %8, %1, %1.1
"""
DROPOUT_BACKWARD = """\
global
%0 = input(position=0) : f32[64, 32]
%1 = input(position=1) : i64[]
%2 = input(position=2) : i64[]
%3 = const(value='1.3333333333333333', dtype=f64) : f64
%4 = mul(%0, %3) : f32[64, 32]
%5 = uniform(%1, %2; shape=[64, 32], dtype=f32) : f32[64, 32]
%6 = const(value='0.25', dtype=f64) : f64
%7 = ge(%5, %6) : bool[64, 32]
%8 = const(value='0.0', dtype=f64) : f64
%9 = where(%7, %4, %8) : f32[64, 32]
return %9
"""


def test_dropout_forward_and_backward_draw_one_mask():
    forward, backward = program(DROPOUT), program(DROPOUT_BACKWARD)
    x, grad = torch.rand(64, 32) + 1, torch.rand(64, 32) + 1
    y, seed, offset = run(forward, x)
    (grad_x,) = run(backward, grad, seed, offset)
    kept = y != 0
    assert torch.equal(kept, grad_x != 0)
    assert abs(kept.float().mean() - 0.75) < 0.05
    same(y, torch.where(kept, x, 0.0) * (1 / 0.75))
    same(grad_x, torch.where(kept, grad * (1 / 0.75), 0.0))
    again, _, _ = run(forward, x)
    assert not torch.equal(kept, again != 0)


PERMUTED = """\
local
%0 = input(position=0) : f32[2, 3, 4]
%1 = exp(%0) : f32[2, 3, 4]
%2 = permute(%1; dims=[2, 0, 1]) : f32[4, 2, 3]
%3 = copy(%2; order=[1, 2, 0]) : f32[4, 2, 3]
%4 = add(%2, %3) : f32[4, 2, 3]
return %1, %2, %3, %4
"""


def test_outputs_with_permuted_strides():
    fusion = program(PERMUTED)
    lines, _ = places(fusion, [(1, 2, 6)])
    assert lines[1:] == [
        "%1: %1 + 0 [1, 2, 6]",
        "%2: %1 + 0 [6, 1, 2]",
        "%3: %3 + 0 [1, 12, 4]",
        "%4: %4 + 0 [6, 1, 2]",
    ]
    x = torch.randn(4, 3, 2).permute(2, 1, 0)
    y = x.exp()
    turned = y.permute(2, 0, 1)
    ordered = turned.permute(1, 2, 0).contiguous().permute(2, 0, 1)
    for ours, theirs in zip(run(fusion, x), (y, turned, ordered, turned + ordered), strict=True):
        same(ours, theirs)


FORWARD = """\
global
%0 = input(position=0) : f32[4, 3]
%1 = input(position=1) : f32[4]
%2 = permute(%0; dims=[1, 0]) : f32[3, 4]
%3 = broadcast_in_dim(%1; shape=[3, 4], dims=[1]) : f32[3, 4]
%4 = mul(%2, %3) : f32[3, 4]
%5 = exp(%4) : f32[3, 4]
return %5, %2
"""
BACKWARD = """\
global
%0 = input(position=0) : f32[3, 4]
%1 = input(position=1) : f32[3, 4]
%2 = input(position=2) : f32[3, 4]
%3 = mul(%0, %1) : f32[3, 4]
%4 = mul(%3, %2) : f32[3, 4]
%5 = sum(%4; dims=[0]) : f32[4]
return %3, %5
"""


def test_a_value_saved_for_backward_across_two_regions():
    """What leaves one region with eager's strides enters the next one with them."""
    forward, backward = program(FORWARD), program(BACKWARD)
    found = layouts(forward, [None, None], Decider(), "cpu")
    saved = [found[o.value].strides for o in forward.outputs]
    assert saved == [(1, 3), (1, 3)]
    lines, _ = places(backward, [None, *saved])
    assert lines[3:] == [
        "%3: %3 + 0 [4, 1]",
        "%4: %4 + 0 [4, 1]",
        "%5: %5 + 0 [1]",
    ]
    x, w = torch.randn(4, 3), torch.randn(4)
    grad = torch.randn(3, 4)
    y, turned = run(forward, x, w)
    same(y, (x.t() * w).exp())
    scaled, grad_w = run(backward, grad, y, turned)
    same(scaled, grad * (x.t() * w).exp())
    same(grad_w, (scaled * x.t()).sum(0))
    assert shares(turned, x)
