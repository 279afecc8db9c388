"""What looks up, scatters and finds the largest on a GPU, against eager torch on the CPU."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from codegen.emulated import program, typed

pytestmark = pytest.mark.gpu
ROOT = Path(__file__).parents[2]
# Whole numbers, whose sums are exact in each: atomics may come in any order.
DTYPES = (
    *(torch.float32, torch.bfloat16, torch.float16, torch.float64),
    *(torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64),
    *(torch.complex64, torch.complex128),
)


def _run(inputs: list[torch.Tensor], body: str, outputs: str) -> list[torch.Tensor]:
    executable = program(inputs, body, outputs)
    found = executable.run([x.cuda() for x in inputs])
    assert all(s.kind == "kernel" for s in executable.last.plan.steps)  # type: ignore[union-attr]
    return [x.cpu() for x in found if isinstance(x, torch.Tensor)]


def _whole(shape: tuple[int, ...], dtype: torch.dtype, seed: int) -> torch.Tensor:
    return torch.randint(0, 2, shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


@pytest.mark.parametrize("rows", [3, 1000])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_many_values_are_added_to_few_places(dtype: torch.dtype, rows: int) -> None:
    count = 60 * rows  # sums up to about 100, which every dtype has
    x, source = _whole((rows, 33), dtype, 0), _whole((count, 33), dtype, 1)
    index = torch.arange(count) % rows
    (found,) = _run([x, index, source], f"%3 = index_add(%0, %1, %2; dim=0) : {typed(x)}", "%3")
    assert torch.equal(found, x.index_add(0, index, source))


@pytest.mark.parametrize("dtype", [*DTYPES, torch.bool, torch.float8_e4m3fn], ids=str)
def test_rows_are_looked_up(dtype: torch.dtype) -> None:
    weight = torch.randn(5000, 256).mul(8).abs().to(dtype)
    index = torch.randint(0, 5000, (7, 300))
    wanted = weight[index]
    (found,) = _run([index, weight], f"%2 = embedding(%0, %1) : {typed(wanted)}", "%2")
    assert torch.equal(found.view(torch.uint8), wanted.view(torch.uint8))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_gradients_of_embeddings(dtype: torch.dtype) -> None:
    index = torch.randint(0, 500, (4096,))
    grad = torch.randn(4096, 256).to(dtype)
    attrs = "rows=1000, padding_idx=7, scale_grad_by_freq=false"
    body = f"%2 = embedding_backward(%0, %1; {attrs}) : {typed(grad)[: -len('[4096, 256]')]}"
    (found,) = _run([grad, index], f"{body}[1000, 256]", "%2")
    wanted = torch.ops.aten.embedding_dense_backward(grad.double(), index, 1000, 7, False)
    error = (found.double() - wanted).abs()
    assert bool((error <= wanted.abs() * torch.finfo(dtype).eps * 0.51 + 1e-5).all())


@pytest.mark.parametrize("shape", [(3, 100_000), (1000, 33), (4096, 4096), (1, 1 << 22)])
def test_where_the_largest_stands(shape: tuple[int, int]) -> None:
    x = torch.randint(-1000, 1000, shape).float()
    x[0, 20:22] = float("nan")
    body = f"%1 = argmax(%0; dim=1) : i64[{shape[0]}]\n%2 = argmin(%0; dim=none) : i64[]"
    found = _run([x], body, "%1, %2")
    assert torch.equal(found[0], x.argmax(1))
    assert torch.equal(found[1], x.argmin())


def test_complex_arithmetic() -> None:
    x, y = (torch.randn(1001, 130, dtype=torch.complex64) for _ in "xy")
    shape = "c64[1001, 130]"
    body = f"%2 = mul(%0, %1) : {shape}\n%3 = div(%2, %0) : {shape}\n"
    body += "%4 = sum(%3; dims=[1]) : c64[1001]"
    product, total = _run([x, y], body, "%2, %4")
    torch.testing.assert_close(product, x * y, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(total, (x * y / x).sum(1), rtol=1e-4, atol=1e-3)


OUT_OF_RANGE = """
import torch
from codegen.emulated import program
index, weight = torch.tensor([0, 3, 9, 1]).cuda(), torch.randn(7, 8).cuda()
program([index, weight], "%2 = embedding(%0, %1) : f32[4, 8]", "%2").run([index, weight])
torch.cuda.synchronize()
"""


def test_an_index_out_of_range_is_a_device_side_assertion() -> None:
    """In a process of its own: the error stays with a process for good."""
    path = f"{ROOT}:{ROOT / 'tests'}"
    done = subprocess.run(
        [sys.executable, "-c", OUT_OF_RANGE],
        env={"PYTHONPATH": path, "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode != 0
    assert "device-side assert" in done.stderr, done.stderr
    assert "an index is out of range" in done.stdout + done.stderr, done.stderr
