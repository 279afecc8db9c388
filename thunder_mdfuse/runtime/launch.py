"""Executing one planned kernel: on a GPU, or in the emulator on the CPU, from the same text.

``prepare`` binds a kernel to sizes, once; the result is called with the tensors and scalars of each
call.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from thunder_mdfuse.codegen.index import reciprocal
from thunder_mdfuse.codegen.kernel import KernelText
from thunder_mdfuse.compile.cache import cached_cubin, cached_cubins
from thunder_mdfuse.compile.emulate import Allocation, build, poison
from thunder_mdfuse.compile.module import check_parameters, encode, load, raw_stream
from thunder_mdfuse.compile.nvrtc import Job
from thunder_mdfuse.compile.sources import device_headers
from thunder_mdfuse.errors import EmulatorError, ProgramError
from thunder_mdfuse.ir import sizes
from thunder_mdfuse.ir.graph import Use
from thunder_mdfuse.ir.types import DType
from thunder_mdfuse.runtime.dtypes import TORCH_DTYPES
from thunder_mdfuse.schedule.plan import Buffer, KernelPlan, Scalar

Launcher = Callable[[Mapping[Use, torch.Tensor], Mapping[Use, object]], None]

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


class Pointers:
    """The tensors of a kernel's buffers at each call; scratch memory is made anew for every one.

    Nothing of a launch outlives it, so that streams, threads and captured graphs cannot collide.
    """

    def __init__(self, text: KernelText, symbols: Mapping[str, int], device: torch.device) -> None:
        spaces = {b.space for b in text.plan.buffers} - {"global", "workspace", "counters"}
        if spaces:
            raise ProgramError(
                f"kernel {text.entry} needs memory in {', '.join(sorted(spaces))}, and no program "
                "owns such memory yet; plan the collective as a step of its own"
            )
        self.buffers, self.device = text.plan.buffers, device
        self.extents = [sizes.evaluate(b.extent, symbols) for b in self.buffers]

    def __call__(self, tensors: Mapping[Use, torch.Tensor]) -> list[torch.Tensor]:
        return [
            tensors[b.value] if b.space == "global" else self._scratch(b, n)
            for b, n in zip(self.buffers, self.extents, strict=True)
        ]

    def _scratch(self, buffer: Buffer, extent: int) -> torch.Tensor:
        make = torch.zeros if buffer.space == "counters" else torch.empty
        return make(extent, dtype=TORCH_DTYPES[buffer.dtype], device=self.device)


def cubins(texts: Sequence[KernelText], arch: str) -> None:
    """Compile all kernels of a program into the cache, in parallel."""
    headers = device_headers()
    cached_cubins([Job(t.source, t.entry, arch, headers) for t in texts])


def size_arguments(text: KernelText, symbols: Mapping[str, int]) -> list[int]:
    """The values of a kernel's sizes, then the reciprocals of its divisors."""
    divisors = (sizes.evaluate(d, symbols) for d in text.divisors)
    return [*(sizes.evaluate(s, symbols) for s in text.sizes), *map(reciprocal, divisors)]


def prepare_cuda(text: KernelText, symbols: Mapping[str, int], device: int, arch: str) -> Launcher:
    """A launcher on CUDA device ``device``; the module is loaded when this returns."""
    cubin = cached_cubin(Job(text.source, text.entry, arch, device_headers()))
    integer = "i64" if text.plan.launch.wide_index else "i32"
    kinds = scalar_kinds(text)
    pointers = ["ptr"] * len(text.plan.buffers)
    integers = [integer] * len(text.sizes) + ["u64"] * len(text.divisors)
    check_parameters(cubin, pointers + integers + kinds)
    kernel = load(cubin, device)
    grid = sizes.evaluate(text.blocks, symbols)
    bound = encode(integers, size_arguments(text, symbols))
    threads, cluster = text.plan.launch.threads, text.plan.launch.cluster
    launch = kernel.prepare((grid, 1, 1), (threads, 1, 1), text.shared, (cluster, 1, 1))
    pointers_of = Pointers(text, symbols, torch.device("cuda", device))

    def run(tensors: Mapping[Use, torch.Tensor], numbers: Mapping[Use, object]) -> None:
        passed = [_converted(numbers[s.value], s) for s in text.scalars]
        buffers = pointers_of(tensors)
        launch(
            raw_stream(device),
            *[b.data_ptr() for b in buffers],
            *bound,
            *encode(kinds, passed),
        )

    return run


def prepare_emulated(text: KernelText, symbols: Mapping[str, int]) -> Launcher:
    """A launcher in the emulator; every launch is checked for faults in several thread orders."""
    kernel = build(text.source, text.entry)
    grid = sizes.evaluate(text.blocks, symbols)
    bound = size_arguments(text, symbols)
    pointers_of = Pointers(text, symbols, torch.device("cpu"))

    def run(tensors: Mapping[Use, torch.Tensor], numbers: Mapping[Use, object]) -> None:
        if grid == 0:
            return
        used = pointers_of(tensors)
        arguments: list[int | float | bool] = [tensor.data_ptr() for tensor in used]
        arguments += bound
        arguments += [_converted(numbers[s.value], s) for s in text.scalars]  # type: ignore[misc]
        report = kernel.launch_checked(
            grid=(grid, 1, 1),
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

    return run


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
