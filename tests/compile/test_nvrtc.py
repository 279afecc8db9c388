"""The compiler: headers in memory, hermetic includes, readable failures, resource numbers."""

import hashlib
import re
import threading
import time
from pathlib import Path

import pytest

from thunder_mdfuse.compile import nvrtc
from thunder_mdfuse.compile.nvrtc import (
    Cubin,
    Job,
    compile_cubin,
    compile_many,
    compiler_version,
    resource_usage,
    supported_archs,
)
from thunder_mdfuse.errors import CompileError

COPY = """
extern "C" __global__ void copy(const float* x, float* y, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[i] = x[i];
}
"""

# Every register-sized value is used after the barrier, and a block of 1024 twice on an SM leaves 32
# registers a thread, so most of the 96 values must spill.
SPILLS = """
extern "C" __global__ void __launch_bounds__(1024, 2) spills(const float* x, float* y, int n) {
  float v[96];
  #pragma unroll
  for (int i = 0; i < 96; i++) v[i] = x[i * n + threadIdx.x];
  __syncthreads();
  for (int r = 0; r < n; r++) {
    #pragma unroll
    for (int i = 0; i < 96; i++) v[i] = v[i] * v[(i + 7) % 96] + v[(i + 31) % 96];
  }
  #pragma unroll
  for (int i = 0; i < 96; i++) y[i * n + threadIdx.x] = v[95 - i];
}
"""

SHARED = """
extern "C" __global__ void shared(const double* x, double* y, int n, unsigned char flag) {
  __shared__ float tile[256];
  extern __shared__ float more[];
  tile[threadIdx.x] = (float)x[threadIdx.x] + more[threadIdx.x];
  __syncthreads();
  y[threadIdx.x] = tile[255 - threadIdx.x] * (flag ? 2.0 : 1.0) + n;
}
"""

ARCHS = ("sm_80", "sm_90", "sm_100")


@pytest.mark.parametrize("arch", ARCHS)
def test_compiles_to_an_elf_for_each_arch_without_a_gpu(arch: str) -> None:
    cubin = compile_cubin(COPY, "copy", arch, {})
    assert cubin.code.startswith(b"\x7fELF")
    assert (cubin.entry, cubin.arch) == ("copy", arch)
    assert cubin.seconds > 0


def test_headers_come_from_memory_and_include_each_other() -> None:
    headers = {
        "device/double.cuh": '#pragma once\n#include "one.cuh"\n'
        "__device__ inline float twice(float x) { return x + x * one(); }\n",
        "one.cuh": "#pragma once\n__device__ inline float one() { return 1.0f; }\n",
    }
    source = '#include "device/double.cuh"\n' + COPY.replace("= x[i]", "= twice(x[i])")
    assert compile_cubin(source, "copy", "sm_90", headers).code


def test_a_header_on_disk_is_not_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "stray.cuh").write_text("// in the working directory\n")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(CompileError, match=r"stray\.cuh"):
        compile_cubin('#include "stray.cuh"\n' + COPY, "copy", "sm_90", {})


def test_equal_compilations_give_equal_cubins() -> None:
    first, second = (compile_cubin(COPY, "copy", "sm_90", {}) for _ in range(2))
    assert (first.code, first.log) == (second.code, second.log)


def test_products_are_not_contracted() -> None:
    # x * y - x * y is 0 for all finite values only without an fma; with one the cubin differs.
    source = COPY.replace("= x[i]", "= x[i] * y[i] - x[i + 1] * y[i + 1]")
    explicit = source.replace(
        "x[i] * y[i] - x[i + 1] * y[i + 1]", "__fmaf_rn(x[i], y[i], -(x[i + 1] * y[i + 1]))"
    )
    plain = source.replace(
        "x[i] * y[i] - x[i + 1] * y[i + 1]",
        "__fsub_rn(__fmul_rn(x[i], y[i]), __fmul_rn(x[i + 1], y[i + 1]))",
    )
    codes = [compile_cubin(s, "copy", "sm_90", {}).code for s in (source, plain, explicit)]
    assert codes[0] == codes[1] != codes[2]


def test_a_failure_shows_the_log_and_the_numbered_source() -> None:
    with pytest.raises(CompileError) as caught:
        compile_cubin(COPY.replace("y[i] = x[i]", "y[i] = z[i]"), "copy", "sm_90", {})
    message = str(caught.value)
    assert "'copy' for sm_90" in message
    assert compiler_version() in message
    assert 'identifier "z" is undefined' in message
    assert re.search(r"^>    4 \|   if \(i < n\) y\[i\] = z\[i\];$", message, re.MULTILINE)
    assert re.search(r"^     3 \|   int i", message, re.MULTILINE)


@pytest.mark.parametrize(
    ("header", "shown"),
    [
        ("__device__ float f() { return g(); }\n", ">    1 | __device__ float f()"),
        ('// missing:\n#include "absent.cuh"\n', '>    2 | #include "absent.cuh"'),
    ],
)
def test_a_failure_in_a_header_shows_the_header(header: str, shown: str) -> None:
    with pytest.raises(CompileError) as caught:
        compile_cubin('#include "a/h.cuh"\n' + COPY, "copy", "sm_90", {"a/h.cuh": header})
    assert "--- a/h.cuh" in str(caught.value)
    assert shown in str(caught.value)


def test_a_failure_without_a_line_shows_the_source_up_to_a_limit() -> None:
    long = COPY + "// filler\n" * 300
    with pytest.raises(CompileError, match=r"\.\.\. \d+ more lines") as caught:
        compile_cubin(long, "absent", "sm_90", {})
    assert 'extern "C" __global__ void absent(...)' in str(caught.value)


def test_a_mangled_kernel_is_refused() -> None:
    with pytest.raises(CompileError, match='declare it extern "C"'):
        compile_cubin(COPY.replace('extern "C" ', ""), "copy", "sm_90", {})


@pytest.mark.parametrize("arch", ["sm_20", "compute_90", "90", "sm_", "sm_90; rm"])
def test_an_unknown_arch_is_refused_by_name(arch: str) -> None:
    with pytest.raises(CompileError, match=re.escape(repr(arch))) as caught:
        compile_cubin(COPY, "copy", arch, {})
    assert "sm_90" in str(caught.value)


def test_a_missing_package_is_one_error(monkeypatch: pytest.MonkeyPatch) -> None:
    supported_archs.cache_clear()
    monkeypatch.setattr(nvrtc, "_nvrtc", None)
    with pytest.raises(CompileError, match="pip install cuda-bindings"):
        compile_cubin(COPY, "copy", "sm_90", {})


def test_the_compiler_names_itself_with_its_patch_level() -> None:
    assert re.fullmatch(r"NVRTC \d+\.\d+ \((\d+\.\d+\.\d+\S*|system)\)", compiler_version())
    assert {80, 90, 100} <= set(supported_archs())


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize(
    ("source", "entry", "parameters"),
    [(COPY, "copy", (8, 8, 4)), (SPILLS, "spills", (8, 8, 4)), (SHARED, "shared", (8, 8, 4, 1))],
)
def test_resource_numbers_agree_with_the_compilers_own_report(
    source: str, entry: str, parameters: tuple[int, ...], arch: str
) -> None:
    cubin = compile_cubin(source, entry, arch, {})
    usage = resource_usage(cubin)
    assert usage.parameter_sizes == parameters
    registers = re.search(r"Used (\d+) registers", cubin.log)
    frame = re.search(r"(\d+) bytes stack frame", cubin.log)
    shared = re.search(r"(\d+) bytes smem", cubin.log)
    assert registers is not None and usage.registers == int(registers[1])
    assert frame is not None and usage.local_bytes == int(frame[1])
    assert usage.static_shared == (int(shared[1]) if shared else 0)
    assert (usage.static_shared == 1024) == (entry == "shared")


def test_spills_are_seen_and_their_absence_too() -> None:
    spilled = resource_usage(compile_cubin(SPILLS, "spills", "sm_90", {}))
    assert spilled.local_bytes > 0
    assert spilled.spill_store_bytes and spilled.spill_load_bytes
    clean = resource_usage(compile_cubin(COPY, "copy", "sm_90", {}))
    assert (clean.local_bytes, clean.spill_store_bytes, clean.spill_load_bytes) == (0, 0, 0)


def test_an_array_indexed_at_run_time_is_local_memory_without_spills() -> None:
    source = COPY.replace(
        "if (i < n) y[i] = x[i];",
        "float v[64]; for (int k = 0; k < 64; k++) v[k] = x[k];\n"
        "if (i < n) y[i] = v[n & 63] / x[i];",
    )
    usage = resource_usage(compile_cubin(source, "copy", "sm_90", {}))
    assert usage.local_bytes == 256
    assert usage.spill_store_bytes == 0


def test_resource_numbers_without_a_report_say_so() -> None:
    cubin = compile_cubin(SPILLS, "spills", "sm_90", {})
    bare = resource_usage(Cubin(cubin.code, cubin.entry, cubin.arch, "", 0.0))
    assert bare.local_bytes > 0
    assert bare.spill_store_bytes is None


def test_two_kernels_in_one_cubin_are_told_apart() -> None:
    source = COPY + SHARED
    assert resource_usage(compile_cubin(source, "copy", "sm_90", {})).static_shared == 0
    shared = resource_usage(compile_cubin(source, "shared", "sm_90", {}))
    assert (shared.static_shared, shared.parameter_sizes) == (1024, (8, 8, 4, 1))
    assert shared == resource_usage(compile_cubin(SHARED, "shared", "sm_90", {}))


@pytest.mark.parametrize("code", [b"", b"\x7fELF", b"MZ" + bytes(100), b"\x7fELF" + bytes(60)])
def test_what_is_no_cubin_is_refused(code: bytes) -> None:
    with pytest.raises(CompileError):
        resource_usage(Cubin(code, "copy", "sm_90", "", 0.0))


def _jobs(count: int) -> list[Job]:
    return [Job(COPY.replace("= x[i]", f"= x[i] * {k}.0f"), "copy", "sm_90") for k in range(count)]


def test_many_come_back_in_order_and_equal_to_one_by_one() -> None:
    jobs = _jobs(6)
    together = compile_many(jobs)
    digests = [hashlib.sha256(c.code).hexdigest() for c in together]
    assert len(set(digests)) == len(jobs)
    assert digests == [hashlib.sha256(nvrtc.compile_job(job).code).hexdigest() for job in jobs]
    assert compile_many([]) == []


def test_many_run_at_the_same_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvrtc, "_cores", lambda: 3)
    barrier = threading.Barrier(3)

    def compile_one(job: Job) -> Cubin:
        barrier.wait(timeout=20)  # breaks unless three are inside at once
        return Cubin(b"", job.entry, job.arch, "", 0.0)

    assert len(compile_many(_jobs(3), compile_one)) == 3


def test_the_first_failure_of_many_is_raised_and_the_rest_is_not_started(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(nvrtc, "_cores", lambda: 2)
    started = []

    def compile_one(job: Job) -> Cubin:
        started.append(job)
        if "* 0.0f" in job.source:
            raise CompileError("the first")
        time.sleep(0.05)
        return Cubin(b"", job.entry, job.arch, "", 0.0)

    with pytest.raises(CompileError, match="the first"):
        compile_many(_jobs(40), compile_one)
    assert len(started) < 40


def test_nvrtc_lets_other_threads_run() -> None:
    counted = 0
    done = threading.Event()

    def count() -> None:
        nonlocal counted
        while not done.is_set():
            counted += 1
            time.sleep(0.001)

    thread = threading.Thread(target=count)
    thread.start()
    cubin = compile_cubin(SPILLS, "spills", "sm_90", {})
    done.set()
    thread.join()
    # Were the GIL held for the whole compilation, the loop would have turned about twice.
    assert counted > 5, (counted, cubin.seconds)
