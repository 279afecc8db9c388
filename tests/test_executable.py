"""Executables: what is planned when, what inputs they refuse, dumps, threads, reports."""

import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from thunder_mdfuse import pipeline
from thunder_mdfuse.errors import ProgramError
from thunder_mdfuse.executable import Executable, compile_fusion
from thunder_mdfuse.ir.text import parse
from thunder_mdfuse.runtime import launch


@pytest.fixture(params=["emulate", "reference"], autouse=True)
def backend(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Every test runs the generated kernels and the reference, and wants the same of both."""
    name: str = request.param
    monkeypatch.setenv("MDFUSE_BACKEND", name)
    monkeypatch.setenv("MDFUSE_EMULATOR_ORDERS", "2")
    monkeypatch.setenv("MDFUSE_VERIFY", "1")
    return name


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> Iterator[Counter[str]]:
    """How often programs were planned and kernels compiled since the test began."""
    found: Counter[str] = Counter()

    def count(module: Any, name: str) -> None:
        original = getattr(module, name)

        def counting(*args: Any, **kwargs: Any) -> Any:
            found[name] += 1
            return original(*args, **kwargs)

        monkeypatch.setattr(module, name, counting)

    count(pipeline, "plan")
    count(launch, "build")
    yield found


def make(text: str) -> Executable:
    return Executable(parse(text), "test")


def run(text: str, *inputs: Any) -> list[Any]:
    return list(make(text).run(inputs))


SUM = """
global
%0 = input(position=0) : f32[s0, s1]
%1 = input(position=1) : f32[s0, s1]
%2 = add(%0, %1) : f32[s0, s1]
%3 = sum(%2; dims=[1]) : f32[s0]
return %2, %3
"""


def pair(*shape: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Two tensors of their own memory, so of the best alignment."""
    return torch.randn(shape), torch.randn(shape)


def check_sum(executable: Executable, x: torch.Tensor, y: torch.Tensor) -> None:
    total, rows = executable.run([x, y])
    assert isinstance(total, torch.Tensor)
    assert isinstance(rows, torch.Tensor)
    torch.testing.assert_close(total, x + y, rtol=0, atol=0)
    torch.testing.assert_close(rows.double(), (x + y).double().sum(1), rtol=1e-5, atol=1e-5)
    assert total.stride() == (x + y).stride()


def test_a_second_call_plans_and_compiles_nothing(counted: Counter[str]) -> None:
    executable = make(SUM)
    x, y = pair(6, 64)
    check_sum(executable, x, y)
    assert counted["plan"] == 1
    before = counted.copy()
    for _ in range(3):
        check_sum(executable, torch.randn(6, 64), y)
    assert counted == before


def test_sizes_of_the_same_class_share_plan_and_kernels(counted: Counter[str]) -> None:
    executable = make(SUM)
    check_sum(executable, *pair(6, 64))
    texts = executable.kernel_sources()
    for shape in ((7, 64), (100, 52), (2, 60)):
        check_sum(executable, *pair(*shape))
        assert counted["plan"] == 1, shape
        assert executable.kernel_sources() == texts


@pytest.mark.parametrize(
    ("shape", "why"),
    [
        ((1, 64), "a dim of one element merges with anything"),
        ((6, 1), "a row of one element"),
        ((64, 64), "equal sizes"),
        ((6, 62), "4 does not divide the row"),
        ((6, 63), "2 does not divide the row"),
        ((6, 5000), "another launch rule"),
        ((0, 64), "no rows"),
        ((6, 0), "rows without elements"),
    ],
)
def test_other_sizes_are_right_too(shape: tuple[int, int], why: str) -> None:
    """Whether or not the first plan's guards hold for them, and in both orders."""
    executable = make(SUM)
    for sizes in ((6, 64), shape, (6, 64), shape):
        check_sum(executable, *pair(*sizes))


def test_a_failed_guard_makes_another_plan(counted: Counter[str]) -> None:
    executable = make(SUM)
    for planned, shape in ((1, (6, 64)), (2, (6, 63)), (2, (6, 64)), (2, (8, 61)), (3, (6, 5000))):
        check_sum(executable, *pair(*shape))
        assert counted["plan"] == planned, shape


def test_plans_are_forgotten_and_made_again(
    counted: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Layout classes beyond the most that are kept, then guards of one class."""
    monkeypatch.setattr("thunder_mdfuse.executable.MOST_PLANS", 2)
    monkeypatch.setattr("thunder_mdfuse.executable.MOST_VARIANTS", 2)
    executable = make(SUM)
    x, y = pair(6, 64)
    for planned, other in ((1, x), (2, x[:, 1:]), (3, x.t().contiguous().t()), (4, x)):
        executable._entries.clear()
        check_sum(executable, other, y[:, : other.shape[1]])
        assert counted["plan"] == planned
        assert executable._plans.stats().size <= 2
    for n in (63, 1, 62, 64, 1, 63):
        executable._entries.clear()
        check_sum(executable, *pair(6, n))
        assert all(len(v) <= 2 for v in executable._plans._kept.values())


def test_strides_and_alignment_are_part_of_the_class(counted: Counter[str]) -> None:
    executable = make(SUM)
    whole = torch.randn(2, 7, 68)
    check_sum(executable, *pair(6, 64))
    check_sum(executable, whole[0, 1:, 1:65], whole[1, 1:, 1:65])  # 4 bytes past 16
    check_sum(executable, whole[0, 1:, 4:], whole[1, 1:, 4:])  # aligned, with gaps
    check_sum(executable, whole[0, :, :64].t(), whole[1, :, :64].t())
    check_sum(executable, torch.randn(6, 1).expand(6, 64), torch.randn(6, 64))
    assert counted["plan"] == 5


def test_a_fusion_that_is_for_some_sizes_only_says_so() -> None:
    executable = make(SUM + "where 2 divides s1")
    check_sum(executable, *pair(6, 64))
    with pytest.raises(ProgramError, match=r"is for sizes with 2 divides s1, found s1=63"):
        executable.run([*pair(6, 63)])


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ([torch.ones(2, 3)], "takes 2 inputs, found 1"),
        ([torch.ones(2, 3), torch.ones(2, 3).double()], r"input 1 must be a tensor f32\[s0, s1\]"),
        ([torch.ones(2, 3), torch.ones(2, 3, 1)], r"found f32\[2, 3, 1\]; reshape it"),
        ([torch.ones(2, 3), torch.ones(2, 4)], r"must have shape \[2, 3\] .* found \[2, 4\]"),
        ([torch.ones(2, 3), 1.0], "found 1.0 of type float"),
    ],
)
def test_inputs_that_do_not_fit(inputs: list[Any], message: str) -> None:
    with pytest.raises(ProgramError, match=message):
        make(SUM).run(inputs)


def test_a_number_must_be_of_its_type() -> None:
    text = """
    global
    %0 = input(position=0) : i64
    %1 = input(position=1) : f32[4]
    %2 = mul(%1, %0) : f32[4]
    return %2
    """
    with pytest.raises(ProgramError, match=r"input 0 must be a number of dtype i64, found 1.5"):
        run(text, 1.5, torch.ones(4))


def test_inputs_that_lie_in_one_storage() -> None:
    """Twice the same, and two windows that overlap."""
    executable = make(SUM)
    x = torch.randn(7, 64)
    check_sum(executable, x, x)
    check_sum(executable, x[:6], x[1:])


def test_the_inputs_are_left_alone() -> None:
    x, y = pair(6, 64)
    old = x.clone(), y.clone()
    make(SUM).run([x, y])
    assert torch.equal(x, old[0])
    assert torch.equal(y, old[1])


def test_no_gradient_is_recorded() -> None:
    x = torch.randn(6, 64, requires_grad=True)
    found = make(SUM).run([x, torch.randn(6, 64)])
    assert not any(v.requires_grad for v in found if isinstance(v, torch.Tensor))


def test_stages_reach_numbered_files(
    backend: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MDFUSE_DUMP", str(tmp_path))
    executable = make(SUM)
    executable.run([*pair(6, 64)])
    (folder,) = tmp_path.iterdir()
    assert folder.name.startswith("test")
    assert sorted(p.name for p in folder.iterdir()) == [
        "00_region.txt",
        "01_decompose.txt",
        "02_propagate.txt",
        "03_reshard.txt",
        "04_localize.txt",
        "05_program.txt",
        "06_kernel0.cu",
        *["07_call.py"] * (backend == "emulate"),
    ]
    assert parse((folder / "00_region.txt").read_text()) == executable.fusion
    assert (folder / "06_kernel0.cu").read_text() in executable.kernel_sources().values()
    assert list(executable.stages()) == [
        p[3:].split(".")[0] for p in sorted(f.name for f in folder.iterdir())
    ]


def test_equal_fusions_share_one_executable() -> None:
    first, second = compile_fusion(parse(SUM), "a"), compile_fusion(parse(SUM), "b")
    assert first is second
    assert compile_fusion(parse(SUM + "where s0 != 3"), "a") is not first


def test_threads_may_call_one_executable(counted: Counter[str]) -> None:
    executable = make(SUM)
    shapes = [(6, 64), (7, 64), (6, 63), (1, 64)] * 3
    faults: list[BaseException] = []
    gate = threading.Barrier(4)

    def work(mine: list[tuple[int, int]]) -> None:
        gate.wait()
        try:
            for shape in mine:
                check_sum(executable, *pair(*shape))
        except BaseException as e:
            faults.append(e)

    threads = [threading.Thread(target=work, args=(shapes[i:] + shapes[:i],)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert faults == []
    assert counted["plan"] <= 4


def test_reports_count_bytes() -> None:
    executable = make(SUM)
    assert executable.report() == []
    executable.run([*pair(6, 64)])
    (kernel,) = executable.report()
    assert (kernel.kind, kernel.name) == ("kernel", "kernel0")
    assert (kernel.bytes_read, kernel.bytes_written) == (2 * 6 * 64 * 4, (6 * 64 + 6) * 4)
    assert kernel.ops == ("add", "sum")


def test_a_sparse_input_is_refused() -> None:
    x, y = pair(6, 64)
    with pytest.raises(ProgramError, match=r"an input is sparse_coo, .* make it dense"):
        make(SUM).run([x.to_sparse(), y])
