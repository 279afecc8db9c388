"""Querying a device, the stand-in without one, and drivers that are missing or too old."""

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from thunder_mdfuse.compile import device
from thunder_mdfuse.compile.device import (
    check_driver,
    copy_rate,
    current_target,
    default_target,
    require_driver,
)
from thunder_mdfuse.errors import CompileError
from thunder_mdfuse.schedule.target import A100, H200, RECORDED

without_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")

ATTRIBUTES = {
    "COMPUTE_CAPABILITY_MAJOR": 9,
    "COMPUTE_CAPABILITY_MINOR": 0,
    "MULTIPROCESSOR_COUNT": 132,
    "MAX_THREADS_PER_BLOCK": 1024,
    "MAX_THREADS_PER_MULTIPROCESSOR": 2048,
    "MAX_REGISTERS_PER_MULTIPROCESSOR": 65536,
    "MAX_SHARED_MEMORY_PER_BLOCK_OPTIN": 232448,
    "MAX_SHARED_MEMORY_PER_MULTIPROCESSOR": 233472,
    "CLUSTER_LAUNCH": 1,
    "WARP_SIZE": 32,
    "L2_CACHE_SIZE": 60 * 2**20,
    "MEMORY_CLOCK_RATE": 3201000,
    "GLOBAL_MEMORY_BUS_WIDTH": 6144,
}


class FakeDriver:
    """A driver of one version with one kind of device; counts the queries."""

    def __init__(self, version: int = 13000, **changes: int) -> None:
        self.version = version
        self.attributes = {**ATTRIBUTES, **changes}
        self.asked: list[str] = []
        self.CUdevice_attribute = SimpleNamespace(
            **{f"CU_DEVICE_ATTRIBUTE_{name}": name for name in ATTRIBUTES}
        )

    def cuDriverGetVersion(self) -> tuple[int, int]:
        return 0, self.version

    def cuDeviceGet(self, index: int) -> tuple[int, int]:
        return 0, index

    def cuDeviceGetAttribute(self, name: str, index: int) -> tuple[int, int]:
        self.asked.append(name)
        return 0, self.attributes[name]


@pytest.fixture(autouse=True)
def fresh() -> Any:
    """What was found with a fake driver must not outlive its test, nor the other way round."""
    current_target.cache_clear()
    check_driver.cache_clear()
    yield
    current_target.cache_clear()
    check_driver.cache_clear()


def install(
    monkeypatch: pytest.MonkeyPatch, driver: Any, name: str = "NVIDIA H200", count: int = 2
) -> None:
    monkeypatch.setattr(device, "_driver", driver)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: count > 0)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda index: name)


def test_an_h200_is_the_recorded_h200(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, FakeDriver())
    assert current_target(0) == H200
    assert default_target() == H200


def test_a_device_is_queried_once(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = FakeDriver()
    install(monkeypatch, driver)
    first = current_target(1)
    asked = len(driver.asked)
    assert default_target() is first  # torch's current device is 1
    assert len(driver.asked) == asked > 0


def test_a_device_that_is_not_recorded_is_measured_by_its_own_numbers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    driver = FakeDriver(
        COMPUTE_CAPABILITY_MAJOR=8,
        COMPUTE_CAPABILITY_MINOR=9,
        MULTIPROCESSOR_COUNT=128,
        MAX_THREADS_PER_MULTIPROCESSOR=1536,
        MAX_SHARED_MEMORY_PER_BLOCK_OPTIN=101376,
        MAX_SHARED_MEMORY_PER_MULTIPROCESSOR=102400,
        CLUSTER_LAUNCH=0,
        MEMORY_CLOCK_RATE=10501000,
        GLOBAL_MEMORY_BUS_WIDTH=384,
    )
    install(monkeypatch, driver, "NVIDIA GeForce RTX 4090")
    found = current_target(0)
    assert (found.arch, found.sm_count, found.max_cluster) == ("sm_89", 128, 1)
    assert found.copy_bytes_per_s == pytest.approx(0.88 * 1.008e12, rel=0.01)


def test_copy_rates() -> None:
    assert copy_rate("NVIDIA H200", 1, 1) == H200.copy_bytes_per_s
    assert copy_rate("NVIDIA A100-SXM4-80GB", 0, 0) == A100.copy_bytes_per_s
    # Recorded or computed, an H200 is about the same.
    assert copy_rate("other", 3201000, 6144) == pytest.approx(H200.copy_bytes_per_s, rel=0.03)
    assert copy_rate("other", 0, 6144) == device.UNKNOWN_COPY_BYTES_PER_S


def test_a_driver_that_is_too_old_is_one_error_with_found_needed_and_remedy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    install(monkeypatch, FakeDriver(version=12080))
    monkeypatch.setattr(device, "_installed_driver", lambda: "570.86.10")
    with pytest.raises(CompileError) as caught:
        current_target(0)
    message = str(caught.value)
    assert "NVIDIA driver 570.86.10 supports CUDA 12.8" in message
    assert "need CUDA 13.0: driver 580 or newer" in message
    assert "Update the driver" in message
    assert "MDFUSE_BACKEND=reference" in message


@pytest.mark.parametrize("version", [13000, 13010, 14000])
def test_a_driver_that_is_new_enough_is_silent(version: int) -> None:
    require_driver(version, None)


def test_an_old_driver_of_unknown_release_is_still_named() -> None:
    with pytest.raises(CompileError, match=r"the installed NVIDIA driver supports CUDA 12\.6"):
        require_driver(12060, None)


@pytest.mark.parametrize(
    ("text", "release"),
    [
        ("NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue Mar  5\n", "550.54.15"),
        (
            "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release Build\n",
            "580.95.05",
        ),
        ("something else", None),
    ],
)
def test_the_release_is_read_where_the_kernel_module_tells_it(
    text: str, release: str | None, tmp_path: Path
) -> None:
    (tmp_path / "version").write_text(text)
    assert device._installed_driver(tmp_path / "version") == release
    assert device._installed_driver(tmp_path / "absent") is None


def test_a_missing_driver_is_one_error(monkeypatch: pytest.MonkeyPatch) -> None:
    class NoDriver(FakeDriver):
        def cuDriverGetVersion(self) -> tuple[int, int]:
            raise RuntimeError("libcuda.so.1 not found")

    install(monkeypatch, NoDriver(), count=0)
    with pytest.raises(CompileError, match=r"no NVIDIA driver was found \(libcuda\.so\.1"):
        current_target(0)


def test_a_missing_package_is_one_error(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, None)
    with pytest.raises(CompileError, match="pip install cuda-bindings"):
        current_target(0)


@pytest.mark.parametrize("index", [-1, 2])
def test_a_device_that_is_not_there_is_named(index: int, monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, FakeDriver())
    with pytest.raises(CompileError, match=f"no CUDA device {index}; torch sees 2"):
        current_target(index)


@without_gpu
def test_without_a_gpu_the_recorded_h200_stands_in() -> None:
    assert default_target() is H200
    with pytest.raises(CompileError):
        current_target(0)


@pytest.mark.gpu
def test_the_recorded_numbers_are_those_of_the_live_device() -> None:
    found = current_target(torch.cuda.current_device())
    if found.name in RECORDED:
        assert found == RECORDED[found.name]
    assert default_target() is found
    assert re.fullmatch(r"sm_\d+", found.arch)


@pytest.mark.gpu
def test_torch_and_the_driver_agree() -> None:
    found, seen = current_target(0), torch.cuda.get_device_properties(0)
    assert found.sm_count == seen.multi_processor_count
    assert found.arch == f"sm_{seen.major}{seen.minor}"
    assert found.l2_bytes == seen.L2_cache_size
