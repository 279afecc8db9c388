"""Every kind of fault that the emulator promises to find, one small kernel each."""

import re
from dataclasses import dataclass

import numpy as np
import pytest
from kernels.emulated import INCLUDE, address, launch

from thunder_mdfuse.compile.emulate import Allocation, build
from thunder_mdfuse.errors import CompileError, EmulatorError


@dataclass(frozen=True)
class Fault:
    """A kernel body over ``in`` and ``out`` (64 i32 each), and the message that it earns."""

    body: str
    message: str
    grid: int = 1
    block: int = 64
    cluster: int = 1
    shared_bytes: int = 0


FAULTS = {
    "load_behind_the_end": Fault(
        "mdf::store1(out, t, mdf::load1(in, t + 1));",
        r"thread \(63,0,0\): load of 4 bytes outside every allocation: at element 64 "
        r"\(byte 256\) of 'input 0', which has 256 bytes",
    ),
    "load_before_the_start": Fault(
        "mdf::store1(out, t, mdf::load1(in, t - 1));", r"load of 4 bytes outside every allocation"
    ),
    "store_behind_the_end": Fault("mdf::store1(out, t + 1, 0);", r"store of 4 bytes outside"),
    "vector_over_the_end": Fault(
        "mdf::store1(out, t, mdf::load<4>(in, 61 + 0 * t).v[0]);", r"load of 16 bytes outside"
    ),
    "misaligned_vector": Fault(
        "mdf::store1(out, t, mdf::load<4>(in, 2).v[0]);",
        r"misaligned load: 16 bytes at byte 8 of 'input 0' need an address that 16 divides",
    ),
    "store_to_read_only": Fault(
        "mdf::store1(const_cast<mdf::i32*>(in), t, 0);",
        r"store of 4 bytes to 'input 0', which is read only",
    ),
    "atomic_on_read_only": Fault(
        "mdf::atomic_add(const_cast<mdf::i32*>(in), 0, 1);", r"atomic of 4 bytes to 'input 0'"
    ),
    "global_never_written": Fault(
        "mdf::store1(out, t, mdf::load1(out, t));",
        r"load of byte 0 of 'output 0', which nothing has written",
    ),
    "two_values_in_one_word": Fault(
        "mdf::store1(out, t / 2, t);",
        r"race: two threads store different values to byte 0 of 'output 0': the other is block "
        r"\(0,0,0\) thread \(0,0,0\)",
    ),
    "blocks_write_one_word": Fault(
        "mdf::store1(out, t, mdf::i32(blockIdx.x));",
        r"race: two threads store different values",
        grid=2,
    ),
    "global_read_without_barrier": Fault(
        "mdf::store1(out, t, t); const int v = mdf::load1(out, t ^ 1); mdf::barrier();\n"
        "mdf::store1(out, t, v);",
        r"(race: load of byte \d+ of 'output 0'|which nothing has written)",
    ),
    "block_reads_what_another_wrote": Fault(
        "if (blockIdx.x == 0) mdf::store1(out, t, t);\n"
        "mdf::barrier();\nif (blockIdx.x == 1 && mdf::load1(out, t) == 7) mdf::store1(out, t, 8);",
        r"(race: load of byte \d+ of 'output 0', which block \(0,0,0\)|which nothing has written)",
        grid=2,
    ),
    "atomic_and_store": Fault(
        "if (t == 0) mdf::store1(out, 0, 5); mdf::atomic_add(out, 0, 1);",
        r"race: (atomic|two threads)",
    ),
    "shared_write_write": Fault(
        "MDF_SHARED(int, s, 32);\ns[t % 32] = t;\nmdf::barrier();\nmdf::store1(out, t, s[t % 32]);",
        r"race: store to shared 's' element 0, which block \(0,0,0\) thread \(0,0,0\) wrote with "
        r"no barrier",
    ),
    "shared_write_read": Fault(
        "MDF_SHARED(int, s, 65);\ns[t] = t;\nmdf::store1(out, t, t ? int(s[t - 1]) : 0);",
        r"(race: load of shared 's'|load of shared 's' element \d+, which nothing)",
    ),
    "shared_read_write": Fault(
        "MDF_SHARED(int, s, 64);\ns[t] = t;\nmdf::barrier();\n"
        "mdf::store1(out, t, s[63 - t]);\ns[t] = 1;",
        r"race: (store to|load of) shared 's' element \d+, which block \(0,0,0\) thread "
        r"\(\d+,0,0\) (read|wrote)",
    ),
    "shared_read_by_two_warps_write": Fault(
        "MDF_SHARED(int, s, 1);\nif (t == 0) s[0] = 1;\nmdf::barrier();\n"
        "mdf::store1(out, t, s[0]);\n"
        "mdf::warp_barrier();\nif (t == 0) s[0] = 2;",
        r"race: store to shared 's' element 0",
    ),
    "shared_never_written": Fault(
        "MDF_SHARED(int, s, 64);\nif (t != 5) s[t] = t;\nmdf::barrier();\n"
        "mdf::store1(out, t, s[t]);",
        r"load of shared 's' element 5, which nothing has written \[line \d+\]\n"
        r"  \d+: mdf::store1\(out, t, s\[t\]\);",
    ),
    "shared_of_the_block_before": Fault(
        "MDF_SHARED(int, s, 64);\nif (blockIdx.x == 0) s[t] = t;\nmdf::barrier();\n"
        "mdf::store1(out, t, mdf::load1(s, t));",
        r"block \(1,0,0\) thread \(\d+,0,0\): load of shared 's' element \d+, which nothing has",
        grid=2,
    ),
    "shared_index": Fault(
        "MDF_SHARED(int, s, 63);\ns[t] = t;",
        r"store of shared 's' at element 63: it has 63 elements",
    ),
    "shared_misaligned": Fault(
        "MDF_SHARED(int, s, 64);\nmdf::store<2>(s, 1, mdf::Vec<int, 2>{{1, 2}});",
        r"misaligned store of shared 's'",
    ),
    "shared_too_large": Fault(
        "MDF_SHARED(double, s, 8192);\ns[t] = t;", r"static shared memory is limited to 49152 bytes"
    ),
    "dynamic_shared_too_small": Fault(
        "MDF_DYNAMIC_SHARED(int, s, 64);\ns[t] = t;",
        r"dynamic shared array 's' of 256 bytes at byte 0: the launch gives 128 bytes",
        shared_bytes=128,
    ),
    "barrier_some_exit": Fault("if (t == 9) return;\nmdf::barrier();", r"divergent barrier"),
    "barrier_elsewhere": Fault(
        "if (t < 32) {\n  mdf::barrier();\n} else {\n  mdf::barrier();\n}",
        r"divergent barrier: block \(0,0,0\) thread \(\d+,0,0\) waits at the barrier of line \d+",
    ),
    "barrier_and_shuffle": Fault(
        "if (t == 3) mdf::barrier();\nmdf::store1(out, t, mdf::shfl_xor(t, 1));",
        r"shuffle with mask 0xffffffff: lane 3 waits at the barrier of line \d+",
    ),
    "barrier_never_reached": Fault(
        "if (t == 3) mdf::barrier();\nelse mdf::cluster_barrier();",
        r"deadlock: waits at a (cluster )?barrier that the other threads do not reach",
    ),
    "mask_without_the_caller": Fault(
        "mdf::store1(out, t, mdf::shfl_xor(t, 1, 0x0000ffffu));",
        r"shuffle with mask 0x0000ffff, which does not hold the calling lane",
    ),
    "masks_differ": Fault(
        "mdf::store1(out, t, mdf::shfl_xor(t, 1, t == 4 ? 0x0fffffffu : 0xffffffffu));",
        r"lane \d+ waits in a shuffle with mask 0x[0f]fffffff on line",
    ),
    "shuffle_elsewhere": Fault(
        "int v;\nif (t % 32 < 16) {\n  v = mdf::shfl_xor(t, 1);\n} else {\n"
        "  v = mdf::shfl_xor(t, 1);\n}\n"
        "mdf::store1(out, t, v);",
        r"shuffle with mask 0xffffffff: lane \d+ waits in a shuffle with mask 0xffffffff on line",
    ),
    "shuffle_with_exited_lane": Fault(
        "if (t == 40) return;\nmdf::store1(out, t, mdf::shfl_xor(t, 1));",
        r"shuffle with mask 0xffffffff: lane 8 has exited",
    ),
    "shuffle_with_missing_lane": Fault(
        "mdf::store1(out, t, mdf::shfl_xor(t, 1));",
        r"shuffle with mask 0xffffffff: lane 24 does not exist in this warp",
        block=24,
    ),
    "shuffle_reads_outside_the_mask": Fault(
        "if (t % 32 < 16) mdf::store1(out, t, mdf::shfl_down(t, 1, 0x0000ffffu));",
        r"shuffle: lane 15 reads lane 16, which is not in the mask 0x0000ffff",
    ),
    "loop_without_end": Fault(
        "volatile int x = 1;\nwhile (x) {\n}\nmdf::store1(out, t, t);", r"no end after \d+ steps"
    ),
    "wait_without_end": Fault(
        "while (mdf::load_acquire_sys(reinterpret_cast<mdf::u32*>(out), 0) != 0x12345678u) {\n}",
        r"no end after 0.5 s",
    ),
    "stack_overflow": Fault(
        "volatile char large[140000];\nfor (int k = 0; k < 140000; ++k) large[k] = 1;\n"
        "mdf::store1(out, t, large[0]);",
        r"stack overflow",
    ),
    "order_of_blocks": Fault(
        "if (t == 0) mdf::store1(out, blockIdx.x, mdf::atomic_add(out, 8, 1));",
        r"the result depends on the order of threads and blocks. Byte 0 of 'updated 0'",
        grid=4,
    ),
    "cluster_read_before_barrier": Fault(
        "MDF_SHARED(int, s, 64);\ns[t] = t;\nmdf::barrier();\n"
        "mdf::store1(out, 0, mdf::cluster_read(s, t, 1 - mdf::cluster_rank()));",
        r"(race: cluster_read of shared 's'|of rank \d, which nothing has written)",
        grid=2,
        cluster=2,
    ),
    "cluster_store_after_read": Fault(
        "MDF_SHARED(int, s, 64);\ns[t] = t;\nmdf::cluster_barrier();\n"
        "const int v = mdf::cluster_read(s, t, 1 - mdf::cluster_rank());\nmdf::barrier();\n"
        "s[t] = v;",
        r"race: (store to shared 's' element \d+, which another block|cluster_read of shared 's')",
        grid=2,
        cluster=2,
    ),
    "cluster_block_ends_early": Fault(
        "MDF_SHARED(int, s, 64);\ns[t] = t;\nmdf::cluster_barrier();\n"
        "if (mdf::cluster_read(s, t, 1 - mdf::cluster_rank()) < 0) mdf::store1(out, 0, 0);",
        r"(may still read its shared memory|a block that has ended)",
        grid=2,
        cluster=2,
    ),
    "cluster_rank_too_large": Fault(
        "MDF_SHARED(int, s, 64);\ns[t] = t;\nmdf::cluster_barrier();\n"
        "mdf::store1(out, t, mdf::cluster_read(s, t, 2));",
        r"cluster_read of rank 2 in a cluster of 2 blocks",
        grid=2,
        cluster=2,
    ),
}

SOURCE = INCLUDE + "".join(
    f'extern "C" __global__ void {name}(MDF_IN(mdf::i32) in, MDF_OUT(mdf::i32) out) {{\n'
    f"const int t = int(threadIdx.x);\n{fault.body}\n}}\n"
    for name, fault in FAULTS.items()
)


@pytest.mark.parametrize("name", FAULTS)
def test_fault_is_found(name: str) -> None:
    fault = FAULTS[name]
    data, out = np.arange(64, dtype=np.int32), np.zeros(64, np.int32)
    updated = name in ("order_of_blocks", "wait_without_end")
    with pytest.raises(EmulatorError, match=fault.message) as caught:
        launch(
            SOURCE,
            name,
            inputs=[data],
            outputs=() if updated else [out],
            updated=[out] if updated else (),
            grid=fault.grid,
            block=fault.block,
            cluster=fault.cluster,
            shared_bytes=fault.shared_bytes,
            step_limit=3_000_000 if "loop" in name else 10**9,
            timeout=0.5 if "wait" in name else 20.0,
        )
    assert f"kernel {name}" in str(caught.value)


def test_memory_is_put_back_after_a_fault() -> None:
    source = INCLUDE + (
        'extern "C" __global__ void half(MDF_INOUT(mdf::i32) out) {\n'
        "  mdf::store1(out, int(threadIdx.x), 7);\n}\n"
    )
    out = np.arange(40, dtype=np.int32)
    with pytest.raises(EmulatorError, match="outside every allocation"):
        launch(source, "half", updated=[out], block=64)
    assert out.tolist() == list(range(40))


LAUNCHES = {
    "grid": ({"grid": (0, 1, 1)}, r"grid \(0, 1, 1\) is not within"),
    "block": ({"block": (1, 1, 65)}, r"block \(1, 1, 65\) is not within"),
    "threads": ({"block": (64, 32, 1)}, r"has 2048 threads, the limit is 1024"),
    "bounds": ({"block": 128}, r"has 128 threads, __launch_bounds__ promises 64"),
    "cluster": ({"cluster": 2, "grid": 3}, r"a cluster of 2 blocks does not divide grid"),
    "shared": ({"shared_bytes": 300000}, r"300000 bytes of dynamic shared memory"),
    "too_many": ({"scalars": [1, 2.0, 3]}, r"takes 3 arguments \(pointer, i32, float\), got 4"),
    "range": (
        {"scalars": [2**31, 1.0]},
        r"argument 1: 2147483648 does not fit a parameter of type i32",
    ),
    "type": ({"scalars": [1.5, 1.0]}, r"argument 1: 1.5 does not fit"),
    "float": ({"scalars": [1, True]}, r"argument 2: True does not fit a parameter of type float"),
}


@pytest.mark.parametrize("name", LAUNCHES)
def test_launches_that_a_driver_would_refuse(name: str) -> None:
    source = INCLUDE + (
        'extern "C" __global__ void __launch_bounds__(64)\n'
        "bounded(MDF_OUT(float) out, mdf::i32 i, float v) { mdf::store1(out, i, v); }\n"
    )
    changes, message = LAUNCHES[name]
    out = np.zeros(4, np.float32)
    with pytest.raises(EmulatorError, match=message):
        launch(source, "bounded", outputs=[out], **({"scalars": [0, 1.0]} | changes))


def test_overlapping_allocations_are_refused() -> None:
    source = INCLUDE + 'extern "C" __global__ void nothing(MDF_OUT(float) out) {}\n'
    out = np.zeros(8, np.float32)
    pieces = [Allocation(address(out), 32, True, "a"), Allocation(address(out) + 16, 16, True, "b")]
    with pytest.raises(EmulatorError, match="'a' and 'b' overlap"):
        build(source, "nothing").launch(
            grid=(1, 1, 1), block=(1, 1, 1), args=[address(out)], allocations=pieces
        )


def test_compile_errors_show_the_log_and_the_numbered_source() -> None:
    source = (
        INCLUDE
        + 'extern "C" __global__ void broken(MDF_OUT(float) out) {\n  mdf::store1(out, 0, x);\n}\n'
    )
    with pytest.raises(CompileError) as caught:
        build(source, "broken")
    text = str(caught.value)
    assert re.search(r"kernel\.cu:3:\d+: error: .x. was not declared", text)
    assert "   3   mdf::store1(out, 0, x);" in text


def test_an_entry_that_does_not_exist() -> None:
    source = INCLUDE + 'extern "C" __global__ void nothing(MDF_OUT(float) out) {}\n'
    with pytest.raises(CompileError, match="defines no kernel other; it defines: nothing"):
        build(source, "other")
