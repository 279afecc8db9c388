"""Stores at positions through ``thunder.jit``: ``x[key] = value``, ``index_put``, ``index_copy``.

Kernels run in the emulator; values, dtypes and strides are those of eager torch.
"""

from typing import Any

import pytest
import thunder
import torch
from against_eager import check

from thunder_mdfuse import explain, mdfuse_executor
from thunder_mdfuse.errors import EmulatorError


@pytest.fixture(autouse=True)
def emulated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MDFUSE_BACKEND", "emulate")


I = torch.tensor
KEYS: dict[str, tuple[Any, tuple[int, ...]]] = {
    "int": (1, (4, 5)),
    "negative int": ((-1, slice(None), -2), (4,)),
    "slices": ((slice(1, None), slice(None, -1, 2)), (2, 2, 5)),
    "ellipsis": ((..., 2), (3, 4)),
    "new dim": ((0, None, slice(1, 3)), (1, 2, 5)),
    "tensor": (I([2, 0]), (2, 4, 5)),
    "negative tensor": ((slice(None), I([-1, 0])), (3, 2, 5)),
    "tensors side by side": ((slice(None), I([[1], [2]]), I([0, 3])), (3, 2, 2)),
    "tensors apart": ((I([1, 2]), slice(None), I([0, 3])), (2, 4)),
    "nothing": (slice(2, 2), (0, 4, 5)),
    "broadcast": ((slice(0, 2), I([1, 3])), (1, 1, 5)),
}


@pytest.mark.parametrize("name", KEYS)
def test_setitem(name: str) -> None:
    key, shape = KEYS[name]
    keys = key if isinstance(key, tuple) else (key,)
    # Thunder sees tensors among the arguments, and not inside of a tuple that it closes over.
    indices = [k for k in keys if isinstance(k, torch.Tensor)]

    def store(x: torch.Tensor, value: torch.Tensor, *given: torch.Tensor) -> torch.Tensor:
        copy = x * 2
        copy[_filled(keys, given)] = value
        return copy + 1

    jitted = check(store, [torch.randn(3, 4, 5), torch.randn(shape), *indices])
    assert "setitem" not in str(explain(jitted)).partition("outside")[2]


def _filled(keys: tuple[Any, ...], given: tuple[torch.Tensor, ...]) -> tuple[Any, ...]:
    left = list(given)
    return tuple(left.pop(0) if type(k) is torch.Tensor else k for k in keys)


def test_setitem_of_a_number_and_another_dtype() -> None:
    def store(x: torch.Tensor, whole: torch.Tensor) -> torch.Tensor:
        copy = x * 2
        copy[1:] = 7
        copy[0] = whole
        return copy

    check(store, [torch.randn(3, 4), torch.arange(4)])


def test_setitem_by_a_mask() -> None:
    def store(x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        copy = x * 2
        copy[mask] = 7
        return copy

    check(store, [torch.randn(3, 4), I([True, False, True])])


@pytest.mark.parametrize("accumulate", [False, True])
def test_index_put(accumulate: bool) -> None:
    def put(x: torch.Tensor, i: torch.Tensor, j: torch.Tensor, new: torch.Tensor) -> torch.Tensor:
        return torch.index_put(x, (i, j), new, accumulate) * 2

    second = 1 if accumulate else 2  # without accumulation an index is there once
    check(put, [torch.randn(3, 4, 5), I([0, 2, 0]), I([1, 3, second]), torch.randn(3, 5)])


def test_index_copy() -> None:
    def put(x: torch.Tensor, index: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
        return torch.index_copy(x, 1, index, source) * 2

    check(put, [torch.randn(3, 4), I([2, 0]), torch.randn(3, 2)])


@pytest.mark.parametrize("index_dtype", [torch.int32, torch.int64])
def test_indices_count_from_the_end(index_dtype: torch.dtype) -> None:
    def put(x: Any, i: Any, j: Any, new: Any) -> torch.Tensor:
        return torch.index_put(x, (i, j), new)

    x, new = torch.randn(4, 3, 2), torch.randn(3, 2)
    i = torch.tensor([-4, 3, -1], dtype=index_dtype)
    j = torch.tensor([-1, -3, 1], dtype=index_dtype)
    jitted = thunder.jit(put, executors=[mdfuse_executor])
    assert torch.equal(jitted(x, i, j, new), torch.index_put(x, (i, j), new))


@pytest.mark.parametrize(("i", "j"), [(4, 0), (0, 3), (-5, 0), (1, -4)])
def test_an_index_out_of_its_dim_is_an_error(i: int, j: int) -> None:
    """Each of these, as a sum of index times stride, would be the place of another element."""

    def put(x: Any, i: Any, j: Any, new: Any) -> torch.Tensor:
        return torch.index_put(x, (i, j), new)

    def store(x: Any, i: Any, j: Any, new: Any) -> torch.Tensor:
        y = x * 1
        y[i, j] = new
        return y

    x, new = torch.randn(4, 3, 2), torch.randn(1, 2)
    for function in (put, store):
        jitted = thunder.jit(function, executors=[mdfuse_executor])
        given = torch.tensor([i]), torch.tensor([j])
        with pytest.raises((IndexError, RuntimeError)):
            function(x, *given, new)
        with pytest.raises(EmulatorError, match="index -1 is out of range"):
            jitted(x, *given, new)
