"""A cubin loaded on a device, and launches of its kernel that cost as little as cuda.core allows.

In: ``Cubin``, a device index, at launch a raw stream and encoded arguments. Out: kernels that run.
Guarantees: a module is on its device once ``load`` returns (loading later, at the first launch, can
wait for ever beside a kernel that spins on its peers); two loads of one cubin give one object; a
launch allocates nothing on the device and works under graph capture.

Arguments. cuda.core takes a Python int as 8 bytes, a float as a double and a complex as two
doubles, and the driver copies as many bytes as the parameter has. CUDA hosts are little-endian, so
an int that holds a value's bits in its low bytes is right for every parameter of at most 8 bytes,
and it is the cheapest by far: packing 8 arguments took 0.5 us as ints, 0.4 us as numpy scalars (and
0.35 us more to make each), 5.2 us as ctypes objects. ``ENCODE`` has a function for each kind of
parameter; an int that is known to fit (a data_ptr, a guarded size) may be passed as it is.
"""

import hashlib
import operator
import struct
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from thunder_mdfuse.compile.device import check_driver, current_target
from thunder_mdfuse.compile.nvrtc import Cubin, resource_usage
from thunder_mdfuse.errors import CompileError, ProgramError

try:
    from cuda.bindings import driver as _driver
except ImportError:  # no wheel for this platform
    _driver = None
try:
    from cuda.core import Device, LaunchConfig, ObjectCode, Stream, launch
except ImportError:
    try:  # cuda-core 0.4 has them here only
        from cuda.core.experimental import Device, LaunchConfig, ObjectCode, Stream, launch
    except ImportError:
        Device = LaunchConfig = ObjectCode = Stream = launch = None

Dim3 = tuple[int, int, int]
Argument = int | float | complex

_ONE: Dim3 = (1, 1, 1)
# A block may have this much dynamic shared memory without asking; on every arch since sm_50.
_SHARED_WITHOUT_ASKING = 48 * 1024
_PORTABLE_CLUSTER = 8
_MOST_PREPARED = 1024
_GRID_LIMITS = (2**31 - 1, 65535, 65535)

# --- Arguments -----------------------------------------------------------------------------------


def _integer(bits: int, signed: bool) -> Callable[[Any], int]:
    low, high = (-(1 << bits - 1), (1 << bits - 1) - 1) if signed else (0, (1 << bits) - 1)

    def encode(value: Any) -> int:
        number = operator.index(value)
        if not low <= number <= high:
            raise ProgramError(
                f"kernel argument {number} does not fit a {'' if signed else 'un'}signed "
                f"{bits}-bit parameter, which holds {low} to {high}"
            )
        # cuda.core stores a signed 64-bit number; the upper half of u64 is its negative numbers.
        return number - (1 << 64) if number >= 1 << 63 else number

    return encode


def _f32(value: Any) -> int:
    try:
        packed = struct.pack("<f", value)
    except OverflowError:  # beyond the largest f32: what a conversion to f32 gives is infinity
        packed = struct.pack("<f", float("inf") if value > 0 else float("-inf"))
    return int.from_bytes(packed, "little")


def _c64(value: Any) -> int:
    number = complex(value)
    bits = _f32(number.real) | _f32(number.imag) << 32
    return bits - (1 << 64) if bits >= 1 << 63 else bits


# Kind of parameter -> (its size in bytes, value -> what a launch takes).
ENCODE: dict[str, tuple[int, Callable[[Any], Argument]]] = {
    "ptr": (8, _integer(64, signed=False)),
    "bool": (1, lambda value: int(bool(value))),
    "u8": (1, _integer(8, signed=False)),
    "i8": (1, _integer(8, signed=True)),
    "i16": (2, _integer(16, signed=True)),
    "i32": (4, _integer(32, signed=True)),
    "i64": (8, _integer(64, signed=True)),
    "u64": (8, _integer(64, signed=False)),
    "f32": (4, _f32),
    "f64": (8, float),
    "c64": (8, _c64),
    "c128": (16, complex),
}


def encode(kinds: Sequence[str], values: Sequence[Any]) -> tuple[Argument, ...]:
    """``values`` as a launch takes them, for parameters of ``kinds`` (keys of ``ENCODE``)."""
    assert len(kinds) == len(values), (kinds, values)
    return tuple(ENCODE[kind][1](value) for kind, value in zip(kinds, values, strict=True))


def check_parameters(cubin: Cubin, kinds: Sequence[str]) -> None:
    """Raise unless the kernel's parameters have the sizes of ``kinds``.

    The driver reads as many arguments as the kernel has, whatever was passed: a launch with too few
    would read past the end.
    """
    found = resource_usage(cubin).parameter_sizes
    needed = tuple(ENCODE[kind][0] for kind in kinds)
    if found != needed:
        raise CompileError(
            f"kernel {cubin.entry!r} has parameters of {found} bytes, but it is called with "
            f"{', '.join(kinds) or 'nothing'}, which are {needed} bytes"
        )


# --- Streams -------------------------------------------------------------------------------------

_streams: dict[int, Any] = {}
_MOST_STREAMS = 256


def raw_stream(device: int) -> int:
    """torch's current stream on ``device``, as the number that the driver knows it by."""
    return int(torch._C._cuda_getCurrentRawStream(device))


def stream_of(device: int) -> Any:
    """torch's current stream on ``device``, as what a launch takes."""
    raw = torch._C._cuda_getCurrentRawStream(device)
    return _streams.get(raw) or _stream(raw)


def _stream(pointer: int) -> Any:
    """cuda.core's object for a raw stream. Making one takes 18 us, and it holds the number only."""
    found = _streams.get(pointer)
    if found is None:
        if len(_streams) >= _MOST_STREAMS:  # a program that makes a stream for each call
            _streams.clear()
        found = _streams[pointer] = Stream.from_handle(pointer)
    return found


# --- Kernels -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Prepared:
    """A kernel with a configuration, as cuda.core's ``launch(stream, config, kernel, *arguments)``
    takes them; without a configuration where the grid has no blocks, which launches nothing.
    """

    launch: Any
    kernel: Any
    config: Any
    where: str

    def __call__(self, stream: int, *arguments: Argument) -> None:
        """Launch on a raw stream, with encoded arguments."""
        if self.config is None:
            return
        try:
            self.launch(_stream(stream), self.config, self.kernel, *arguments)
        except Exception as e:
            e.add_note(f"while launching {self.where} on stream {stream:#x}")
            raise


class LoadedKernel:
    """One kernel on one device. Made by ``load``, which keeps one for each cubin and device."""

    def __init__(self, cubin: Cubin, device: int) -> None:
        self.entry = cubin.entry
        self.device = device
        self.usage = resource_usage(cubin)
        self._target = current_target(device)
        self._dynamic_shared = _SHARED_WITHOUT_ASKING - self.usage.static_shared
        self._lock = threading.Lock()
        self._prepared: dict[tuple[Dim3, Dim3, int, Dim3], Prepared] = {}
        with torch.cuda.device(device):
            # torch makes a context at its first use of the device, which may be yet to come; its
            # context manager puts the caller's device back.
            Device(device).set_current()
            self._kernel = ObjectCode.from_cubin(cubin.code, name=cubin.entry).get_kernel(
                cubin.entry
            )
            self._handle = getattr(self._kernel, "handle", None) or self._kernel._handle
            # The driver loads lazily (CUDA_MODULE_LOADING); asking for the function loads now.
            _check(_driver.cuKernelGetFunction(self._handle)[0], f"loading {cubin.entry!r}")

    def prepare(
        self, grid: Dim3, block: Dim3, shared_bytes: int = 0, cluster: Dim3 = _ONE
    ) -> Prepared:
        """The kernel with this configuration.

        ``grid`` is in blocks, clusters or not, as gridDim is. ``shared_bytes`` is dynamic. A grid
        without blocks (an empty tensor or shard) launches nothing. On the default stream, which is
        0 on every device, the caller makes ``self.device`` current.
        """
        key = (grid, block, shared_bytes, cluster)
        found = self._prepared.get(key)
        if found is None:
            with self._lock:
                if len(self._prepared) >= _MOST_PREPARED:  # a new grid for each of many shapes
                    self._prepared.clear()
                found = self._prepared[key] = self._prepare(*key)
        return found

    def _prepare(self, grid: Dim3, block: Dim3, shared_bytes: int, cluster: Dim3) -> Prepared:
        problem = configuration_problem(grid, block, cluster, self._target.max_threads_per_block)
        if problem:
            raise CompileError(f"kernel {self.entry!r} cannot be launched: {problem}")
        where = f"kernel {self.entry!r}, grid {grid}, block {block}, {shared_bytes} B, {cluster}"
        if 0 in grid:
            return Prepared(launch, self._kernel, None, where)  # the driver would refuse it
        self._allow(shared_bytes, cluster)
        config = launch_config(grid, block, shared_bytes, cluster)
        return Prepared(launch, self._kernel, config, where)

    def _allow(self, shared_bytes: int, cluster: Dim3) -> None:
        """Raise the kernel's own limits on dynamic shared memory and cluster size where needed."""
        total = shared_bytes + self.usage.static_shared
        if total > self._target.shared_per_block:
            raise CompileError(
                f"kernel {self.entry!r} needs {total} bytes of shared memory a block "
                f"({shared_bytes} dynamic), {self._target.name} has {self._target.shared_per_block}"
            )
        if shared_bytes > self._dynamic_shared:
            self._set("MAX_DYNAMIC_SHARED_SIZE_BYTES", shared_bytes)
            self._dynamic_shared = shared_bytes
        if cluster[0] * cluster[1] * cluster[2] > _PORTABLE_CLUSTER:
            self._set("NON_PORTABLE_CLUSTER_SIZE_ALLOWED", 1)

    def _set(self, name: str, value: int) -> None:
        attribute = getattr(_driver.CUfunction_attribute, f"CU_FUNC_ATTRIBUTE_{name}")
        status, device = _driver.cuDeviceGet(self.device)
        _check(status, "cuDeviceGet")
        (status,) = _driver.cuKernelSetAttribute(attribute, value, self._handle, device)
        _check(status, f"setting {name} of {self.entry!r} to {value}")

    def launch(
        self,
        stream: int,
        grid: Dim3,
        block: Dim3,
        shared_bytes: int,
        cluster: Dim3,
        args: Sequence[Argument],
    ) -> None:
        """``prepare`` and launch in one call."""
        self.prepare(grid, block, shared_bytes, cluster)(stream, *args)


def configuration_problem(grid: Dim3, block: Dim3, cluster: Dim3, most_threads: int) -> str | None:
    """What is wrong with a launch configuration, or None. Blocks may be 0 in number."""
    threads = block[0] * block[1] * block[2]
    if min(block) < 1 or threads > most_threads:
        return f"a block of {block} has {threads} threads; 1 to {most_threads} are possible"
    if min(grid) < 0 or any(n > most for n, most in zip(grid, _GRID_LIMITS, strict=True)):
        return f"a grid of {grid} blocks is outside 0 to {_GRID_LIMITS}"
    if min(cluster) < 1 or any(n % c for n, c in zip(grid, cluster, strict=True)):
        return f"a grid of {grid} blocks is no multiple of clusters of {cluster}"
    return None


def launch_config(grid: Dim3, block: Dim3, shared_bytes: int, cluster: Dim3) -> Any:
    """cuda.core's configuration, which counts its grid in clusters when there are clusters."""
    if cluster == _ONE:
        return LaunchConfig(grid=grid, block=block, shmem_size=shared_bytes)
    clusters = tuple(n // c for n, c in zip(grid, cluster, strict=True))
    return LaunchConfig(grid=clusters, cluster=cluster, block=block, shmem_size=shared_bytes)


def _check(status: Any, what: str) -> None:
    if int(status) != 0:
        raise CompileError(f"{what} failed: {status}")


_loaded: dict[tuple[bytes, str, int], LoadedKernel] = {}
_loading = threading.Lock()


def load(cubin: Cubin, device: int) -> LoadedKernel:
    """The kernel of ``cubin`` on ``device``; on the device before this returns, once a process."""
    if ObjectCode is None or _driver is None:
        raise CompileError(
            "kernels cannot be launched: cuda-core is not installed; 'pip install cuda-core "
            "cuda-bindings' installs it, and MDFUSE_BACKEND=reference does without"
        )
    check_driver()
    key = (hashlib.sha256(cubin.code).digest(), cubin.entry, device)
    with _loading:
        found = _loaded.get(key)
        if found is None:
            found = _loaded[key] = LoadedKernel(cubin, device)
    return found
