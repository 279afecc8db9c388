"""Programs that were once planned or written wrongly, each the smallest of its kind."""

from collections.abc import Sequence

import pytest
import torch
from codegen.random_programs.philox import uniform_numbers

from thunder_mdfuse.executable import Executable
from thunder_mdfuse.ir.text import parse


@pytest.fixture(autouse=True)
def emulated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MDFUSE_BACKEND", "emulate")


def run(text: str, *inputs: torch.Tensor) -> list[torch.Tensor]:
    executable = Executable(parse(text), "once")
    found = executable.run(inputs)
    assert executable.last is not None
    assert all(s.kind == "kernel" for s in executable.last.plan.steps)
    assert all(isinstance(x, torch.Tensor) for x in found)
    return found  # type: ignore[return-value]


def test_a_choice_between_numbers_has_their_dtype() -> None:
    """Not that of the condition, in which all numbers but 0 are the same."""
    text = """
    global
    %0 = input(position=0) : bool[3]
    %1 = const(value='7.5', dtype=f64) : f64
    %2 = const(value='-2.0', dtype=f64) : f64
    %3 = where(%0, %1, %2) : f64[3]
    return %3
    """
    (found,) = run(text, torch.tensor([True, False, True]))
    assert found.tolist() == [7.5, -2.0, 7.5]


@pytest.mark.parametrize("op", ["gt", "eq", "lt"])
@pytest.mark.parametrize("dtype", ["bf16", "f16"])
def test_a_number_is_compared_as_the_tensor_would_hold_it(op: str, dtype: str) -> None:
    text = f"""
    global
    %0 = input(position=0) : {dtype}[3]
    %1 = const(value='0.1', dtype=f64) : f64
    %2 = {op}(%0, %1) : bool[3]
    return %2
    """
    half = torch.bfloat16 if dtype == "bf16" else torch.float16
    x = torch.tensor([0.1, 0.2, 0.0], dtype=half)
    (found,) = run(text, x)
    assert torch.equal(found, getattr(torch, op)(x, 0.1))


def test_a_filled_half_tensor_holds_halves() -> None:
    """2049 is no f16: what is cast from it is 2048."""
    text = """
    global
    %0 = input(position=0) : f16[2]
    %1 = const(value='2049.0', dtype=f64) : f64
    %2 = full(%1; shape=[4], dtype=f16) : f16[4]
    %3 = cast(%2; dtype=i32, user=true) : i32[4]
    return %3
    """
    (found,) = run(text, torch.zeros(2).half())
    assert found.tolist() == [2048] * 4


def test_eager_rounding_rounds_sums_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MDFUSE_EAGER_ROUNDING", "1")
    text = """
    global
    %0 = input(position=0) : bf16[1, 3]
    %1 = sum(%0; dims=[1]) : bf16[1]
    %2 = cast(%1; dtype=f32) : f32[1]
    return %2
    """
    x = torch.tensor([[256.0, 0.5, 0.25]]).bfloat16()
    (found,) = run(text, x)
    assert torch.equal(found, x.sum(1).float())


def _empty(shape: Sequence[int], strides: Sequence[int]) -> torch.Tensor:
    return torch.empty(0, dtype=torch.bfloat16).as_strided(tuple(shape), tuple(strides))


def test_a_row_without_elements_reads_none() -> None:
    """Not even what all elements of the row would share."""
    text = """
    global
    %0 = input(position=0) : bf16[3, 0]
    %1 = sum(%0; dims=[1]) : bf16[3]
    %2 = add(%0, %0) : bf16[3, 0]
    return %1, %2
    """
    total, twice = run(text, _empty((3, 0), (0, 0)))
    assert torch.equal(total, torch.zeros(3).bfloat16())
    assert twice.shape == (3, 0)


def test_an_empty_result_without_strides_is_stored_by_column() -> None:
    text = """
    global
    %0 = input(position=0) : bf16[0, 3, 8]
    %1 = amax(%0; dims=[2]) : bf16[0, 3]
    %2 = broadcast_in_dim(%1; shape=[0, 3, 1], dims=[0, 1], explicit=true) : bf16[0, 3, 1]
    %3 = broadcast_in_dim(%2; shape=[0, 3, 8], dims=[0, 1, 2]) : bf16[0, 3, 8]
    %4 = mul(%0, %3) : bf16[0, 3, 8]
    return %4
    """
    x = _empty((0, 3, 8), (3, 1, 3))
    (found,) = run(text, x)
    assert (found.shape, found.stride()) == (x.shape, (x * x.amax(2, keepdim=True)).stride())


def test_a_reduction_over_no_dims_is_its_operand() -> None:
    text = """
    global
    %0 = input(position=0) : f32[4, 6]
    %1 = sum(%0; dims=[]) : f32[4, 6]
    %2 = amax(%0; dims=[]) : f32[4, 6]
    return %1, %2
    """
    x = torch.randn(4, 6)
    assert all(torch.equal(found, x) for found in run(text, x))


def test_what_a_mask_leaves_out_may_be_divided_by() -> None:
    """The second part's divisor reads 0 where the first part is meant."""
    text = """
    global
    %0 = input(position=0) : i32[4]
    %1 = input(position=1) : i32[4]
    %2 = floor_div(%0, %1) : i32[4]
    %3 = cat(%0, %2; dim=0) : i32[8]
    return %3
    """
    x, y = torch.tensor([7, 8, 9, -10]).int(), torch.tensor([2, 3, -4, 5]).int()
    (found,) = run(text, x, y)
    assert torch.equal(found, torch.cat([x, x // y]))


def test_a_draw_whose_seed_is_a_reduction() -> None:
    """It can be made only when the reduction has ended."""
    text = """
    global
    %0 = input(position=0) : i64[8]
    %1 = sum(%0; dims=[0]) : i64[]
    %2 = const(value='0', dtype=i64) : i64
    %3 = uniform(%1, %2; shape=[8], dtype=f32) : f32[8]
    %4 = cast(%0; dtype=f32) : f32[8]
    %5 = add(%3, %4) : f32[8]
    return %5
    """
    x = torch.arange(8)
    (found,) = run(text, x)
    assert bool(((found - x >= 0) & (found - x < 1)).all())
    (again,) = run(text, x.flip(0))
    torch.testing.assert_close(again - x.flip(0), found - x)


def test_what_is_the_same_for_all_rows_is_summed_along_each() -> None:
    """An input that is expanded over the rows along which memory runs, in vectors of one."""
    text = """
    global
    %0 = input(position=0) : f64[127, 3]
    %1 = cast(%0; dtype=i64, user=true) : i64[127, 3]
    %2 = sum(%1; dims=[1]) : i64[127]
    return %2
    """
    x = torch.tensor([1.5, -2.5, 7.0], dtype=torch.float64).expand(127, 3)
    (found,) = run(text, x)
    assert torch.equal(found, x.long().sum(1))


@pytest.mark.parametrize("op", ["cumsum", "cummax"])
def test_a_scan_along_a_dim_of_size_1_is_its_operand(op: str) -> None:
    text = f"""
    global
    %0 = input(position=0) : f16[s0]
    %1 = broadcast_in_dim(%0; shape=[1, s0], dims=[1], explicit=true) : f16[1, s0]
    %2 = {op}(%1; dim=0) : f16[1, s0]
    return %1, %2
    """
    x = torch.arange(31).half()
    view, found = run(text, x)
    assert torch.equal(found, x[None]) and torch.equal(view, x[None])


@pytest.mark.parametrize("strides", [(3, 1), (2, 1)])
def test_a_place_counted_from_the_end_divides_towards_minus_infinity(
    strides: tuple[int, int],
) -> None:
    """What is flipped, flattened and flipped again has its places counted from both ends."""
    text = """
    global
    %0 = input(position=0) : f32[64, 2]
    %1 = flip(%0; dims=[0, 1]) : f32[64, 2]
    %2 = reshape(%1; shape=[128]) : f32[128]
    %3 = flip(%2; dims=[0]) : f32[128]
    %4 = reshape(%0; shape=[128]) : f32[128]
    %5 = flip(%4; dims=[0]) : f32[128]
    return %3, %5
    """
    x = torch.randn(192).as_strided((64, 2), strides)
    twice, once = run(text, x)
    assert torch.equal(twice, x.flip(0, 1).reshape(128).flip(0))
    assert torch.equal(once, x.reshape(128).flip(0))


def test_random_rows_that_are_looked_up_have_the_words_of_their_places() -> None:
    """A vector of them begins at a place that is no number of the plan."""
    text = """
    global
    %0 = input(position=0) : i64[5]
    %1 = input(position=1) : f32[s0]
    %2 = const(value='19', dtype=i64) : i64
    %3 = const(value='4', dtype=i64) : i64
    %4 = uniform(%2, %3; shape=[6, s0], dtype=f32) : f32[6, s0]
    %5 = take(%4, %0; dim=0) : f32[5, s0]
    return %5
    """
    at = torch.tensor([3, 0, 3, 5, 1])
    (found,) = run(text, at, torch.zeros(64))
    words = uniform_numbers((6, 64), torch.float32, 0.0, 1.0, 19, 4)
    assert torch.equal(found, words[at])


def test_nothing_is_stored_to_an_empty_tensor() -> None:
    """Beside a sum, which has an element even then."""
    text = """
    global
    %0 = input(position=0) : f32[s0]
    %1 = cast(%0; dtype=f16, user=true) : f16[s0]
    %2 = sum(%0; dims=[0]) : f32[]
    return %1, %2
    """
    for x in (torch.ones(31), torch.empty(0).as_strided((0,), (0,)), torch.empty(2)[::2][:0]):
        halves, total = run(text, x)
        assert torch.equal(halves, x.half())
        assert total.item() == x.numel()


def test_random_numbers_beside_the_maxima_of_columns() -> None:
    text = """
    global
    %0 = input(position=0) : bf16[7, 16]
    %1 = amax(%0; dims=[0]) : bf16[16]
    %2 = const(value='19', dtype=i64) : i64
    %3 = const(value='4', dtype=i64) : i64
    %4 = uniform(%2, %3; shape=[16], dtype=bf16) : bf16[16]
    %5 = sub(%1, %4) : bf16[16]
    return %1, %5
    """
    x = torch.randn(7, 16).bfloat16()
    most, less = run(text, x)
    words = uniform_numbers((16,), torch.bfloat16, 0.0, 1.0, 19, 4)
    assert torch.equal(most, x.amax(0))
    assert torch.equal(less, x.amax(0) - words)


def test_nothing_is_read_of_an_empty_row_to_scan() -> None:
    text = """
    global
    %0 = input(position=0) : f32[s0, s1]
    %1 = cumsum(%0; dim=1) : f32[s0, s1]
    %2 = copy(%0) : f32[s0, s1]
    return %1, %2
    """
    for x in (
        torch.ones(3, 5),
        torch.empty(1, 0),
        torch.empty(0, 4),
        torch.empty(2)[::2][:0, None],
    ):
        sums, copy = run(text, x)
        assert torch.equal(sums, x.cumsum(1))
        assert torch.equal(copy, x)


def test_random_numbers_after_others_have_the_words_of_their_places() -> None:
    """Eight words are drawn at once, of which the first four may lie in the piece before."""
    text = """
    global
    %0 = input(position=0) : bf16[3, 4]
    %1 = const(value='19', dtype=i64) : i64
    %2 = const(value='4', dtype=i64) : i64
    %3 = uniform(%1, %2; shape=[3, 4], dtype=bf16) : bf16[3, 4]
    %4 = cat(%0, %3; dim=1) : bf16[3, 8]
    return %4
    """
    (found,) = run(text, torch.zeros(3, 4).bfloat16())
    words = uniform_numbers((3, 4), torch.bfloat16, 0.0, 1.0, 19, 4)
    assert torch.equal(found[:, 4:], words)
