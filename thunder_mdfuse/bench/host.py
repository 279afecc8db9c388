"""What a call of a fusion costs the host, beside the least that it can cost. Needs a CUDA GPU.

The least is, for k outputs, k allocations by ``_empty_strided_cuda`` and one launch by cuda.core,
of the fusion's own first kernel with arguments that are ready. ``run`` (``fd.executable.run``)
looks whether it knows the inputs, allocates and launches; ``execute`` (``fd.execute``) is what a
user calls. ``run`` is meant to take at most 1.3 times the least, and 0.6 of a launch more for each
kernel after the first; ``execute`` at most 1.5 us more. Times are medians, in microseconds.
"""

import argparse
import json
import re
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from thunder_mdfuse.bench.environment import environment
from thunder_mdfuse.bench.measure import host_time
from thunder_mdfuse.definition import FusionDefinition
from thunder_mdfuse.direct.dtypes import DataType
from thunder_mdfuse.runtime.program import BoundProgram
from thunder_mdfuse.runtime.straight import Straight, compiled

# Column sums of so many rows are a kernel of their own.
ROWS, COLUMNS = 16384, 64
ROUNDS = 5
Thunk = Callable[[], object]


@dataclass(frozen=True)
class HostTimes:
    """Microseconds of one call of a fusion with ``outputs`` outputs and ``kernels`` kernels."""

    outputs: int
    kernels: int
    allocations: float
    launch: float
    run: float
    execute: float

    @property
    def limit(self) -> float:
        """What ``run`` may take."""
        return 1.3 * (self.allocations + self.launch) + 0.6 * self.launch * (self.kernels - 1)

    @property
    def holds(self) -> bool:
        """Whether ``run`` and ``execute`` take what they may."""
        return self.run <= self.limit and self.execute <= self.limit + 1.5


def pointwise(outputs: int) -> FusionDefinition:
    """``x * y + n`` for n up to ``outputs``, in one kernel."""
    with FusionDefinition() as fd:
        x, y = (fd.define_tensor([-1, -1], dtype=DataType.Float) for _ in range(2))
        product = fd.ops.mul(x, y)
        for n in range(outputs):
            fd.add_output(fd.ops.add(product, float(n)))
    return fd


def columns(kernels: int) -> FusionDefinition:
    """Column sums that the next sums need: one kernel for each, and one at the end."""
    with FusionDefinition() as fd:
        x, y = (fd.define_tensor([-1, -1], dtype=DataType.Float) for _ in range(2))
        for _ in range(kernels - 1):
            x = fd.ops.sub(x, fd.ops.sum(x, 0, keepdim=True))
        fd.add_output(fd.ops.mul(x, y))
    return fd


FUSIONS: dict[str, Callable[[], FusionDefinition]] = {
    "one output": lambda: pointwise(1),
    "two outputs": lambda: pointwise(2),
    "four outputs": lambda: pointwise(4),
    "two kernels": lambda: columns(2),
    "three kernels": lambda: columns(3),
}


def least(bound: BoundProgram, inputs: list[torch.Tensor]) -> tuple[Thunk, Thunk]:
    """The allocations of a program's outputs, and its first launch."""
    code = bound.code
    lines = [line.strip() for line in code.text.splitlines()]
    returned = re.findall(r"\bt\w+", next(line for line in lines if line.startswith("return [")))
    made = [line for line in lines if re.match(r"\w+ = empty_strided\(", line)]
    launch = next(line for line in lines if line.startswith("launch("))
    allocate, start = Straight("allocate", ""), Straight("start", "")
    for line in made:
        if line.split(" = ")[0] in returned:
            allocate.add(line)
    # The kernel's arguments as numbers; the tensors behind them are kept by the function.
    tensors = dict(zip((f"t{n}" for n in bound.plan.fusion.inputs), inputs, strict=True))
    scope = {**code.names, **tensors}
    for line in made:
        exec(line, scope)
    scope["stream"] = code.names["stream_of"](bound.device.index)
    start.add(re.sub(r"\w+\.data_ptr\(\)", lambda m: str(eval(m.group(), scope)), launch))
    functions = [
        compiled(f.name, f.text, {**code.names, **f.names, **scope}) for f in (allocate, start)
    ]
    return functions[0], functions[1]


def times(make: Callable[[], FusionDefinition], timer: Callable[[Thunk], float]) -> HostTimes:
    """The times of one fusion, each the least of some rounds of ``timer``."""
    inputs = [torch.randn(ROWS, COLUMNS, device="cuda") for _ in range(2)]
    return measured(make(), inputs, timer)


def measured(
    fd: FusionDefinition, inputs: list[torch.Tensor], timer: Callable[[Thunk], float]
) -> HostTimes:
    """As ``times``, on tensors that are there."""
    found = fd.execute(inputs)
    executable = fd.executable
    assert executable.last is not None and executable.last.bound is not None
    allocate, start = least(executable.last.bound, inputs)
    calls: dict[str, Thunk] = {
        "allocations": allocate,
        "launch": start,
        "run": lambda: executable.run(inputs),
        "execute": lambda: fd.execute(inputs),
    }
    rounds = [{name: timer(call) for name, call in calls.items()} for _ in range(ROUNDS)]
    best = {name: min(r[name] for r in rounds) for name in calls}
    kernels = sum(step.kind == "kernel" for step in executable.report())
    return HostTimes(len(found), kernels, **best)


def main(argv: list[str] | None = None) -> int:
    """Print a line for each fusion, and write JSON; 1 if one takes more than it may."""
    parser = argparse.ArgumentParser(
        prog="python -m thunder_mdfuse.bench.host",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--json", type=Path, help="file to write the results into")
    options = parser.parse_args(argv)
    if not torch.cuda.is_available():
        print("python -m thunder_mdfuse.bench.host needs a CUDA GPU", file=sys.stderr)
        return 2
    found = {name: times(make, host_time) for name, make in FUSIONS.items()}
    for name, t in found.items():
        print(
            f"{name}: {t.kernels} kernels, allocations {t.allocations:.1f} + launch {t.launch:.1f} "
            f"us; run {t.run:.1f} of {t.limit:.1f}, execute {t.execute:.1f} of {t.limit + 1.5:.1f}"
            f"{'' if t.holds else ': MORE'}"
        )
    if options.json:
        results = {n: {**asdict(t), "limit": t.limit, "holds": t.holds} for n, t in found.items()}
        record = {
            "environment": environment(),
            "command": "python -m thunder_mdfuse.bench.host",
            "results": results,
        }
        options.json.write_text(json.dumps(record, indent=1) + "\n")
    return int(not all(t.holds for t in found.values()))


if __name__ == "__main__":
    sys.exit(main())
