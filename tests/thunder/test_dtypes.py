"""Dtypes for which Thunder's decompositions or types say something else than torch."""

from collections.abc import Callable
from typing import Any

import pytest
import thunder
import torch
from against_eager import check

from thunder_mdfuse import mdfuse_executor


@pytest.fixture(autouse=True)
def emulated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MDFUSE_BACKEND", "emulate")


def _several(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return torch.abs(x), -x, torch.sign(x), x * x, ~x, x.type_as(x) * 1


def test_an_i8_tensor_without_dims_is_i8() -> None:
    """Thunder has one type for it and for a bool tensor with an int, which is an i64."""
    check(_several, [torch.tensor(-3, dtype=torch.int8)])
    check(lambda x: x + 2, [torch.tensor([True, False])])


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.bool, torch.float32])
def test_logsumexp_is_of_floats(dtype: torch.dtype) -> None:
    functions: list[Callable[..., Any]] = [
        lambda x: torch.logsumexp(x, 0),
        lambda x: x.logsumexp(1, keepdim=True),
    ]
    for function in functions:
        check(function, [torch.tensor([[200, 3, 0], [7, 90, 100]]).to(dtype)])


def test_a_region_whose_tensors_are_all_on_another_device_is_left_to_torch() -> None:
    """Its result would be on the device of its inputs."""

    def function(x: torch.Tensor) -> torch.Tensor:
        return torch.full((3,), 2.0, device="meta") * x

    jitted = thunder.jit(function, executors=[mdfuse_executor])
    found = jitted(torch.tensor(4.0))
    assert found.device.type == "meta"
    assert found.shape == (3,)
