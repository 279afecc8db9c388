"""Argument encoding, launch configurations, loading: checked without a GPU; then on one."""

import contextlib
import ctypes
import struct
import threading
from collections.abc import Iterator
from enum import Enum
from importlib import import_module
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from thunder_mdfuse.compile import module
from thunder_mdfuse.compile.module import (
    ENCODE,
    LoadedKernel,
    check_parameters,
    configuration_problem,
    encode,
    launch_config,
    load,
)
from thunder_mdfuse.compile.nvrtc import Cubin, compile_cubin
from thunder_mdfuse.errors import CompileError, ProgramError
from thunder_mdfuse.schedule.target import H200

# cuda.core's own packing, where the installed version keeps it (0.4 has another folder).
arguments = import_module(module.launch.__module__.replace("_launcher", "_kernel_arg_handler"))

# --- Encoding: what cuda.core makes of our values, read back from the memory the driver would read


def bytes_of(kind: str, value: Any) -> bytes:
    (argument,) = encode([kind], [value])
    holder = arguments.ParamHolder((argument,))
    (address,) = (ctypes.c_void_p * 1).from_address(holder.ptr)
    return ctypes.string_at(address, ENCODE[kind][0])


@pytest.mark.parametrize(
    ("kind", "value", "expected"),
    [
        ("ptr", 0x7F12_3456_7800, struct.pack("<Q", 0x7F12_3456_7800)),
        ("ptr", 0, bytes(8)),
        ("bool", True, b"\1"),
        ("bool", 2, b"\1"),
        ("bool", np.bool_(False), b"\0"),
        ("u8", 255, b"\xff"),
        ("i8", -1, b"\xff"),
        ("i16", -(2**15), struct.pack("<h", -(2**15))),
        ("i32", -1, b"\xff" * 4),
        ("i32", np.int64(7), struct.pack("<i", 7)),
        ("i64", -(2**63), struct.pack("<q", -(2**63))),
        ("u64", 2**64 - 1, b"\xff" * 8),
        ("u64", 2**63, struct.pack("<Q", 2**63)),
        ("f32", -0.0, struct.pack("<f", -0.0)),
        ("f32", 1, struct.pack("<f", 1.0)),
        ("f32", 1e300, struct.pack("<f", float("inf"))),
        ("f32", -1e300, struct.pack("<f", float("-inf"))),
        ("f64", 5, struct.pack("<d", 5.0)),
        ("c64", 1 - 2j, struct.pack("<ff", 1.0, -2.0)),
        ("c64", -0.0, struct.pack("<ff", -0.0, 0.0)),
        ("c128", 3, struct.pack("<dd", 3.0, 0.0)),
    ],
)
def test_a_value_reaches_the_driver_as_c_would_pass_it(
    kind: str, value: Any, expected: bytes
) -> None:
    assert bytes_of(kind, value) == expected


@given(st.floats(allow_nan=True, allow_infinity=True))
def test_floats_are_rounded_as_a_conversion_does(value: float) -> None:
    with np.errstate(over="ignore"):
        expected = np.float32(value)
    assert np.frombuffer(bytes_of("f32", value), np.float32) == expected or value != value
    assert bytes_of("f64", value) == struct.pack("<d", value)


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("i32", 2**31),
        ("i32", -(2**31) - 1),
        ("u8", 256),
        ("u8", -1),
        ("i8", 128),
        ("i16", 2**15),
        ("i64", 2**63),
        ("u64", -1),
        ("ptr", 2**64),
    ],
)
def test_a_number_that_does_not_fit_is_refused_not_cut(kind: str, value: int) -> None:
    with pytest.raises(ProgramError, match=f"{value} does not fit"):
        encode([kind], [value])


@pytest.mark.parametrize("value", [1.5, "1", None])
def test_an_integer_parameter_takes_integers_only(value: Any) -> None:
    with pytest.raises(TypeError):
        encode(["i32"], [value])


PARAMETERS = """
extern "C" __global__ void params(double* out, bool b, unsigned char u8, signed char i8, short i16,
    int i32, long long i64, unsigned long long u64, float f32, double f64, float2 c64,
    double2 c128) { out[0] = c128.y; }
"""
KINDS = ("ptr", "bool", "u8", "i8", "i16", "i32", "i64", "u64", "f32", "f64", "c64", "c128")


@pytest.fixture(scope="module")
def cubin() -> Cubin:
    return compile_cubin(PARAMETERS, "params", "sm_90", {})


def test_every_kind_has_the_size_that_the_compiler_gives_it(cubin: Cubin) -> None:
    assert set(KINDS) == set(ENCODE)
    check_parameters(cubin, KINDS)


@pytest.mark.parametrize(
    "kinds", [KINDS[:-1], (*KINDS, "i32"), ("ptr", "i64", *KINDS[2:]), ()], ids=len
)
def test_a_call_that_does_not_fit_the_kernel_is_refused(
    cubin: Cubin, kinds: tuple[str, ...]
) -> None:
    with pytest.raises(CompileError, match="'params' has parameters of"):
        check_parameters(cubin, kinds)


# --- Streams and configurations ------------------------------------------------------------------


def test_a_stream_is_wrapped_once_and_their_number_is_bounded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "_streams", {})
    first = module._stream(0x1000)
    assert first is module._stream(0x1000)
    assert first.__cuda_stream__() == (0, 0x1000)
    assert module._stream(0).__cuda_stream__() == (0, 0)
    for pointer in range(1, 3 * module._MOST_STREAMS):
        assert module._stream(pointer).__cuda_stream__()[1] == pointer
    assert len(module._streams) <= module._MOST_STREAMS


@pytest.mark.parametrize(
    ("grid", "block", "cluster", "word"),
    [
        ((1, 1, 1), (1025, 1, 1), (1, 1, 1), "1025 threads"),
        ((1, 1, 1), (32, 32, 2), (1, 1, 1), "2048 threads"),
        ((1, 1, 1), (0, 1, 1), (1, 1, 1), "0 threads"),
        ((2**31, 1, 1), (32, 1, 1), (1, 1, 1), "outside"),
        ((1, 65536, 1), (32, 1, 1), (1, 1, 1), "outside"),
        ((-1, 1, 1), (32, 1, 1), (1, 1, 1), "outside"),
        ((5, 1, 1), (32, 1, 1), (2, 1, 1), "no multiple"),
        ((4, 1, 1), (32, 1, 1), (0, 1, 1), "no multiple"),
    ],
)
def test_a_configuration_that_no_device_takes_is_named(
    grid: Any, block: Any, cluster: Any, word: str
) -> None:
    problem = configuration_problem(grid, block, cluster, 1024)
    assert problem is not None and word in problem


def test_a_configuration_at_the_limits_is_fine() -> None:
    assert configuration_problem((2**31 - 1, 65535, 65535), (32, 32, 1), (1, 1, 1), 1024) is None
    assert configuration_problem((0, 1, 1), (1, 1, 1), (8, 1, 1), 1024) is None


def test_cuda_core_gets_the_configuration_in_its_own_units(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # The real class asks the driver in some versions and for clusters: the GPU tests use it.
    monkeypatch.setattr(module, "LaunchConfig", lambda **fields: fields)
    assert launch_config((6, 5, 4), (64, 2, 1), 100, (1, 1, 1)) == {
        "grid": (6, 5, 4),
        "block": (64, 2, 1),
        "shmem_size": 100,
    }
    assert launch_config((6, 4, 1), (64, 1, 1), 0, (2, 4, 1)) == {
        "grid": (3, 1, 1),  # clusters, not blocks
        "cluster": (2, 4, 1),
        "block": (64, 1, 1),
        "shmem_size": 0,
    }


# --- Loading and launching on a driver that records ----------------------------------------------


class FakeDriver:
    """The four driver calls that loading makes; ``status`` is what each returns."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.status = 0

    class CUfunction_attribute(Enum):
        CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES = 8
        CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED = 13

    def cuDeviceGet(self, index: int) -> tuple[int, str]:
        return 0, f"device {index}"

    def cuKernelGetFunction(self, handle: str) -> tuple[int, str]:
        self.calls.append(("function of", handle))
        return self.status, "function"

    def cuKernelSetAttribute(self, attribute: Any, value: int, *rest: str) -> tuple[int]:
        self.calls.append((attribute.name.removeprefix("CU_FUNC_ATTRIBUTE_"), value, *rest))
        return (self.status,)


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Iterator[SimpleNamespace]:
    """cuda.core and the driver replaced by recorders, with an H200 as every device."""
    record = SimpleNamespace(driver=FakeDriver(), loads=[], launches=[], entered=[], error=None)

    def from_cubin(code: bytes, name: str) -> SimpleNamespace:
        record.loads.append((name, code))
        return SimpleNamespace(get_kernel=lambda entry: SimpleNamespace(handle=f"<{entry}>"))

    def launch(stream: Any, config: Any, kernel: Any, *args: Any) -> None:
        if record.error is not None:
            raise record.error
        record.launches.append((stream.__cuda_stream__()[1], config, kernel.handle, args))

    @contextlib.contextmanager
    def device(index: int) -> Iterator[None]:
        record.entered.append(index)
        yield

    monkeypatch.setattr(module, "_driver", record.driver)
    monkeypatch.setattr(module, "ObjectCode", SimpleNamespace(from_cubin=from_cubin))
    monkeypatch.setattr(module, "Device", lambda i: SimpleNamespace(set_current=lambda: None))
    monkeypatch.setattr(module, "LaunchConfig", lambda **fields: fields)
    monkeypatch.setattr(module, "launch", launch)
    monkeypatch.setattr(module, "check_driver", lambda: None)
    monkeypatch.setattr(module, "current_target", lambda index: H200)
    monkeypatch.setattr(module, "_loaded", {})
    monkeypatch.setattr(torch.cuda, "device", device)
    yield record


def test_a_kernel_is_on_its_device_when_load_returns(fake: SimpleNamespace, cubin: Cubin) -> None:
    load(cubin, 3)
    assert fake.loads == [("params", cubin.code)]
    assert fake.entered == [3]
    assert fake.driver.calls == [("function of", "<params>")]


def test_a_cubin_is_loaded_once_for_each_device(fake: SimpleNamespace, cubin: Cubin) -> None:
    first = load(cubin, 0)
    again = Cubin(cubin.code, cubin.entry, cubin.arch, "another log", 1.0)
    assert load(again, 0) is first
    assert load(cubin, 1) is not first
    assert len(fake.loads) == 2


def test_threads_load_once(fake: SimpleNamespace, cubin: Cubin) -> None:
    found: list[LoadedKernel] = []
    threads = [threading.Thread(target=lambda: found.append(load(cubin, 0))) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(map(id, found))) == 1 and len(found) == 6
    assert len(fake.loads) == 1


def test_a_driver_that_refuses_the_module_is_an_error_with_the_kernels_name(
    fake: SimpleNamespace, cubin: Cubin
) -> None:
    fake.driver.status = 209
    with pytest.raises(CompileError, match="loading 'params' failed: 209"):
        load(cubin, 0)


def test_a_launch_passes_stream_configuration_and_arguments(
    fake: SimpleNamespace, cubin: Cubin
) -> None:
    kernel = load(cubin, 0)
    go = kernel.prepare((4, 1, 1), (128, 1, 1), 256)
    go(0x10, 1, 2.0)
    go(0, 3)
    config = {"grid": (4, 1, 1), "block": (128, 1, 1), "shmem_size": 256}
    assert fake.launches == [
        (0x10, config, "<params>", (1, 2.0)),
        (0, config, "<params>", (3,)),
    ]
    kernel.launch(0x20, (4, 1, 1), (128, 1, 1), 256, (1, 1, 1), [7])
    assert fake.launches[-1] == (0x20, config, "<params>", (7,))
    assert fake.launches[-1][1] is fake.launches[0][1]  # the configuration is made once


def test_prepared_configurations_are_kept_but_not_without_end(
    fake: SimpleNamespace, cubin: Cubin
) -> None:
    kernel = load(cubin, 0)
    one = kernel.prepare((1, 1, 1), (32, 1, 1))
    assert kernel.prepare((1, 1, 1), (32, 1, 1)) is one
    for n in range(2, 2 * module._MOST_PREPARED):
        kernel.prepare((n, 1, 1), (32, 1, 1))
    assert len(kernel._prepared) <= module._MOST_PREPARED


def test_a_grid_without_blocks_launches_nothing(fake: SimpleNamespace, cubin: Cubin) -> None:
    load(cubin, 0).prepare((0, 1, 1), (32, 1, 1))(0, 1, 2)
    assert fake.launches == []


def test_shared_memory_above_48k_is_asked_for_and_only_ever_raised(
    fake: SimpleNamespace, cubin: Cubin
) -> None:
    kernel = load(cubin, 0)
    fake.driver.calls.clear()
    for size in (48 * 1024, 60_000, 50_000, 100_000):
        kernel.prepare((1, 1, 1), (32, 1, 1), size)
    assert fake.driver.calls == [
        ("MAX_DYNAMIC_SHARED_SIZE_BYTES", 60_000, "<params>", "device 0"),
        ("MAX_DYNAMIC_SHARED_SIZE_BYTES", 100_000, "<params>", "device 0"),
    ]


def test_static_shared_memory_counts(fake: SimpleNamespace) -> None:
    source = (
        'extern "C" __global__ void k(float* y) { __shared__ float t[1024]; '
        "extern __shared__ float d[]; t[threadIdx.x] = y[threadIdx.x] + d[threadIdx.x]; "
        "__syncthreads(); y[threadIdx.x] = t[1023 - threadIdx.x]; }"
    )
    kernel = load(compile_cubin(source, "k", "sm_90", {}), 0)
    assert kernel.usage.static_shared == 4096
    fake.driver.calls.clear()
    kernel.prepare((1, 1, 1), (1024, 1, 1), 48 * 1024 - 4096)
    assert fake.driver.calls == []
    kernel.prepare((1, 1, 1), (1024, 1, 1), 48 * 1024 - 4095)
    assert len(fake.driver.calls) == 1
    most = H200.shared_per_block - 4096
    kernel.prepare((1, 1, 1), (1024, 1, 1), most)
    with pytest.raises(CompileError, match=rf"needs {most + 1 + 4096} bytes .* has 232448"):
        kernel.prepare((1, 1, 1), (1024, 1, 1), most + 1)


def test_a_cluster_above_eight_asks_for_it(fake: SimpleNamespace, cubin: Cubin) -> None:
    kernel = load(cubin, 0)
    fake.driver.calls.clear()
    kernel.prepare((16, 1, 1), (32, 1, 1), 0, (8, 1, 1))
    assert fake.driver.calls == []
    kernel.prepare((16, 1, 1), (32, 1, 1), 0, (16, 1, 1))
    assert fake.driver.calls[0][:2] == ("NON_PORTABLE_CLUSTER_SIZE_ALLOWED", 1)
    fake.driver.status = 1
    with pytest.raises(CompileError, match="NON_PORTABLE_CLUSTER_SIZE_ALLOWED of 'params'"):
        kernel.prepare((32, 1, 1), (32, 1, 1), 0, (16, 1, 1))


def test_a_refused_launch_says_which(fake: SimpleNamespace, cubin: Cubin) -> None:
    go = load(cubin, 0).prepare((2, 1, 1), (64, 1, 1), 12)
    fake.error = RuntimeError("CUDA_ERROR_INVALID_VALUE")
    with pytest.raises(RuntimeError, match="INVALID_VALUE") as caught:
        go(0x30)
    (note,) = caught.value.__notes__
    assert "'params'" in note and "(2, 1, 1)" in note and "(64, 1, 1)" in note and "0x30" in note


def test_without_cuda_core_loading_is_one_error(
    cubin: Cubin, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "ObjectCode", None)
    with pytest.raises(CompileError, match="pip install cuda-core"):
        load(cubin, 0)
