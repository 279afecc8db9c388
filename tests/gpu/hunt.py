"""Random programs by the thousand on a GPU, or in the emulator where there is none.

    python tests/gpu/hunt.py --first 100000 --count 20000 --processes 14 --seconds 300

A seed whose program goes wrong is printed with its message; the last line counts. Exit code 1 if
any went wrong.
"""

import argparse
import multiprocessing
import os
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]


def _work(first: int, end: int, step: int, until: float) -> tuple[int, int, list[str]]:
    """Every ``step``-th seed from ``first`` below ``end``: how many ran, kernels, faults."""
    import torch  # noqa: PLC0415 - each process sets up its own

    torch.set_num_threads(1)
    from codegen.random_programs.check import check  # noqa: PLC0415
    from codegen.random_programs.draw import draw_program  # noqa: PLC0415
    from gpu.test_gpu_programs import run  # noqa: PLC0415

    each = run if torch.cuda.is_available() else check
    ran = kernels = 0
    wrong = []
    for seed in range(first, end, step):
        if time.time() > until:
            break
        try:
            kernels += _kernels(each(draw_program(seed)))
        except Exception as e:
            wrong.append(f"seed {seed}: {type(e).__name__}: {e}")
        ran += 1
    return ran, kernels, wrong


def _kernels(executable: object) -> int:
    return len(executable.last.plan.kernels)  # type: ignore[attr-defined]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--first", type=int, default=100_000, help="the first seed")
    parser.add_argument("--count", type=int, default=20_000, help="how many seeds")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--seconds", type=float, default=3600.0, help="no new program after that")
    options = parser.parse_args()
    end, step = options.first + options.count, options.processes
    until = time.time() + options.seconds
    jobs = [(options.first + k, end, step, until) for k in range(step)]
    with multiprocessing.get_context("spawn").Pool(step) as pool:
        found = pool.starmap(_work, jobs)
    wrong = [message for _, _, messages in found for message in messages]
    print(*wrong, sep="\n\n")
    ran, kernels = sum(f[0] for f in found), sum(f[1] for f in found)
    print(f"{ran} programs with {kernels} kernels from seed {options.first}, {len(wrong)} wrong")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
