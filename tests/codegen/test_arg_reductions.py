"""argmax and argmin in kernels, against eager torch: ties, NaN, dims, dtypes, lengths."""

import pytest
import torch
from codegen.emulated import LAYOUTS, program, run, same_bits, strided, typed

DTYPES = (
    *(torch.float32, torch.bfloat16, torch.float16, torch.float64),
    *(torch.uint8, torch.int8, torch.int32, torch.int64),
)
SHAPES = (
    *((), (1,), (7,), (1, 5), (5, 1), (3, 33), (4, 64), (2, 1000), (3, 5, 7), (1, 8192), (65, 2)),
)


@pytest.fixture(autouse=True)
def emulated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MDFUSE_BACKEND", "emulate")
    monkeypatch.setenv("MDFUSE_EMULATOR_ORDERS", "3")


def _values(shape: tuple[int, ...], dtype: torch.dtype, seed: int) -> torch.Tensor:
    """Few different numbers, so that there are ties."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randint(0, 9, shape, generator=generator).to(dtype)
    return x - 4 if dtype is not torch.uint8 else x


def _found(x: torch.Tensor, dim: int | None) -> None:
    """Both ops along ``dim``, in one kernel where there is something to compare."""
    wanted = [
        x.argmax() if dim is None else x.argmax(dim),
        x.argmin() if dim is None else x.argmin(dim),
    ]
    along = "none" if dim is None else dim
    body = "\n".join(
        f"%{n} = {op}(%0; dim={along}) : {typed(w)}"
        for n, (op, w) in enumerate(zip(("argmax", "argmin"), wanted, strict=True), 1)
    )
    found, executable = run([x], body, "%1, %2")
    for value, right in zip(found, wanted, strict=True):
        same_bits(value, right.contiguous())
    if (x.numel() if dim is None else x.shape[dim]) > 1:
        assert len(executable.last.plan.kernels) == 1  # type: ignore[union-attr]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_every_dim(shape: tuple[int, ...]) -> None:
    x = _values(shape, torch.float32, 0)
    for dim in (None, *range(len(shape))):
        _found(x, dim)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_dtype(dtype: torch.dtype) -> None:
    x = _values((3, 130), dtype, 1)
    _found(x, 1)
    _found(x, None)


@pytest.mark.parametrize("kind", LAYOUTS)
def test_layouts(kind: str) -> None:
    x = strided(_values((4, 6, 5), torch.float32, 2), kind)
    for dim in (None, 0, 1, 2):
        _found(x, dim)


@pytest.mark.parametrize("special", [float("nan"), float("inf"), float("-inf")])
def test_the_first_of_special_numbers(special: float) -> None:
    x = torch.randn(4, 300, generator=torch.Generator().manual_seed(0))
    x[0, 200] = x[0, 7] = x[0, 9] = special
    x[1] = special
    x[2, 5], x[2, 3] = 0.0, -0.0
    _found(x, 1)
    _found(x.clamp(-0.0, 0.0) if special != special else x, None)


def test_equal_zeros_are_a_tie() -> None:
    x = torch.tensor([[-0.0, 0.0, -0.0], [0.0, -0.0, 0.0]])
    _found(x, 1)


def test_a_long_row_is_shared_by_blocks() -> None:
    x = _values((2, 70000), torch.float32, 3)
    x[1, 69999] = 100.0
    x[0] = 1.0
    found, executable = run([x], "%1 = argmax(%0; dim=1) : i64[2]", "%1")
    same_bits(found[0], x.argmax(1))
    assert executable.last.plan.kernels[0].launch.parts != 1  # type: ignore[union-attr]


def test_beside_other_reductions_and_used_as_an_index() -> None:
    """The largest number, where it is and what a table has there: one kernel for each row."""
    x, table = torch.randn(5, 1000), torch.randn(1000)
    body = """%2 = amax(%0; dims=[1]) : f32[5]
%3 = argmax(%0; dim=1) : i64[5]
%4 = take(%1, %3; dim=0) : f32[5]
%5 = sum(%0; dims=[1]) : f32[5]"""
    found, executable = run([x, table], body, "%2, %3, %4, %5")
    same_bits(found[0], x.amax(1))
    same_bits(found[1], x.argmax(1))
    same_bits(found[2], table[x.argmax(1)])
    torch.testing.assert_close(found[3], x.sum(1), rtol=1e-5, atol=1e-4)
    assert len(executable.last.plan.kernels) == 1  # type: ignore[union-attr]


def test_what_a_half_does_not_tell_apart_is_a_tie() -> None:
    """Sums that eager rounds to one bf16 are equal, though f32 knows the larger."""
    a = torch.tensor([[256.0, 256.0, 256.0, 1.0]]).bfloat16()
    b = torch.tensor([[0.25, 0.5, 0.75, 0.0]]).bfloat16()
    body = "%2 = add(%0, %1) : bf16[1, 4]\n%3 = argmax(%2; dim=1) : i64[1]"
    (found,), _ = run([a, b], body, "%3")
    same_bits(found, (a + b).argmax(1))


def test_no_element_is_the_largest_of_none() -> None:
    x = torch.empty(3, 0)
    with pytest.raises(IndexError, match="argmax"):
        program([x], "%1 = argmax(%0; dim=1) : i64[3]", "%1").run([x])
    y = torch.empty(0, 3)
    (found,), _ = run([y], "%1 = argmax(%0; dim=1) : i64[0]", "%1")
    same_bits(found, y.argmax(1))
