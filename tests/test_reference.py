"""The reference backend: writes, aliases, collectives, numbers.

Values of drawn programs are compared in tests/runtime/test_drawn_programs.py.
"""

import gc
import weakref

import pytest
import torch

from thunder_mdfuse.errors import ProgramError
from thunder_mdfuse.ir.chunks import chunk_size
from thunder_mdfuse.ir.sizes import evaluate
from thunder_mdfuse.ir.text import parse
from thunder_mdfuse.ir.verify import verify
from thunder_mdfuse.reference import bind, run_reference


def run(text, *inputs, communicate=None, **symbols):
    fusion = verify(parse(text), "parse")
    positions = {f"@{name}": p for name, p in symbols.items()}
    return run_reference(fusion, inputs, bind(fusion, inputs, positions), communicate)


def shares(a, b):
    return a.untyped_storage().data_ptr() == b.untyped_storage().data_ptr()


SWAP = """local
%0 = input(position=0) : f32[2]
%1 = input(position=1) : f32[2]
return %1 -> %0, %0 -> %1
"""


def test_writes_come_after_all_reads():
    x, y = torch.tensor((1.0, 2.0)), torch.tensor((3.0, 4.0))
    first, second = run(SWAP, x, y)
    assert first is x
    assert second is y
    assert x.tolist() == [3, 4]
    assert y.tolist() == [1, 2]


def test_a_view_is_written_into_its_own_storage():
    text = """local
    %0 = input(position=0) : f32[2, 2]
    %1 = permute(%0; dims=[1, 0]) : f32[2, 2]
    return %1 -> %0, %1"""
    x = torch.arange(4.0).view(2, 2)
    written, view = run(text, x)
    assert written is x
    assert x.tolist() == [[0, 2], [1, 3]]
    assert shares(view, x)
    assert view.tolist() == [[0, 1], [2, 3]]


def test_an_input_written_into_itself_stays():
    x = torch.arange(3.0)
    (out,) = run("local\n%0 = input(position=0) : f32[3]\nreturn %0 -> %0", x)
    assert out is x
    assert x.tolist() == [0, 1, 2]


def test_two_inputs_may_be_one_tensor():
    """``y`` is written from what ``x`` was, though both are one storage."""
    text = """local
    %0 = input(position=0) : f32[3]
    %1 = input(position=1) : f32[3]
    %2 = const(value='1.0', dtype=f64) : f64
    %3 = add(%0, %2) : f32[3]
    return %3 -> %0, %1"""
    x = torch.arange(3.0)
    written, other = run(text, x, x)
    assert written is x
    assert other is x
    assert x.tolist() == [1, 2, 3]


def test_a_write_into_overlapping_memory_is_torchs_error():
    text = """local
    %0 = input(position=0) : f32[3]
    %1 = neg(%0) : f32[3]
    return %1 -> %0"""
    with pytest.raises(RuntimeError, match="more than one element of the written-to tensor"):
        run(text, torch.zeros(1).expand(3))


def test_numbers_go_in_and_out():
    text = """local
    %0 = input(position=0) : f64
    %1 = input(position=1) : f32[s0]
    %2 = size(size=2*s0) : i64
    %3 = mul(%0, %2) : f64
    %4 = mul(%1, %3) : f32[s0]
    return %4, %3, %2"""
    out, number, size = run(text, 1.5, torch.ones(4))
    assert number == 12.0
    assert size == 8
    assert out.tolist() == [12.0] * 4


def test_no_tensor_goes_in():
    text = """local
    %0 = const(value='0.5', dtype=f64) : f64
    %1 = full(%0; shape=[2, 3], dtype=bf16) : bf16[2, 3]
    return %1"""
    (out,) = run(text)
    assert torch.equal(out, torch.full((2, 3), 0.5, dtype=torch.bfloat16))


def test_nothing_is_recorded_for_autograd():
    text = """local
    %0 = input(position=0) : f32[2]
    %1 = exp(%0) : f32[2]
    return %1, %0"""
    x = torch.zeros(2, requires_grad=True)
    y, same = run(text, x)
    assert not y.requires_grad
    assert same is x


def test_strides_are_those_of_an_op_on_unbroadcast_operands():
    """As torch gives ``x + y``, while the op here is given ``y`` as [1, 5]."""
    text = """local
    %0 = input(position=0) : f32[1, 5]
    %1 = input(position=1) : f32[5]
    %2 = broadcast_in_dim(%1; shape=[1, 5], dims=[1]) : f32[1, 5]
    %3 = add(%0, %2) : f32[1, 5]
    return %3"""
    x, y = torch.randn(5, 1).t(), torch.randn(5)
    (out,) = run(text, x, y)
    assert out.stride() == (x + y).stride()
    assert torch.equal(out, x + y)


def test_a_value_that_nothing_reads_any_more_is_let_go():
    """Values of ATen steps can be large: only what is still needed is held."""
    alive = []

    class Watched:
        def start(self, node, tensor, attrs):
            alive.append(weakref.ref(tensor))
            return tensor.clone()

        def wait(self, pending):
            gc.collect()
            # The sum that was sent is not needed any more once its reduction has been started.
            assert alive[0]() is None
            return pending

    text = """local mesh[tp=2]
    %0 = input(position=0) : f32[4]
    %1 = exp(%0) : f32[4]
    %2 = all_reduce(%1; team='tp', ranks=2, op='sum') : f32[4]
    %3 = wait(%2) : f32[4]
    return %3"""
    run(text, torch.zeros(4), communicate=Watched())
    assert alive


class Mesh:
    """One team whose positions run one after the other: results come from what all will send."""

    def __init__(self, sent, position):
        self.sent, self.position, self.log = sent, position, []

    def start(self, node, tensor, attrs):
        self.log.append((node.op, attrs.team))
        torch.testing.assert_close(tensor, self.sent[self.position])
        return node.op, attrs

    def wait(self, pending):
        op, attrs = pending
        if op == "all_reduce":
            return sum(self.sent)
        if op == "all_gather":
            assert attrs.size == sum(part.size(attrs.dim) for part in self.sent)
            return torch.cat(self.sent, attrs.dim)
        assert op == "reduce_scatter"
        whole = sum(self.sent)
        lengths = [evaluate(chunk_size(attrs.size, attrs.ranks, p), {}) for p in range(attrs.ranks)]
        return whole.split(lengths, attrs.dim)[self.position]


GATHER = """local mesh[tp=3]
%0 = input(position=0) : f32[max(0, min(ceildiv(s0, 3), s0 - @tp*ceildiv(s0, 3))), 2]
%1 = all_gather(%0; team='tp', ranks=3, dim=0, size=s0) : f32[s0, 2]
%2 = wait(%1) : f32[s0, 2]
%3 = const(value='1.0', dtype=f64) : f64
%4 = add(%2, %3) : f32[s0, 2]
return %4
"""


@pytest.mark.parametrize("rows", [6, 5, 4, 1])
def test_collectives_with_uneven_and_empty_shards(rows):
    fusion = parse(GATHER)
    whole = torch.randn(rows, 2)
    length = -(-rows // 3)
    parts = [whole[min(p * length, rows) : min((p + 1) * length, rows)] for p in range(3)]
    for p, part in enumerate(parts):
        mesh = Mesh(parts, p)
        symbols = bind(fusion, (part,), {"s0": rows, "@tp": p})
        (out,) = run_reference(fusion, (part,), symbols, mesh)
        assert torch.equal(out, whole + 1)
        assert mesh.log == [("all_gather", "tp")]


REDUCE = """local mesh[tp=2]
%0 = input(position=0) : f32[5, 2]
%1 = all_reduce(%0; team='tp', ranks=2, op='sum') : f32[5, 2]
%2 = neg(%0) : f32[5, 2]
%3 = wait(%1) : f32[5, 2]
%4 = chunk(%3; team='tp', ranks=2, dim=0) : f32[min(3, max(0, 5 - 3*@tp)), 2]
%5 = reduce_scatter(%0; team='tp', ranks=2, dim=0, size=5, op='sum') : \
f32[min(3, max(0, 5 - 3*@tp)), 2]
%6 = wait(%5) : f32[min(3, max(0, 5 - 3*@tp)), 2]
return %3, %2, %4, %6
"""


def test_a_reduction_and_this_positions_chunk_of_it():
    parts = [torch.randn(5, 2) for _ in range(2)]
    total = parts[0] + parts[1]
    for p in range(2):
        mesh = Mesh(parts, p)
        whole, negative, chunk, scattered = run(REDUCE, parts[p], communicate=mesh, tp=p)
        assert torch.equal(whole, total)
        assert torch.equal(negative, -parts[p])
        assert torch.equal(chunk, total.chunk(2)[p])
        assert torch.equal(scattered, total.chunk(2)[p])
        assert mesh.log == [("all_reduce", "tp"), ("reduce_scatter", "tp")]


def test_keep_first_makes_a_replicated_value_partial():
    text = """local mesh[tp=2]
    %0 = input(position=0) : f32[2]
    %1 = keep_first(%0; team='tp', ranks=2, op='sum') : f32[2]
    return %1"""
    x = torch.tensor((1.0, 2.0))
    assert [run(text, x, tp=p)[0].tolist() for p in range(2)] == [[1, 2], [0, 0]]


def test_a_collective_without_a_mesh_says_what_to_pass():
    with pytest.raises(ProgramError, match="all_reduce is a collective, but no mesh was given"):
        run(REDUCE, torch.zeros(5, 2), tp=0)


def test_a_position_must_be_given():
    text = """local mesh[tp=2]
    %0 = input(position=0) : f32[4]
    %1 = chunk(%0; team='tp', ranks=2, dim=0) : f32[2]
    return %1"""
    with pytest.raises(ProgramError, match="position along 'tp' is not known"):
        run(text, torch.zeros(4))
