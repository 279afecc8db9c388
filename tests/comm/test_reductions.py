"""What a backend reduces, what is folded here, and what is refused."""

import pytest
import torch
import torch.distributed as dist

from thunder_mdfuse.comm.reductions import OPS, Folded, Native, reduction
from thunder_mdfuse.errors import CommError


def fold(values: list[torch.Tensor], op: str) -> torch.Tensor:
    how = reduction(values[0].dtype, op, "gloo", len(values))
    assert isinstance(how, Folded)
    return how.fold(torch.stack(values))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_sums_of_floats_are_the_backends(dtype: torch.dtype) -> None:
    assert reduction(dtype, "sum", "nccl", 4) == Native(dist.ReduceOp.SUM)
    assert reduction(dtype, "avg", "nccl", 4) == Native(dist.ReduceOp.AVG)


def test_average_without_backend_support_is_sum_then_division() -> None:
    assert reduction(torch.float32, "avg", "ucc", 4) == Native(dist.ReduceOp.SUM, divisor=4)


@pytest.mark.parametrize("op", ["min", "max"])
def test_float_extremes_are_folded_and_keep_nan(op: str) -> None:
    nan = float("nan")
    for first, second in ((nan, 1.0), (1.0, nan)):
        assert fold([torch.tensor([first]), torch.tensor([second])], op).isnan().all()


def test_small_integers_wrap() -> None:
    ones = [torch.tensor([100], dtype=torch.int8)] * 3
    assert fold(ones, "sum").tolist() == [44]  # 300 - 256
    assert fold(ones, "product").tolist() == [64]  # 100 ** 3 modulo 256
    assert fold([torch.tensor([200], dtype=torch.uint8)] * 2, "sum").tolist() == [144]
    assert fold([torch.tensor([300], dtype=torch.int16)] * 2, "max").tolist() == [300]


def test_bools_are_or_and_and() -> None:
    values = [torch.tensor([True, False, True]), torch.tensor([True, False, False])]
    assert fold(values, "sum").tolist() == fold(values, "max").tolist() == [True, False, True]
    assert fold(values, "product").tolist() == fold(values, "min").tolist() == [True, False, False]


def test_product_of_complex_numbers() -> None:
    assert fold([torch.tensor([1j]), torch.tensor([2j])], "product").tolist() == [-2]


def test_extremes_of_8_bit_floats() -> None:
    values = [torch.tensor([1.5]).to(torch.float8_e5m2), torch.tensor([-2.0]).to(torch.float8_e5m2)]
    assert fold(values, "max").float().tolist() == [1.5]


@pytest.mark.parametrize(
    ("dtype", "op", "text"),
    [
        (torch.float8_e4m3fn, "sum", "cast to bfloat16"),
        (torch.float8_e5m2, "avg", "rounded to 8 bits"),
        (torch.int32, "avg", "floating dtype"),
        (torch.bool, "avg", "floating dtype"),
        (torch.complex64, "max", "ordered"),
        (torch.uint32, "sum", "not done"),
        (torch.float32, "mean", "one of sum"),
    ],
)
def test_refusals(dtype: torch.dtype, op: str, text: str) -> None:
    with pytest.raises(CommError, match=text):
        reduction(dtype, op, "gloo", 2)


def test_every_reduction_has_a_row() -> None:
    for op in OPS:
        assert isinstance(reduction(torch.float32, op, "gloo", 2), Native | Folded)
