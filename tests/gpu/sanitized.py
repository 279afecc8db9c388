"""One pass over all kernel families, to be run under compute-sanitizer:

    export PYTORCH_NO_CUDA_MEMORY_CACHING=1
    check="compute-sanitizer --error-exitcode 3 --report-api-errors no --check-api-memory-access no"
    for tool in memcheck racecheck synccheck; do
        $check --tool $tool --kernel-name kns=mdf_ python tests/gpu/sanitized.py
    done
    $check --tool initcheck python tests/gpu/sanitized.py

Without caching every tensor is an allocation of its own, so that the tool sees its end. Only
generated kernels are looked at, but for initcheck, which has to see who wrote what they read.
Calls are not: copies of tensors with gaps read what nobody wrote, and libraries ask the driver for
what it does not have. Exit code 1 for a wrong result, 3 for what the tool found.
"""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

import torch  # noqa: E402
from codegen.random_programs.draw import draw_program  # noqa: E402
from gpu.test_gpu_programs import run  # noqa: E402

from thunder_mdfuse import mdfuse_executor  # noqa: E402
from thunder_mdfuse.bench.cases import error  # noqa: E402
from thunder_mdfuse.bench.workloads import WORKLOADS, Workload  # noqa: E402
from thunder_mdfuse.thunder.frontend import jit  # noqa: E402

# Beside each workload's own small sizes: several blocks, parts of rows, odd rows.
LARGER = {2: [(300, 1000), (33, 3001), (3, 70_000), (2000, 24)], 4: [(2, 65, 3, 24)]}
SEEDS = range(500, 530)


def _sizes(work: Workload) -> list[tuple[int, ...]]:
    if work.name == "B03":
        return [work.small, (1, 37)]
    return [work.small, *LARGER[len(work.small)]]


def main() -> int:
    wrong = 0
    seen = set()
    for work in WORKLOADS.values():
        if (work.function, work.timed) in seen:
            continue
        seen.add((work.function, work.timed))
        for sizes in _sizes(work):
            torch.manual_seed(0)
            jitted = jit(work.function, [mdfuse_executor.name])
            off = error(work, jitted, work.make(torch.device("cuda"), *sizes))
            if not off <= 2 * work.tolerance:
                print(f"{work.name} {sizes}: error {off}")
                wrong += 1
    for seed in SEEDS:
        run(draw_program(seed))
    print(f"{len(seen)} workloads and {len(SEEDS)} programs, {wrong} wrong")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
