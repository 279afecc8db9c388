"""Random sharded programs by the thousand, on simulated meshes, outside of CI.

    python tests/sharding/hunt.py --first 1000 --count 20000 --processes 2 --seconds 3600

Batches of 100 programs have seeds from ``--first`` on; of ten batches one has eager DTensor's
placements and one is planned at every coordinate. A program that goes wrong is printed with its
message; the last line counts. Exit code 1 if any went wrong.
"""

import argparse
import multiprocessing
import os
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]
BATCH = 100


def _work(numbers: list[int], until: float) -> tuple[int, list[str]]:
    """The batches with the seeds ``numbers``: how many programs ran, and faults."""
    import logging  # noqa: PLC0415 - each process sets up its own

    import torch  # noqa: PLC0415
    from sharding.checking import check_program, drawn  # noqa: PLC0415

    torch.set_num_threads(1)
    logging.disable(logging.WARNING)  # eager's, about redistributions that cost much
    ran, wrong = 0, []
    for number in numbers:
        way = {8: "eager", 9: "sequence"}.get(number % 10, "drawn")
        for i, program in enumerate(drawn(number, BATCH)):
            if time.time() > until:
                return ran, wrong
            try:
                check_program(program, way)
            except Exception as e:
                notes = "\n".join(getattr(e, "__notes__", []))
                wrong.append(f"seed {number}, program {i}, {way}: {type(e).__name__}: {e}\n{notes}")
            ran += 1
    return ran, wrong


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--first", type=int, default=1000, help="the first seed")
    parser.add_argument("--count", type=int, default=20_000, help="how many programs")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--seconds", type=float, default=3600.0, help="no new program after that")
    options = parser.parse_args()
    batches, step = -(-options.count // BATCH), options.processes
    numbers = range(options.first, options.first + batches)
    until = time.time() + options.seconds
    jobs = [(list(numbers[k::step]), until) for k in range(step)]
    with multiprocessing.get_context("spawn").Pool(step) as pool:
        found = pool.starmap(_work, jobs)
    wrong = [message for _, messages in found for message in messages]
    print(*wrong, sep="\n\n")
    ran = sum(f[0] for f in found)
    print(f"{ran} programs from seed {options.first} ({batches} seeds), {len(wrong)} wrong")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
