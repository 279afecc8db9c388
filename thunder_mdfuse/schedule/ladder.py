"""Where a long row lives between its phases: the rungs below those that one block climbs alone.

    registers -> shared memory -> a cluster of blocks, each with a part -> read in each phase

``schedule/launch.py`` tries the first two. A cluster's blocks tell each other their partial results
through distributed shared memory, so that each part of a row is read once however long the row is.
"""

from dataclasses import replace

from thunder_mdfuse.ir.decide import Decider
from thunder_mdfuse.ir.sizes import Size, product
from thunder_mdfuse.schedule import launch as rules
from thunder_mdfuse.schedule.plan import KernelPlan, Launch
from thunder_mdfuse.schedule.target import Target

# Two such blocks fit an SM, with 64 registers of a row each thread: 128 KB of loads in flight.
# (H200, softmax of f32[4096, 131072] in clusters of 8: 1227 us; 1304 with 512 threads of 128 bytes,
# 1388 with 1024 of 64; in clusters of 4 with 1024 of 128, 1467.)
CLUSTER_THREADS = 256
CLUSTER_BYTES = rules.HELD_BYTES[512]
# Where even the largest cluster needs more, or registers do not do: one block an SM then.
LARGE_CLUSTER_THREADS = 512
# Every part that has clusters runs those of 8; smaller ones start sooner, as more places fit them.
CLUSTERS = (2, 4, 8)
# Of a block's shared memory, for the scratch of reductions.
OTHER_SHARED = 1024


def row(plan: KernelPlan, width: int, decide: Decider, target: Target) -> Launch:
    """The launch of a row kernel."""
    alone = rules.row(plan, width, decide, target)
    if alone.hold != "none" or any(b.space != "global" for b in plan.buffers):
        return alone
    vectors = rules.covering(plan, width)
    held = sum(width * plan.buffers[x.buffer].dtype.itemsize for x in rules.held_loads(plan))
    clusters = [n for n in CLUSTERS if n <= target.max_cluster]
    tries = [(n, CLUSTER_THREADS, CLUSTER_BYTES, "registers") for n in clusters]
    tries += [(n, LARGE_CLUSTER_THREADS, CLUSTER_BYTES, "registers") for n in clusters[-1:]]
    room = (target.shared_per_block - OTHER_SHARED) // LARGE_CLUSTER_THREADS
    tries += [(n, LARGE_CLUSTER_THREADS, room, "shared") for n in clusters]
    for cluster, threads, most, hold in tries:
        items = _items(vectors, cluster * threads, most // held, decide)
        if items and (hold == "shared" or items <= rules.MOST_UNROLLED):
            found = Launch(threads, width, items, threads, hold=hold)
            whole = product(a.extent for a in plan.columns)
            exact = plan.launch.shift is None and decide.divides(width, whole)
            exact = exact and decide.equal(vectors, items * cluster * threads)
            return replace(found, cluster=cluster, exact=exact)
    return alone


def _items(vectors: Size, threads: int, most: int, decide: Decider) -> int:
    """How many vectors each of a cluster's ``threads`` has of the row; 0: more than ``most``."""
    if not most or decide.less(most * threads, vectors):
        return 0
    items = 1
    while decide.less(items * threads, vectors):
        items += 1 if items < 8 else items
    return min(items, most)
