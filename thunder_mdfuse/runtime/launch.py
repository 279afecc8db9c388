"""Executing one planned kernel: on a GPU, or in the emulator on the CPU, from the same text.

``prepare_cuda`` and ``prepare_emulated`` bind a kernel to sizes, once. What they return writes the
launch into the straight-line code of a call, where each tensor and number has a name.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from thunder_mdfuse.codegen.index import reciprocal
from thunder_mdfuse.codegen.kernel import KernelText
from thunder_mdfuse.compile.cache import cached_cubin, cached_cubins
from thunder_mdfuse.compile.emulate import Allocation, build, poison
from thunder_mdfuse.compile.module import ENCODE, check_parameters, encode, load
from thunder_mdfuse.compile.nvrtc import Job
from thunder_mdfuse.compile.sources import device_headers
from thunder_mdfuse.errors import EmulatorError, ProgramError
from thunder_mdfuse.ir import sizes
from thunder_mdfuse.ir.graph import Use
from thunder_mdfuse.ir.types import DType
from thunder_mdfuse.runtime.dtypes import TORCH_DTYPES
from thunder_mdfuse.runtime.straight import Straight
from thunder_mdfuse.schedule.plan import Buffer, KernelPlan, Scalar

# Half of what torch.empty_strided takes; on the current device, where it allocates for a GPU.
EMPTY_STRIDED = {
    "cuda": torch._C._dynamo.guards._empty_strided_cuda,  # type: ignore[attr-defined]
    "cpu": torch._C._dynamo.guards._empty_strided_cpu,  # type: ignore[attr-defined]
}

# How a scalar of each compute dtype is passed; kinds of compile/module.py.
_KINDS = {
    DType.BOOL: "bool",
    DType.U8: "u8",
    DType.I8: "i8",
    DType.I16: "i16",
    DType.I32: "i32",
    DType.I64: "i64",
    DType.F32: "f32",
    DType.F64: "f64",
}


def scalar_kinds(text: KernelText) -> list[str]:
    """The parameter kind of each scalar of the kernel."""
    return [_KINDS[s.dtype] for s in text.scalars]


def _converted(value: Any, scalar: Scalar) -> object:
    dtype = scalar.dtype
    if scalar.part:
        whole = complex(value)
        return whole.real if scalar.part == "re" else whole.imag
    if dtype is DType.BOOL:
        return bool(value)
    return float(value) if dtype.is_float else int(value)


class Prepared(ABC):
    """A kernel bound to sizes. What each launch gets beside the caller's tensors is scratch memory
    that is made anew for every one: nothing of a launch outlives it, so that streams, threads and
    captured graphs cannot collide.
    """

    device_type: str

    def __init__(self, text: KernelText, symbols: Mapping[str, int]) -> None:
        spaces = {b.space for b in text.plan.buffers} - {"global", "workspace", "counters"}
        if spaces:
            raise ProgramError(
                f"kernel {text.entry} needs memory in {', '.join(sorted(spaces))}, and no program "
                "owns such memory yet; plan the collective as a step of its own"
            )
        self.text = text
        self.extents = [sizes.evaluate(b.extent, symbols) for b in text.plan.buffers]
        self.grid = sizes.evaluate(text.blocks, symbols)

    def write(
        self, code: Straight, tensor: Callable[[Use], str], number: Callable[[Use], str]
    ) -> None:
        """Put the launch into ``code``, where values are named by ``tensor`` and ``number``."""
        if self.grid == 0:
            return
        names, scratch = [], []
        buffers = zip(self.text.plan.buffers, self.extents, strict=True)
        for i, (buffer, extent) in enumerate(buffers):
            if buffer.space == "global":
                names.append(tensor(buffer.value))
                continue
            names.append(f"scratch{i}")
            scratch.append(names[-1])
            code.add(f"{names[-1]} = {_scratch(code, buffer, extent, self.device_type)}")
        self._launch(code, names, [number(s.value) for s in self.text.scalars])
        for name in scratch:
            code.add(f"{name} = None")

    @abstractmethod
    def _launch(self, code: Straight, tensors: Sequence[str], numbers: Sequence[str]) -> None:
        """Put the launch itself into ``code``."""


def _scratch(code: Straight, buffer: Buffer, extent: int, device_type: str) -> str:
    """What makes memory for one launch."""
    make = code.known("empty_strided", EMPTY_STRIDED[device_type])
    dtype = code.known(buffer.dtype.text, TORCH_DTYPES[buffer.dtype])
    zero = ".zero_()" if buffer.space == "counters" else ""
    return f"{make}(({extent},), (1,), {dtype}){zero}"


def cubins(texts: Sequence[KernelText], arch: str) -> None:
    """Compile all kernels of a program into the cache, in parallel."""
    headers = device_headers()
    cached_cubins([Job(t.source, t.entry, arch, headers) for t in texts])


def size_arguments(text: KernelText, symbols: Mapping[str, int]) -> list[int]:
    """The values of a kernel's sizes, then the reciprocals of its divisors."""
    divisors = (sizes.evaluate(d, symbols) for d in text.divisors)
    return [*(sizes.evaluate(s, symbols) for s in text.sizes), *map(reciprocal, divisors)]


class PreparedCuda(Prepared):
    """A kernel on CUDA device ``device``; the module is loaded when this returns."""

    device_type = "cuda"

    def __init__(
        self, text: KernelText, symbols: Mapping[str, int], device: int, arch: str
    ) -> None:
        super().__init__(text, symbols)
        cubin = cached_cubin(Job(text.source, text.entry, arch, device_headers()))
        launch = text.plan.launch
        self._kinds = scalar_kinds(text)
        pointers = ["ptr"] * len(text.plan.buffers)
        integers = ["i64" if launch.wide_index else "i32"] * len(text.sizes)
        integers += ["u64"] * len(text.divisors)
        check_parameters(cubin, pointers + integers + self._kinds)
        self._bound = encode(integers, size_arguments(text, symbols))
        self._prepared = load(cubin, device).prepare(
            (self.grid, 1, 1), (launch.threads, 1, 1), text.shared, (launch.cluster, 1, 1)
        )

    def _launch(self, code: Straight, tensors: Sequence[str], numbers: Sequence[str]) -> None:
        found = [f"{t}.data_ptr()" for t in tensors] + [str(n) for n in self._bound]
        for kind, scalar, name in zip(self._kinds, self.text.scalars, numbers, strict=True):
            found.append(f"{code.new('pack', _packed(kind, scalar))}({name})")
        config = code.new("config", self._prepared.config)
        kernel = code.new("kernel", self._prepared.kernel)
        launch = code.known("launch", self._prepared.launch)
        where = f"while launching {self._prepared.where}"
        code.add(f"{launch}({', '.join(('stream', config, kernel, *found))})", where)


def _packed(kind: str, scalar: Scalar) -> Callable[[object], object]:
    pack = ENCODE[kind][1]
    return lambda value: pack(_converted(value, scalar))


class PreparedEmulated(Prepared):
    """A kernel in the emulator; every launch is checked for faults in several thread orders."""

    device_type = "cpu"

    def __init__(self, text: KernelText, symbols: Mapping[str, int]) -> None:
        super().__init__(text, symbols)
        self._kernel = build(text.source, text.entry)
        self._bound = size_arguments(text, symbols)

    def _launch(self, code: Straight, tensors: Sequence[str], numbers: Sequence[str]) -> None:
        launch = code.new("launch", self._run)
        code.add(f"{launch}([{', '.join(tensors)}], [{', '.join(numbers)}])")

    def _run(self, used: Sequence[torch.Tensor], numbers: Sequence[object]) -> None:
        text = self.text
        arguments: list[int | float | bool] = [tensor.data_ptr() for tensor in used]
        arguments += self._bound
        arguments += [_converted(n, s) for n, s in zip(numbers, text.scalars, strict=True)]  # type: ignore[misc]
        report = self._kernel.launch_checked(
            grid=(self.grid, 1, 1),
            block=(text.plan.launch.threads, 1, 1),
            args=arguments,
            allocations=_allocations(text.plan, used),
            shared_bytes=text.shared,
            cluster=text.plan.launch.cluster,
        )
        # Counters that nobody had to move (a single part) are unwritten and none the worse.
        partly = ("(counters)", "(updated ")
        unwritten = [u for u in report.unwritten if not any(p in u.name for p in partly)]
        if unwritten:
            first = unwritten[0]
            raise EmulatorError(
                f"kernel {text.entry} left {first.nbytes} bytes of {first.name} unwritten, "
                f"the first at byte {first.first}"
            )


def _allocations(plan: KernelPlan, tensors: Sequence[torch.Tensor]) -> list[Allocation]:
    """The memory that a kernel may touch, fresh memory poisoned.

    Arguments that overlap, as two views of one storage do, are one allocation.
    """
    single = []
    for i, (buffer, tensor) in enumerate(zip(plan.buffers, tensors, strict=True)):
        fresh = buffer.fresh or buffer.space == "workspace"
        address, nbytes = tensor.data_ptr(), _reach(tensor)
        if not fresh and nbytes:
            # A vector across two 16-byte pieces of memory reads both whole.
            before = min(address % 16, address - tensor.untyped_storage().data_ptr())
            address, nbytes = address - before, nbytes + before
        if fresh:
            poison(address, nbytes)
        what = f"updated {buffer.value}" if buffer.updated else str(buffer.value)
        name = f"b{i} ({what if buffer.space == 'global' else buffer.space})"
        writable = fresh or buffer.updated or buffer.space == "counters"
        unordered = i in plan.unordered
        single.append(Allocation(address, nbytes, writable, name, fresh, unordered))
    joined: list[Allocation] = []
    for a in sorted((a for a in single if a.nbytes), key=lambda a: a.address):
        last = joined[-1] if joined else None
        if last is None or a.address >= last.address + last.nbytes:
            joined.append(a)
            continue
        nbytes = max(last.nbytes, a.address + a.nbytes - last.address)
        writable = last.writable or a.writable
        joined[-1] = Allocation(last.address, nbytes, writable, f"{last.name}, {a.name}")
    return joined


def _reach(tensor: torch.Tensor) -> int:
    """Bytes from a tensor's first element to the end of its last one."""
    if tensor.numel() == 0:
        return 0
    last = sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True))
    return int(last + 1) * tensor.element_size()
