"""What the emulator runs, against numpy: shuffles, atomics, clusters, mailboxes, arguments."""

import threading
from itertools import product

import numpy as np
import pytest
import torch
from kernels.emulated import C_TYPES, INCLUDE, address, allocation, launch

from thunder_mdfuse.compile.emulate import EmulatedKernel, build
from thunder_mdfuse.errors import EmulatorError

SHUFFLES = ("shfl_xor", "shfl_down", "shfl_up", "shfl_idx")
VECTORS = [(t, v) for t in ("i8", "f16", "f32", "f64", "c128") for v in (1, 2, 4, 8, 16)]


def _shuffle_kernel(call: str) -> str:
    return (
        f'extern "C" __global__ void {call}(\n'
        "    MDF_OUT(mdf::i32) out, mdf::i32 amount, mdf::i32 width) {\n"
        "  const mdf::i32 t = mdf::i32(threadIdx.x);\n"
        f"  mdf::store1(out, t, mdf::{call}(t, amount, mdf::FULL_MASK, width));\n}}\n"
    )


def _copy_kernel(kind: str, n: int) -> str:
    c = C_TYPES[kind]
    return (
        f'extern "C" __global__ void copy_{kind}_{n}(MDF_IN({c}) x, MDF_OUT({c}) y) {{\n'
        f"  MDF_SHARED({c}, staged, 32 * {n});\n"
        f"  const int i = threadIdx.x * {n};\n"
        f"  mdf::store<{n}>(staged, i, mdf::load<{n}>(x, i));\n  mdf::warp_barrier();\n"
        f"  mdf::store<{n}>(y, i, mdf::load<{n}>(staged, 31 * {n} - i));\n}}\n"
    )


SOURCE = (
    INCLUDE
    + "".join(map(_shuffle_kernel, SHUFFLES))
    + "".join(_copy_kernel(*v) for v in VECTORS)
    + """
extern "C" __global__ void structures(MDF_OUT(double) out) {
  struct Triple { double a; float b; mdf::i8 c; };
  const Triple mine{double(threadIdx.x), 0.5f, mdf::i8(threadIdx.x)};
  const Triple other = mdf::shfl_xor(mine, 3);
  mdf::store1(out, threadIdx.x, other.a + other.b + other.c);
}
extern "C" __global__ void votes(MDF_OUT(mdf::u32) out, mdf::u32 mask) {
  const mdf::u32 lane = mdf::lane_index();
  mdf::u32 r = 0;
  if (mask >> lane & 1) r = mdf::ballot(lane % 3 == 0, mask);
  mdf::store1(out, threadIdx.x, r);
}
extern "C" __global__ void indices(MDF_OUT(mdf::i32) out) {
  const mdf::u32 block =
      blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
  const mdf::i64 i = mdf::i64(block) * mdf::block_threads() + mdf::thread_index();
  const mdf::i32 place = mdf::i32(threadIdx.x + 10 * threadIdx.y + 100 * threadIdx.z);
  mdf::store1(out, i, mdf::i32(block) * 1000 + place);
}
extern "C" __global__ void histogram(MDF_IN(mdf::i32) x, MDF_INOUT(mdf::i32) counts,
                                     MDF_INOUT(float) sum, MDF_INOUT(double) wide,
                                     MDF_INOUT(mdf::i64) largest, MDF_INOUT(mdf::u32) small) {
  const mdf::i32 v = mdf::load1(x, mdf::i64(blockIdx.x) * blockDim.x + threadIdx.x);
  mdf::atomic_add(counts, v, 1);
  mdf::atomic_add(sum, 0, float(v));
  mdf::atomic_add(wide, 0, double(v));
  mdf::atomic_add(largest, 0, mdf::i64(v) << 40);
  mdf::atomic_add(small, 0, mdf::u32(v));
}
extern "C" __global__ void __launch_bounds__(64)
last_block(MDF_IN(mdf::i64) x, MDF_INOUT(mdf::i64) parts, MDF_INOUT(mdf::u32) counters,
           MDF_INOUT(mdf::i64) total) {
  MDF_SHARED(mdf::i64, scratch, 2);
  const mdf::i64 v = mdf::load1(x, mdf::i64(blockIdx.x) * 64 + threadIdx.x);
  const mdf::i64 part = mdf::block_reduce<mdf::Sum, 64>(v, scratch);
  if (threadIdx.x == 0) mdf::store1(parts, blockIdx.x, part);
  if (mdf::counter_arrive(counters, 1, gridDim.x)) {
    mdf::i64 sum = 0;
    for (mdf::u32 k = threadIdx.x; k < gridDim.x; k += 64) sum += mdf::load1(parts, k);
    sum = mdf::block_reduce<mdf::Sum, 64>(sum, scratch);
    if (threadIdx.x == 0) mdf::store1(total, 0, sum);
  }
}
extern "C" __global__ void reverse_dynamic(MDF_IN(double) x, MDF_OUT(double) y, mdf::i32 n) {
  MDF_DYNAMIC_SHARED(double, s, n);
  MDF_DYNAMIC_SHARED_AT(mdf::u8, flags, n, n * 8);
  s[threadIdx.x] = mdf::load1(x, threadIdx.x);
  flags[threadIdx.x] = threadIdx.x % 2;
  mdf::barrier();
  const int other = n - 1 - int(threadIdx.x);
  mdf::store1(y, threadIdx.x, flags[other] ? double(s[other]) : -s[other]);
}
extern "C" __global__ void kinds(MDF_OUT(double) out, mdf::i32 a, mdf::u32 b, mdf::i64 c,
                                 mdf::u64 d, float e, double f, bool g, mdf::i8 h, mdf::u8 i,
                                 mdf::i16 j, mdf::u16 l) {
  const double all[11] = {double(a), double(b), double(c), double(d), double(e), f,
                          double(g), double(h), double(i), double(j), double(l)};
  for (int k = 0; k < 11; ++k) mdf::store1(out, k, all[k]);
}
extern "C" __global__ void gaps(MDF_INOUT(float) out) {
  if (threadIdx.x % 8 != 5) mdf::store1(out, threadIdx.x, 1.0f);
}
extern "C" __global__ void nothing() {}
"""
)
# Apart from the rest: sm_80 has no clusters.
CLUSTER = (
    INCLUDE
    + """
extern "C" __global__ void ranks(MDF_OUT(mdf::i32) out) {
  MDF_SHARED(mdf::bf16, mine, 1);
  if (threadIdx.x == 0) {
    mine[0] = mdf::from_compute<mdf::bf16>(mdf::i32(blockIdx.x));
  }
  mdf::cluster_barrier();
  float sum = 0;
  for (mdf::u32 r = 0; r < mdf::cluster_size(); ++r) {
    sum = 10 * sum + mdf::to_compute(mdf::cluster_read(mine, 0, r));
  }
  mdf::cluster_barrier();
  const int i = int(blockIdx.x) * 32 + int(threadIdx.x);
  mdf::store1(out, i, mdf::i32(sum) * 10 + mdf::i32(mdf::cluster_rank()));
}
"""
)
# A source of its own for each rank: launches of one source take turns, and these two have to meet.
MAILBOX = """
extern "C" __global__ void exchange(MDF_IN(float) x, MDF_OUT(float) y, MDF_INOUT(float) mine,
                                    MDF_INOUT(float) peers, MDF_INOUT(mdf::u32) my_flag,
                                    MDF_INOUT(mdf::u32) peer_flag) {
  const int i = int(threadIdx.x) * 4;
  mdf::store_relaxed_sys<4>(peers, i, mdf::load<4>(x, i));
  mdf::barrier();
  if (threadIdx.x == 0) {
    mdf::fence_sys();
    mdf::store_release_sys(peer_flag, 0, 1u);
    while (mdf::load_acquire_sys(my_flag, 0) != 1u) {
    }
  }
  mdf::barrier();
  const mdf::Vec<float, 4> a = mdf::load<4>(x, i);
  mdf::Vec<float, 4> b = mdf::load_relaxed_sys<4>(mine, i);
  for (int k = 0; k < 4; ++k) b.v[k] += a.v[k];
  mdf::store<4>(y, i, b);
}
"""


def _source_lane(call: str, lane: int, amount: int, width: int) -> int:
    """The CUDA programming guide's rules for a lane outside its segment: it reads itself."""
    first = lane // width * width
    source = {
        "shfl_xor": lane ^ amount,
        "shfl_down": lane + amount,
        "shfl_up": lane - amount,
        "shfl_idx": first + amount % width,
    }[call]
    if call == "shfl_xor":  # earlier segments may be read, later ones not
        return source if source < first + width else lane
    return source if first <= source < first + width else lane


@pytest.mark.parametrize("call", SHUFFLES)
def test_shuffles(call: str) -> None:
    for amount, width in product((0, 1, 3, 16, 31), (4, 8, 32)):
        out = np.empty(64, np.int32)
        launch(SOURCE, call, outputs=[out], scalars=[amount, width], block=64)
        lanes = [_source_lane(call, t % 32, amount, width) + t // 32 * 32 for t in range(64)]
        assert out.tolist() == lanes, (amount, width)


def test_shuffles_move_structures() -> None:
    out = np.empty(32)
    launch(SOURCE, "structures", outputs=[out])
    assert out.tolist() == [2 * (t ^ 3) + 0.5 for t in range(32)]


@pytest.mark.parametrize("mask", [0xFFFFFFFF, 0x0000FFFF, 0x80000001, 0x00000010])
def test_ballot(mask: int) -> None:
    out = np.empty(64, np.uint32)
    launch(SOURCE, "votes", outputs=[out], scalars=[mask], block=64)
    expected = sum(1 << lane for lane in range(0, 32, 3)) & mask
    assert out.tolist() == [expected if mask >> t % 32 & 1 else 0 for t in range(64)]


@pytest.mark.parametrize("vector", VECTORS, ids=str)
def test_vectors_through_shared_memory(vector: tuple[str, int]) -> None:
    kind, n = vector
    dtype = {
        "i8": np.int8,
        "f16": np.float16,
        "f32": np.float32,
        "f64": np.float64,
        "c128": complex,
    }[kind]
    x = np.arange(32 * n).astype(dtype)
    y = np.empty_like(x)
    launch(SOURCE, f"copy_{kind}_{n}", inputs=[x], outputs=[y])
    assert (y.reshape(32, n) == x.reshape(32, n)[::-1]).all()


def test_indices_in_three_dimensions() -> None:
    out = np.empty(12 * 24, np.int32)
    launch(SOURCE, "indices", outputs=[out], grid=(2, 3, 2), block=(4, 3, 2))
    threads = [x + 10 * y + 100 * z for z, y, x in product(range(2), range(3), range(4))]
    assert out.tolist() == [1000 * b + t for b in range(12) for t in threads]


def test_atomics() -> None:
    x = np.random.default_rng(0).integers(0, 10, 256).astype(np.int32)
    counts, small = np.zeros(10, np.int32), np.zeros(1, np.uint32)
    sums = np.zeros(1, np.float32), np.zeros(1), np.zeros(1, np.int64)
    launch(SOURCE, "histogram", inputs=[x], updated=[counts, *sums, small], grid=4, block=64)
    assert counts.tolist() == np.bincount(x, minlength=10).tolist()
    assert [int(s[0]) for s in (*sums, small)] == [x.sum(), x.sum(), int(x.sum()) << 40, x.sum()]


def test_last_block_adds_the_parts_and_resets_the_counter() -> None:
    x = np.arange(64 * 7, dtype=np.int64)
    parts, total, counters = np.zeros(7, np.int64), np.zeros(1, np.int64), np.zeros(3, np.uint32)
    for _ in range(2):
        launch(SOURCE, "last_block", inputs=[x], updated=[parts, counters, total], grid=7, block=64)
        assert total[0] == x.sum()
        assert not counters.any()


def test_dynamic_shared_memory() -> None:
    x = np.arange(48.0)
    y = np.empty_like(x)
    launch(
        SOURCE,
        "reverse_dynamic",
        inputs=[x],
        outputs=[y],
        scalars=[48],
        block=48,
        shared_bytes=48 * 9,
    )
    sign = np.where(np.arange(48) % 2, 1, -1)
    assert y.tolist() == (x * sign)[::-1].tolist()


def test_clusters() -> None:
    out = np.empty(8 * 32, np.int32)
    launch(CLUSTER, "ranks", outputs=[out], grid=8, cluster=4)
    assert out.reshape(8, 32)[:, 0].tolist() == [1230, 1231, 1232, 1233, 45670, 45671, 45672, 45673]
    assert (out.reshape(8, 32) == out.reshape(8, 32)[:, :1]).all()


def test_arguments_of_every_kind() -> None:
    out = np.empty(11)
    scalars = [-5, 2**32 - 1, -(2**40), 2**63, 0.5, 1 / 3, True, -128, 255, -(2**15), 65535]
    launch(SOURCE, "kinds", outputs=[out], scalars=scalars, block=1)
    assert out.tolist() == [float(v) for v in scalars]
    assert build(SOURCE, "kinds").signature == "PiIqQfd?bBhH"
    launch(SOURCE, "nothing", grid=3)


def test_unwritten_elements_are_reported() -> None:
    out = np.zeros(32, np.float32)
    report = launch(SOURCE, "gaps", updated=[out])
    (gap,) = report.unwritten
    assert (gap.name, gap.nbytes, gap.first) == ("updated 0", 16, 20)
    assert report.steps > 32


def test_float_atomics_may_differ_in_order() -> None:
    x = np.zeros(64, np.int32)
    source = INCLUDE + (
        'extern "C" __global__ void mix(MDF_IN(mdf::i32) x, MDF_INOUT(float) sum) {\n'
        "  mdf::atomic_add(sum, 0, threadIdx.x == 0 ? 1e8f : 1.0f);\n}\n"
    )
    total = np.zeros(1, np.float32)
    with pytest.raises(EmulatorError, match="depends on the order"):
        launch(source, "mix", inputs=[x], updated=[total], block=64)
    assert total[0] == 0
    launch(source, "mix", inputs=[x], updated=[total], block=64, exact=False)
    assert abs(total[0] - 1e8) < 100


def test_two_ranks_meet_through_mailboxes() -> None:
    kernels = [build(f"{INCLUDE}// rank {rank}\n{MAILBOX}", "exchange") for rank in range(2)]
    x = [torch.arange(128.0) + 1000 * rank for rank in range(2)]
    y = [torch.zeros(128) for _ in range(2)]
    boxes = [torch.zeros(128) for _ in range(2)]
    flags = [torch.zeros(1, dtype=torch.int32) for _ in range(2)]

    def run(rank: int, kernel: EmulatedKernel) -> None:
        tensors = [x[rank], y[rank], boxes[rank], boxes[1 - rank], flags[rank], flags[1 - rank]]
        allocations = [allocation(t, k > 0, f"memory {k}") for k, t in enumerate(tensors)]
        kernel.launch(
            grid=(1, 1, 1),
            block=(32, 1, 1),
            args=[address(t) for t in tensors],
            allocations=allocations,
            timeout=20,
        )

    threads = [threading.Thread(target=run, args=(rank, k)) for rank, k in enumerate(kernels)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for rank in range(2):
        torch.testing.assert_close(y[rank], x[0] + x[1], rtol=0, atol=0)


def test_many_threads_are_fast_enough() -> None:
    source = INCLUDE + (
        'extern "C" __global__ void __launch_bounds__(256)\n'
        "many(MDF_IN(float) x, MDF_OUT(float) y) {\n"
        "  MDF_SHARED(float, scratch, 8);\n"
        "  const int i = int(blockIdx.x) * 256 + int(threadIdx.x);\n"
        "  mdf::store1(y, i, mdf::block_reduce<mdf::Sum, 256>(mdf::load1(x, i), scratch));\n}\n"
    )
    x = torch.ones(64 * 256)
    y = torch.empty_like(x)
    # 16384 threads with 8 shuffles and 2 barriers each; 0.1 s, and 20 times that is an alarm.
    launch(source, "many", inputs=[x], outputs=[y], grid=64, block=256, orders=1, timeout=2)
    assert (y == 256).all()
