"""The GPUs of this machine as ``Target`` records, and the check that the driver can run our cubins.

In: a device index. Out: ``Target``. A device is queried once per process, through the driver API.
Without a GPU the recorded H200 stands in, so that planning and code generation need no device.
"""

import re
from functools import cache
from pathlib import Path
from typing import Any

import torch

from thunder_mdfuse.compile.nvrtc import compiler_version
from thunder_mdfuse.errors import CompileError
from thunder_mdfuse.schedule.target import H200, RECORDED, Target

try:
    from cuda.bindings import driver as _driver
except ImportError:  # no wheel for this platform
    _driver = None

# A cubin of any NVRTC 13.x runs on any driver of CUDA 13 (NVIDIA's minor version compatibility).
NEEDED_CUDA = 13000
NEEDED_DRIVER = "580"

# What a large copy reaches on our H200, as a share of the memory's peak: 4.23 of 4.8 TB/s.
COPY_SHARE = 0.88
# For a device that is not recorded and whose driver does not tell its memory clock.
UNKNOWN_COPY_BYTES_PER_S = 1.5e12


@cache
def current_target(device_index: int) -> Target:
    """The ``Target`` of the CUDA device ``device_index``. Raises ``CompileError`` without one."""
    check_driver()
    found = torch.cuda.device_count()
    if not 0 <= device_index < found:
        raise CompileError(f"there is no CUDA device {device_index}; torch sees {found}")
    return _query(device_index)


def default_target() -> Target:
    """The target of torch's current device, or the recorded H200 when there is no GPU."""
    if torch.cuda.is_available():
        return current_target(torch.cuda.current_device())
    return H200


@cache
def check_driver() -> None:
    """Raise ``CompileError`` unless the installed driver runs cubins of CUDA 13."""
    if _driver is None:
        raise CompileError(
            "no driver API: the package cuda-bindings is not installed; "
            "'pip install cuda-bindings cuda-core' installs it"
        )
    try:
        status, version = _driver.cuDriverGetVersion()
    except RuntimeError as e:  # the loader's own error for a missing libcuda
        raise CompileError(
            f"no NVIDIA driver was found ({e}); the cuda backend needs driver {NEEDED_DRIVER} or "
            "newer. MDFUSE_BACKEND=emulate and MDFUSE_BACKEND=reference need none"
        ) from e
    _check(status, "cuDriverGetVersion")
    require_driver(version, _installed_driver())


def require_driver(cuda_version: int, release: str | None) -> None:
    """Raise ``CompileError`` when a driver for ``cuda_version`` (12080: 12.8) is too old."""
    if cuda_version >= NEEDED_CUDA:
        return
    named = f"NVIDIA driver {release}" if release else "the installed NVIDIA driver"
    raise CompileError(
        f"{named} supports CUDA {cuda_version // 1000}.{cuda_version % 1000 // 10}; kernels that "
        f"{compiler_version()} made need CUDA {NEEDED_CUDA // 1000}.0: driver {NEEDED_DRIVER} "
        "or newer. Update the driver (on data-center GPUs the package cuda-compat-13-0 also does), "
        "or set MDFUSE_BACKEND=reference to run without generated kernels"
    )


def _installed_driver(path: Path = Path("/proc/driver/nvidia/version")) -> str | None:
    """The driver's release, as 580.95.05, where the kernel module tells it."""
    try:
        found = re.search(r"Kernel Module(?: for \S+)?\s+(\d+(?:\.\d+)+)", path.read_text())
    except OSError:
        return None
    return found[1] if found else None


def _check(status: Any, call: str) -> None:
    if int(status) != 0:
        raise CompileError(f"{call} failed: {status}")


def _query(index: int) -> Target:
    # torch numbers devices as the driver does: both follow CUDA_VISIBLE_DEVICES.
    status, device = _driver.cuDeviceGet(index)
    _check(status, "cuDeviceGet")
    name = torch.cuda.get_device_name(index)
    major = _attribute(device, "COMPUTE_CAPABILITY_MAJOR")
    minor = _attribute(device, "COMPUTE_CAPABILITY_MINOR")
    return Target(
        name=name,
        arch=f"sm_{major}{minor}",
        sm_count=_attribute(device, "MULTIPROCESSOR_COUNT"),
        max_threads_per_block=_attribute(device, "MAX_THREADS_PER_BLOCK"),
        max_threads_per_sm=_attribute(device, "MAX_THREADS_PER_MULTIPROCESSOR"),
        registers_per_sm=_attribute(device, "MAX_REGISTERS_PER_MULTIPROCESSOR"),
        shared_per_block=_attribute(device, "MAX_SHARED_MEMORY_PER_BLOCK_OPTIN"),
        shared_per_sm=_attribute(device, "MAX_SHARED_MEMORY_PER_MULTIPROCESSOR"),
        max_cluster=8 if _attribute(device, "CLUSTER_LAUNCH") else 1,
        warp_size=_attribute(device, "WARP_SIZE"),
        l2_bytes=_attribute(device, "L2_CACHE_SIZE"),
        copy_bytes_per_s=copy_rate(
            name,
            _attribute(device, "MEMORY_CLOCK_RATE"),
            _attribute(device, "GLOBAL_MEMORY_BUS_WIDTH"),
        ),
    )


def _attribute(device: Any, name: str) -> int:
    attribute = getattr(_driver.CUdevice_attribute, f"CU_DEVICE_ATTRIBUTE_{name}")
    status, found = _driver.cuDeviceGetAttribute(attribute, device)
    _check(status, f"cuDeviceGetAttribute({name})")
    return int(found)


def copy_rate(name: str, clock_khz: int, bus_bits: int) -> float:
    """Bytes per second of a large copy: as recorded, else from the memory's clock and width."""
    if name in RECORDED:
        return RECORDED[name].copy_bytes_per_s
    # Two transfers a clock. Newer drivers report 0 for the clock.
    peak = 2.0 * clock_khz * 1000 * bus_bits / 8
    return COPY_SHARE * peak if peak > 0 else UNKNOWN_COPY_BYTES_PER_S
