"""Functions and modules through thunder.jit on a GPU, against f64 and eager torch."""

import threading
from collections.abc import Callable

import pytest
import thunder
import torch
import torch.nn.functional as F

from thunder_mdfuse import mdfuse_executor
from thunder_mdfuse.thunder.fusion_call import FusionCall

pytestmark = pytest.mark.gpu

# Largest relative error (2-norm) against f64; the 16-bit ones are half an ulp, as eager's are.
TOLERANCE = {torch.float32: 3e-7, torch.bfloat16: 3e-3, torch.float16: 4e-4}


def rms_norm(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return F.rms_norm(x, (x.shape[-1],), w, 1e-5)


def layer_norm(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return F.layer_norm(x, (x.shape[-1],), w)


def softmax(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return F.softmax(x * w, -1)


def swiglu(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return F.silu(x) * w


def bias_gelu(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return F.gelu(x + w)


def column_sum(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return (x * w).sum(0)


def regions(jitted: Callable[..., object]) -> list[FusionCall]:
    context = thunder.last_traces(jitted)[-1].python_ctx()
    return [v for v in context.values() if isinstance(v, FusionCall)]


# One warp and less, one block, several items, many threads, shared memory, read again; odd sizes.
@pytest.mark.parametrize("n", [7, 64, 1000, 3001, 4096, 8192, 16384, 65536, 131072, 262144])
@pytest.mark.parametrize("dtype", list(TOLERANCE), ids=str)
@pytest.mark.parametrize("function", [rms_norm, layer_norm, softmax, swiglu, bias_gelu])
def test_one_kernel_as_right_as_its_dtype(
    function: Callable[..., torch.Tensor], dtype: torch.dtype, n: int
) -> None:
    torch.manual_seed(n)
    x = torch.randn(max(3, 40_000 // n), n, device="cuda", dtype=dtype)
    w = torch.randn(n, device="cuda", dtype=dtype)
    jitted = thunder.jit(function, executors=[mdfuse_executor])
    found = jitted(x, w)
    (region,) = regions(jitted)
    assert region.last_used is not None
    assert [s.kind for s in region.last_used.report()] == ["kernel"]
    expected = function(x.double(), w.double())
    assert found.dtype == dtype
    assert found.stride() == expected.stride()
    error = (found.double() - expected).norm() / expected.norm()
    eager = (function(x, w).double() - expected).norm() / expected.norm()
    assert error <= max(TOLERANCE[dtype], 1.5 * eager), (error.item(), eager.item())


@pytest.mark.parametrize("shape", [(5_000_000,), (3, 1_000_003), (1 << 20, 3)])
def test_long_rows_are_shared_by_blocks_and_repeat_bit_for_bit(shape: tuple[int, ...]) -> None:
    x = torch.randn(shape, device="cuda")
    jitted = thunder.jit(lambda a: (a.sum(), a.amax(), a.sum(0)), executors=[mdfuse_executor])
    first = jitted(x)
    for found, expected in zip(first, (x.sum(), x.amax(), x.sum(0)), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=2e-2)
    for _ in range(3):
        for again, found in zip(jitted(x), first, strict=True):
            assert torch.equal(again, found)


def test_gradients_of_a_module_equal_eager() -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.LayerNorm(96), torch.nn.Linear(96, 200), torch.nn.GELU(), torch.nn.Linear(200, 96)
    ).cuda()
    x = torch.randn(33, 96, device="cuda", requires_grad=True)
    eager = torch.autograd.grad(model(x).square().mean(), [x, *model.parameters()])
    jitted = thunder.jit(model, executors=[mdfuse_executor])
    ours = torch.autograd.grad(jitted(x).square().mean(), [x, *model.parameters()])
    for found, expected in zip(ours, eager, strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-6)
        assert found.stride() == expected.stride()


def test_a_captured_graph_replays_on_new_contents() -> None:
    x = torch.randn(64, 4096, device="cuda", dtype=torch.bfloat16)
    w = torch.randn(4096, device="cuda", dtype=torch.bfloat16)
    jitted = thunder.jit(rms_norm, executors=[mdfuse_executor])
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        jitted(x, w)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = jitted(x, w)
    for _ in range(2):
        x.copy_(torch.randn_like(x))
        graph.replay()
        torch.cuda.synchronize()
        torch.testing.assert_close(found, jitted(x, w), rtol=0, atol=0)


def test_threads_on_their_own_streams_do_not_meet() -> None:
    jitted = thunder.jit(lambda a: (a.sum(), (a * 2).softmax(-1)), executors=[mdfuse_executor])
    inputs = [torch.randn(8, 300_000, device="cuda") for _ in range(4)]
    expected = [jitted(x) for x in inputs]
    torch.cuda.synchronize()
    wrong: list[str] = []

    def work(number: int) -> None:
        with torch.cuda.stream(torch.cuda.Stream()):
            for _ in range(20):
                found = jitted(inputs[number])
                torch.cuda.current_stream().synchronize()
                if not all(map(torch.equal, found, expected[number])):
                    wrong.append(f"thread {number}")

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert not wrong
