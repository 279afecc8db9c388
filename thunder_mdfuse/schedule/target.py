"""The device that a plan is made for, as a frozen record of its limits.

In: nothing. Out: ``Target`` and the recorded ones, ``H200``, ``A100`` and ``B200``. Planning reads
a ``Target`` and nothing else about the machine, so that a plan made without a GPU for the recorded
H200 is the plan that an H200 gets. ``compile/device.py`` makes a ``Target`` from a live device.
"""

from dataclasses import dataclass, fields

from thunder_mdfuse.errors import ScheduleError

KIB = 1024
MIB = 1024 * KIB


@dataclass(frozen=True)
class Target:
    """Limits of one device. Sizes are in bytes, counts are of 32-bit registers and of threads."""

    name: str
    arch: str  # as the compiler spells it: "sm_90"
    sm_count: int
    max_threads_per_block: int
    max_threads_per_sm: int
    registers_per_sm: int
    shared_per_block: int  # the opt-in maximum for one block, static and dynamic together
    shared_per_sm: int  # includes what the system reserves for each block (SHARED_RESERVED)
    max_cluster: int  # blocks in a cluster on every part; 1: the device has no clusters
    warp_size: int
    l2_bytes: int
    copy_bytes_per_s: float  # bytes read plus bytes written by a large copy, per second

    def __post_init__(self) -> None:
        if not self.arch.startswith("sm_") or not self.arch[3:].rstrip("af").isdigit():
            raise ScheduleError(f"target {self.name!r}: arch {self.arch!r} is not like sm_90")
        for field in fields(self):
            found = getattr(self, field.name)
            if field.name not in ("name", "arch") and found <= 0:
                raise ScheduleError(
                    f"target {self.name!r}: {field.name} is {found}, it must be positive"
                )

    @property
    def capability(self) -> int:
        """The compute capability as one number: 90 for sm_90 and sm_90a."""
        return int(self.arch[3:].rstrip("af"))

    def blocks_per_sm(self, threads: int, registers: int, shared: int) -> int:
        """Blocks of ``threads`` threads that one SM holds at once; 0 when not even one fits.

        ``registers`` is per thread, ``shared`` is static plus dynamic bytes per block.
        """
        if threads <= 0 or threads > self.max_threads_per_block or shared > self.shared_per_block:
            return 0
        warps = -(-threads // self.warp_size)
        by_threads = self.max_threads_per_sm // (warps * self.warp_size)
        # Registers are handed to warps in units of 256, and a thread gets no more than 255.
        per_warp = -(-max(registers, 1) * self.warp_size // 256) * 256
        by_registers = self.registers_per_sm // (per_warp * warps)
        by_shared = self.shared_per_sm // (shared + SHARED_RESERVED)
        return min(by_threads, by_registers, by_shared, MAX_BLOCKS_PER_SM)


# Since sm_80 the system takes 1 KiB of an SM's shared memory for each resident block (CUDA C++
# Programming Guide, compute capabilities 8.x to 12.x): shared_per_block is shared_per_sm - 1 KiB.
SHARED_RESERVED = KIB
# 32 on sm_80, sm_90 and sm_100 (same table); consumer parts of 8.6 and 8.9 hold 16 and 24, but
# they also hold fewer threads, which is what limits there.
MAX_BLOCKS_PER_SM = 32

# Per-SM limits and cluster size: CUDA C++ Programming Guide, table of technical specifications per
# compute capability. A cluster of 8 works on every part; 16 is an opt-in that a part with disabled
# SMs may refuse, so the recorded limit is 8.
H200 = Target(
    name="NVIDIA H200",
    arch="sm_90",
    sm_count=132,
    max_threads_per_block=1024,
    max_threads_per_sm=2048,
    registers_per_sm=65536,
    shared_per_block=227 * KIB,
    shared_per_sm=228 * KIB,
    max_cluster=8,
    warp_size=32,
    l2_bytes=60 * MIB,  # what torch reports for the device
    copy_bytes_per_s=4.23e12,  # measured, 4.22 to 4.25 over sizes above 64 MiB; the peak is 4.8e12
)

# 80 GB SXM. L2 and peak from NVIDIA's A100 data sheet (40 MB, 2.039 TB/s); the copy rate is the
# peak times the share of it that a copy reaches on our H200 (0.88), not a measurement.
A100 = Target(
    name="NVIDIA A100-SXM4-80GB",
    arch="sm_80",
    sm_count=108,
    max_threads_per_block=1024,
    max_threads_per_sm=2048,
    registers_per_sm=65536,
    shared_per_block=163 * KIB,
    shared_per_sm=164 * KIB,
    max_cluster=1,
    warp_size=32,
    l2_bytes=40 * MIB,
    copy_bytes_per_s=1.79e12,
)

# SM count, L2 (126.5 MiB) and peak (7680 bits at 3996 MHz: 7.67 TB/s) from the device query in
# pytorch/ao pull request 4002; the copy rate is again 0.88 of the peak, not a measurement.
B200 = Target(
    name="NVIDIA B200",
    arch="sm_100",
    sm_count=148,
    max_threads_per_block=1024,
    max_threads_per_sm=2048,
    registers_per_sm=65536,
    shared_per_block=227 * KIB,
    shared_per_sm=228 * KIB,
    max_cluster=8,
    warp_size=32,
    l2_bytes=253 * MIB // 2,
    copy_bytes_per_s=6.75e12,
)

RECORDED: dict[str, Target] = {target.name: target for target in (H200, A100, B200)}
