"""Rows of the torch-call table for windows, parts of floats, and draws of torch's generator."""

import pytest
import torch
from runtime.rows import FLOATS, call, same, shares
from torch.nn import functional

from thunder_mdfuse.ir import attrs as at
from thunder_mdfuse.ir.types import DType


def test_windows_share_storage():
    x = torch.randn(4, 9).t()
    found = call("unfold", x, attrs=at.UnfoldAttrs(0, 3, 2))
    same(found, x.unfold(0, 3, 2))
    assert shares(found, x)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_parts_of_floats(dtype):
    x = torch.tensor([0.0, -0.0, 1.0, -3.5, 1e-3, torch.inf, -torch.inf, torch.nan], dtype=dtype)
    parts = torch.frexp(x)
    same(call("mantissa", x), parts.mantissa)
    same(call("exponent", x, dtypes=[DType.I32]), parts.exponent)


@pytest.mark.parametrize("groups", [1, 2])
def test_convolutions(groups):
    x, w, b = torch.randn(2, 4, 5, 6), torch.randn(6, 4 // groups, 3, 2), torch.randn(6)
    attrs = at.ConvolutionAttrs((2, 1), (1, 0), (1, 2), groups)
    window = {"stride": (2, 1), "padding": (1, 0), "dilation": (1, 2), "groups": groups}
    same(call("convolution", x, w, b, attrs=attrs), functional.conv2d(x, w, b, **window))
    same(call("convolution", x, w, attrs=attrs), functional.conv2d(x, w, **window))


def test_draws_are_torch_s():
    weights, before = torch.rand(3, 7), torch.zeros(2)
    whole = at.RandintAttrs(0, (4, 5), DType.I32, -3, 9)
    classes = at.MultinomialAttrs(1, 4)
    torch.manual_seed(1)
    wanted = (torch.randint(-3, 9, (4, 5), dtype=torch.int32), torch.multinomial(weights, 4))
    torch.manual_seed(1)
    same(call("randint", attrs=whole, dtypes=[DType.I32]), wanted[0])
    same(call("multinomial", weights, before, attrs=classes, dtypes=[DType.I64]), wanted[1])


def test_a_seed_of_its_own():
    weights, state = torch.rand(7), torch.get_rng_state()
    attrs = at.MultinomialAttrs(0, 9, True, seed=5)
    own = torch.Generator().manual_seed(5)
    wanted = torch.multinomial(weights, 9, True, generator=own)
    same(call("multinomial", weights, attrs=attrs, dtypes=[DType.I64]), wanted)
    assert torch.equal(torch.get_rng_state(), state)
