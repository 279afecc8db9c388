"""How long the suite's kernels take to compile, and to come from the disk cache. Needs a CUDA GPU.

Each workload is called once, for its kernels' texts. Then each of these is compiled alone into an
empty folder, and found again there by a cache that has forgotten it, its module loaded. Meant are
at most 100 ms for the first and 2 ms for the second.
"""

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from thunder_mdfuse.bench.cases import prepared
from thunder_mdfuse.bench.environment import environment
from thunder_mdfuse.bench.peers import PEERS
from thunder_mdfuse.bench.workloads import WORKLOADS, Workload
from thunder_mdfuse.codegen.kernel import KernelText
from thunder_mdfuse.compile.cache import KernelCache, cached_cubin
from thunder_mdfuse.compile.device import current_target
from thunder_mdfuse.compile.module import LoadedKernel
from thunder_mdfuse.compile.nvrtc import Cubin, Job
from thunder_mdfuse.compile.sources import device_headers
from thunder_mdfuse.thunder.frontend import regions

MOST_COLD, MOST_WARM = 100.0, 2.0


@dataclass(frozen=True)
class KernelTime:
    """Milliseconds of one kernel: compiled, and from the disk cache."""

    workload: str
    kernel: str
    cold: float
    warm: float


def kernels(work: Workload, device: torch.device, sizes: Sequence[int]) -> dict[str, KernelText]:
    """The kernels of ``work`` on inputs of these ``sizes``, by their entries."""
    jitted = PEERS["mdfuse"](work)
    prepared(work, jitted, work.make(device, *sizes))()
    calls = regions(jitted, backward=work.timed != "forward")
    used = [call.last_used.last for call in calls if call.last_used is not None]
    return {text.entry: text for entry in used if entry is not None for text in entry.texts}


def kernel_time(
    workload: str, text: KernelText, arch: str, use: Callable[[Cubin], object]
) -> KernelTime:
    """The times of one kernel; ``use`` is what is done with it once it is there."""
    job = Job(text.source, text.entry, arch, device_headers())
    with TemporaryDirectory() as folder:
        store = KernelCache(Path(folder) / "cubin")
        found: list[float] = []
        for _ in range(2):
            begin = time.perf_counter()
            cubin = cached_cubin(job, store)
            if found:
                use(cubin)
            found.append((time.perf_counter() - begin) * 1e3)
            store.forget()
    return KernelTime(workload, text.entry, *found)


def main(argv: list[str] | None = None) -> int:
    """Print a line for each kernel, and write JSON; 1 if one takes longer than is meant."""
    parser = argparse.ArgumentParser(
        prog="python -m thunder_mdfuse.bench.compiling",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--json", type=Path, help="file to write the results into")
    options = parser.parse_args(argv)
    if not torch.cuda.is_available():
        print("python -m thunder_mdfuse.bench.compiling needs a CUDA GPU", file=sys.stderr)
        return 2
    device = torch.device("cuda", torch.cuda.current_device())
    arch = current_target(device.index).arch
    found: list[KernelTime] = []
    for work in WORKLOADS.values():
        torch.manual_seed(0)
        for text in kernels(work, device, work.sizes).values():
            found.append(
                kernel_time(work.name, text, arch, lambda c: LoadedKernel(c, device.index))
            )
            k = found[-1]
            print(f"{k.workload:<5} {k.kernel:<28} {k.cold:7.1f} ms, {k.warm:5.2f} from the disk")
    cold, warm = ([getattr(k, name) for k in found] for name in ("cold", "warm"))
    print(
        f"{len(found)} kernels: compiled in {statistics.median(cold):.0f} ms, at most "
        f"{max(cold):.0f}, {sum(c > MOST_COLD for c in cold)} above {MOST_COLD:g}; from the disk "
        f"in {statistics.median(warm):.2f} ms, at most {max(warm):.2f}"
    )
    if options.json:
        record = {
            "environment": environment(),
            "command": "python -m thunder_mdfuse.bench.compiling",
            "results": [asdict(k) for k in found],
        }
        options.json.write_text(json.dumps(record, indent=1) + "\n")
    return int(max(cold) > MOST_COLD or max(warm) > MOST_WARM)


if __name__ == "__main__":
    sys.exit(main())
