"""Whether inputs are like earlier ones: never a False that is taken for a True."""

import gc
import weakref

import pytest
import torch

from thunder_mdfuse.runtime.likeness import alignment, likeness


def test_inputs_like_the_first_ones() -> None:
    like = likeness([torch.randn(4, 6), 2, torch.zeros(3, dtype=torch.int8)])
    assert like([torch.randn(4, 6), 3, torch.ones(3, dtype=torch.int8)])
    assert likeness([])([]) and likeness([1.0])([2.0])


@pytest.mark.parametrize(
    "other",
    [
        pytest.param(torch.randn(4, 7), id="shape"),
        pytest.param(torch.randn(6, 4).t(), id="strides"),
        pytest.param(torch.randn(4, 6, dtype=torch.float64), id="dtype"),
        pytest.param(torch.randn(25)[1:].view(4, 6), id="alignment"),
        pytest.param(torch.randn(4, 6, device="meta"), id="device"),
        pytest.param(torch.randn(4, 6).to_sparse(), id="layout"),
        pytest.param(torch.randn(4, 6, 1), id="ndim"),
        pytest.param(torch.randn(4, 6, dtype=torch.complex64).conj(), id="conjugate"),
        pytest.param(1.0, id="number"),
        pytest.param(None, id="None"),
    ],
)
def test_inputs_unlike_the_first_ones(other: object) -> None:
    like = likeness([torch.randn(4, 6), 2])
    assert not like([other, 2])
    assert like([torch.randn(4, 6), 2])


@pytest.mark.parametrize("number", [2.0, True, 2j, torch.tensor(2)], ids=str)
def test_the_type_of_a_number_counts(number: object) -> None:
    assert not likeness([torch.randn(4), 2])([torch.randn(4), number])


def test_more_or_fewer_inputs_are_unlike() -> None:
    x = torch.randn(4)
    like = likeness([x, x])
    assert not like([x]) and not like([x, x, x]) and not like([])


@pytest.mark.parametrize("offset", range(9))
def test_alignments_are_told_apart(offset: int) -> None:
    room = torch.zeros(64, dtype=torch.int8)
    first = room[offset : offset + 8]
    like = likeness([first])
    for other in range(40):
        found = room[other : other + 8]
        assert like([found]) == (alignment(found) == alignment(first)), (offset, other)


def test_no_tensor_is_kept_alive() -> None:
    x = torch.randn(4, 6)
    like, known = likeness([x]), weakref.ref(x)
    del x
    gc.collect()
    assert known() is None
    assert like([torch.randn(4, 6)])
