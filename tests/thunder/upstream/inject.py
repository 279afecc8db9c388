"""A pytest plugin that has Thunder's own tests run with one executor, and records the outcomes.

Thunder's test modules take their executors from ``thunder.tests.framework`` when they are imported,
so this is loaded before any of them. Tests that call ``thunder.jit`` without a list of executors
get ours as a default executor.
"""

import json
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import thunder
from thunder.core import dtypes
from thunder.tests import framework, opinfos

from thunder_mdfuse import mdfuse_executor


class MdfuseTestExecutor(framework.TestExecutor):
    """Our executor, as Thunder's test framework describes executors."""

    name = "mdfuse"
    supported_devicetypes = framework.TorchExecutor.supported_devicetypes
    supported_dtypes = (dtypes.dtype,)

    def executors_list(self) -> list[Any]:
        return [mdfuse_executor]

    def version(self) -> str:
        return str(mdfuse_executor.version)


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("upstream")
    group.addoption("--executor", choices=("mdfuse", "torch"), default="mdfuse")
    group.addoption("--outcomes", type=Path, help="write the outcomes here, as JSON by test")
    group.addoption("--every", type=int, default=1, help="run one test of so many")
    group.addoption("--samples", type=int, help="at most so many samples of each operator")
    group.addoption("--named", type=Path, help="run only the tests of this JSON list of names")
    group.addoption("--device", choices=("cpu", "cuda"), help="no tests made for the other one")


def pytest_configure(config: pytest.Config) -> None:
    chosen = framework.TorchExecutor
    if config.getoption("--executor") == "mdfuse":
        chosen = MdfuseTestExecutor()
        thunder.extend.add_default_executor(mdfuse_executor)
    framework.TorchExecutor = chosen
    # What ``framework.ops`` adds to them; a set, so that each test is made once.
    framework.TorchCompileCatExecutor = framework.TorchCompileXentropyExecutor = chosen
    framework._all_test_executors = lambda: [chosen]
    if (most := config.getoption("--samples")) is not None:
        opinfos.OpInfo.sample_inputs = _spread(opinfos.OpInfo.sample_inputs, most)
    config.pluginmanager.register(_Outcomes(config), "upstream-outcomes")


def _spread(original: Callable[..., Any], most: int) -> Callable[..., Iterator[Any]]:
    """``original``'s samples of an operator, at most so many, evenly over all of them."""

    def sample_inputs(*args: Any, **kwargs: Any) -> Iterator[Any]:
        found = list(original(*args, **kwargs))
        yield from found[:: max(1, -(-len(found) // most))]

    return sample_inputs


def common_name(nodeid: str) -> str:
    """A test's name without the executor in it: the same for all executors."""
    file, _, test = nodeid.partition("::")
    for name in ("mdfuse", "torch"):
        test = test.replace(f"_{name}_cpu", "_EX_cpu").replace(f"_{name}_cuda", "_EX_cuda")
    return f"{Path(file).stem}::{test}"


def _number(item: pytest.Item) -> int:
    return zlib.crc32(common_name(item.nodeid).encode())


class _Outcomes:
    """Chooses the tests, and keeps for each how it ended and the last line of its error.

    Of a test that is not among ``--named`` it keeps only that it is there.
    """

    def __init__(self, config: pytest.Config) -> None:
        self.every: int = config.getoption("--every")
        # With processes of pytest-xdist the one that hands out the tests hears of all of them.
        self.path: Path | None = config.getoption("--outcomes")
        if hasattr(config, "workerinput"):
            self.path = None
        named: Path | None = config.getoption("--named")
        self.named = None if named is None else set(json.loads(named.read_text()))
        device = config.getoption("--device")
        self.not_on = {"cpu": "_EX_cuda", "cuda": "_EX_cpu", None: None}[device]
        self.found: dict[str, dict[str, str]] = {}

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        # By name, since an executor may have tests that another has not.
        chosen = [i for i in items if _number(i) % self.every == 0]
        chosen = [i for i in chosen if not self.not_on or self.not_on not in common_name(i.nodeid)]
        if self.named is not None:
            names = [common_name(i.nodeid) for i in chosen]
            self.found |= {n: {"outcome": "there", "why": ""} for n in names if n not in self.named}
            chosen = [i for i in chosen if common_name(i.nodeid) in self.named]
        items[:] = chosen

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        name = common_name(report.nodeid)
        if report.when != "call" and report.outcome == "passed":
            return
        known = "xfail" if hasattr(report, "wasxfail") else ""
        why = "" if report.passed else str(report.longrepr)
        self.found[name] = {"outcome": known or report.outcome, "why": why}
        if self.path is not None and len(self.found) % 10 == 0:
            self._write()

    def pytest_sessionfinish(self) -> None:
        if self.path is not None:
            self._write()

    def _write(self) -> None:
        assert self.path is not None
        self.path.write_text(json.dumps(self.found, indent=1, sort_keys=True))
