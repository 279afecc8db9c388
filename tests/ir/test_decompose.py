"""``decompose``: texts before and after, and values against eager torch."""

import warnings

import pytest
import torch

from thunder_mdfuse.ir.decompose import decompose
from thunder_mdfuse.ir.text import parse, render
from thunder_mdfuse.ir.verify import verify
from thunder_mdfuse.reference import bind, run_reference

BEFORE = """\
global mesh[tp=2]
%0 = input(position=0) : f32[s0, 8] @ [Shard(0)]
%1 = var_mean(%0; dims=[0], correction=1.0) : f32[8] @ [Replicate] | f32[8] @ [Partial(avg)]
return %1, %1.1
where 1 < s0
"""
AFTER = """\
global mesh[tp=2]
%0 = input(position=0) : f32[s0, 8] @ [Shard(0)]
%1 = sum(%0; dims=[0]) : f32[8]
%2 = size(size=s0) : i64
%3 = div(%1, %2) : f32[8] @ [Partial(avg)]
%4 = broadcast_in_dim(%3; shape=[s0, 8], dims=[1]) : f32[s0, 8]
%5 = sub(%0, %4) : f32[s0, 8]
%6 = mul(%5, %5) : f32[s0, 8]
%7 = sum(%6; dims=[0]) : f32[8]
%8 = const(value='1.0', dtype=f64) : f64
%9 = sub(%2, %8) : f64
%10 = const(value='0.0', dtype=f64) : f64
%11 = maximum(%9, %10) : f64
%12 = div(%7, %11) : f32[8] @ [Replicate]
return %12, %3
where 1 < s0
"""
HALF_BEFORE = """\
global mesh[tp=2]
%0 = input(position=0) : bf16[2, 3, 4] @ [Shard(1)]
%1 = var(%0; dims=[0, 2], correction=0.0) : bf16[3] @ [Shard(0)]
%2 = exp(%1) : bf16[3]
return %2, %0 -> %0
"""
HALF_AFTER = """\
global mesh[tp=2]
%0 = input(position=0) : bf16[2, 3, 4] @ [Shard(1)]
%1 = cast(%0; dtype=f32) : f32[2, 3, 4]
%2 = sum(%1; dims=[0, 2]) : f32[3]
%3 = size(size=8) : i64
%4 = div(%2, %3) : f32[3]
%5 = broadcast_in_dim(%4; shape=[2, 3, 4], dims=[1]) : f32[2, 3, 4]
%6 = sub(%1, %5) : f32[2, 3, 4]
%7 = mul(%6, %6) : f32[2, 3, 4]
%8 = sum(%7; dims=[0, 2]) : f32[3]
%9 = const(value='0.0', dtype=f64) : f64
%10 = sub(%3, %9) : f64
%11 = maximum(%10, %9) : f64
%12 = div(%8, %11) : f32[3]
%13 = cast(%12; dtype=bf16) : bf16[3] @ [Shard(0)]
%14 = exp(%13) : bf16[3]
return %14, %0 -> %0
"""


@pytest.mark.parametrize(("before", "after"), [(BEFORE, AFTER), (HALF_BEFORE, HALF_AFTER)])
def test_texts(before, after):
    found = decompose(verify(parse(before), "parse"))
    assert render(verify(found, "decompose")) == after
    assert decompose(found) == found


CASES = [
    ((3, 5), (1,), 1.0),
    ((3, 5), (0, 1), 0.0),
    ((2, 3, 4), (0, 2), 2.0),
    ((4,), (), 0.0),
    ((4,), (), 1.0),
    ((2, 1), (1,), 1.0),
    ((2, 3), (1,), 5.0),
    ((2, 0), (1,), 0.0),
    ((0, 2), (1,), 0.0),
]
TOLERANCE = {
    torch.float16: 1e-3,
    torch.bfloat16: 8e-3,
    torch.float32: 1e-6,
    torch.float64: 1e-14,
    torch.complex64: 1e-6,
}
NAMES = {
    torch.float16: ("f16", "f16"),
    torch.bfloat16: ("bf16", "bf16"),
    torch.float32: ("f32", "f32"),
    torch.float64: ("f64", "f64"),
    torch.complex64: ("c64", "f32"),
}


def quiet(function, *args, **kwargs):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of too few elements
        return function(*args, **kwargs)


@pytest.mark.parametrize("dtype", NAMES, ids=str)
@pytest.mark.parametrize(("shape", "dims", "correction"), CASES)
def test_values_are_those_of_torch(shape, dims, correction, dtype):
    mean_type, variance_type = NAMES[dtype]
    left = [n for d, n in enumerate(shape) if d not in dims]
    attrs = f"dims={list(dims)}, correction={correction}"
    text = f"""global
    %0 = input(position=0) : {mean_type}{list(shape)}
    %1 = var_mean(%0; {attrs}) : {variance_type}{left} | {mean_type}{left}
    %2 = var(%0; {attrs}) : {variance_type}{left}
    return %1, %1.1, %2"""
    before = verify(parse(text), "parse")
    after = verify(decompose(before), "decompose")
    assert not any(node.op.startswith("var") for node in after.nodes)
    x = (torch.randn(shape, dtype=torch.complex64 if dtype.is_complex else None) + 1).to(dtype)
    one, over = (x, dims) if dims else (x.unsqueeze(-1), (x.ndim,))
    variance, mean = quiet(torch.var_mean, one, over, correction=correction)
    tolerance = TOLERANCE[dtype]
    for fusion in (before, after):
        results = run_reference(fusion, (x,), bind(fusion, (x,)))
        for ours, theirs in zip(results, (variance, mean, variance), strict=True):
            torch.testing.assert_close(ours, theirs, rtol=tolerance, atol=tolerance, equal_nan=True)


def test_no_cancellation_far_from_zero():
    """Squares are taken of distances from the mean, so a large mean does no harm."""
    text = """global
    %0 = input(position=0) : f32[1000]
    %1 = var(%0; dims=[0], correction=1.0) : f32[]
    return %1"""
    x = torch.randn(1000) + 1e4
    fusion = decompose(parse(text))
    (ours,) = run_reference(fusion, (x,), {})
    torch.testing.assert_close(ours.double(), x.double().var(), rtol=1e-4, atol=0)
