"""What every test relies on: skipping by marker, few threads, a cache folder of its own.

Under a launcher that starts several ranks (mpirun, torchrun, srun) the multi-rank suite alone is
collected: every other test would run once for each rank, and some start ranks of their own.
"""

import os
from importlib import import_module
from pathlib import Path

import pytest
from hypothesis import settings

from thunder_mdfuse import knobs
from thunder_mdfuse.comm.launchers import read_launch

# Before anything imports torch: suites run side by side, and torch would start a thread a core.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("MKL_NUM_THREADS", "1")

# A fixed sample: a run that passes here passes everywhere. --hypothesis-profile=random draws anew.
settings.register_profile("fixed", derandomize=True, deadline=None, print_blob=True)
settings.register_profile("random", deadline=None, print_blob=True)
settings.load_profile("fixed")


_LAUNCH = read_launch(knobs.launcher_environment())
_LONG = ("tests/multirank/", "test_demo", "test_golden_mutants", "test_notebooks")
_SUITE = Path(__file__).parent / "multirank" / "test_suite.py"


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """For ``-n auto``: one more than there are cores, since ranks and lost ranks wait a lot."""
    return (os.cpu_count() or 1) + 1


def pytest_report_header(config: pytest.Config) -> str | None:
    if _LAUNCH.size == 1:
        return None
    gpus = _gpu_count() > 1
    where = "cuda over nccl" if gpus else "cpu over gloo"
    return f"{_LAUNCH.size} ranks of {_LAUNCH.launcher} run the multi-rank suite, on {where}"


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    other = collection_path.name.startswith("test_") and collection_path != _SUITE
    return True if _LAUNCH.size > 1 and collection_path.suffix == ".py" and other else None


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--update-golden",
        action="store_true",
        default=False,
        help="rewrite the files in tests/golden instead of comparing with them",
    )
    parser.addoption(
        "--all-launches",
        action="store_true",
        default=False,
        help="start ranks also where another launcher, or a sample of cases, has shown the rest",
    )
    parser.addoption(
        "--all-mutants",
        action="store_true",
        default=False,
        help="run every mutant of the golden kernels, and not a third of them",
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    # The longest first, so that workers end together.
    items.sort(key=lambda item: not any(part in item.nodeid for part in _LONG))
    every = config.getoption("--all-launches")
    for item in items:
        if item.get_closest_marker("launch_again") and not every:
            item.add_marker(pytest.mark.skip(reason="one launch more: --all-launches"))
        needed = _gpus_needed(item)
        # Torch takes seconds to import, so it is asked only when a collected test needs a GPU.
        if needed and (found := _gpu_count()) < needed:
            item.add_marker(pytest.mark.skip(reason=f"needs {needed} CUDA GPU(s), found {found}"))


def _gpus_needed(item: pytest.Item) -> int:
    multi = item.get_closest_marker("multigpu")
    if multi is not None and multi.args:
        if len(multi.args) != 1 or not isinstance(multi.args[0], int) or multi.args[0] < 1:
            raise pytest.UsageError(
                f"{item.nodeid}: multigpu takes the number of GPUs, as in multigpu(2)"
            )
        return multi.args[0]
    return 1 if item.get_closest_marker("gpu") is not None else 0


def _gpu_count() -> int:
    torch = import_module("torch")
    return torch.cuda.device_count() if torch.cuda.is_available() else 0


@pytest.fixture
def update_golden(request: pytest.FixtureRequest) -> bool:
    """Whether golden files are to be rewritten."""
    return bool(request.config.getoption("--update-golden"))


@pytest.fixture(scope="session", autouse=True)
def cache_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One cache folder for a test run: tests, those of other workers and those of ranks, share
    compiled kernels but never read the user's.
    """
    given = Path(os.environ.get("XDG_CACHE_HOME", ""))
    if given.name.startswith("cache_home") and given.is_dir():
        return given  # of the test that started this one as a rank
    home = tmp_path_factory.getbasetemp() / "cache_home"
    if "PYTEST_XDIST_WORKER" in os.environ:
        home = home.parent.parent / "cache_home"
    home.mkdir(mode=0o700, exist_ok=True)
    os.environ["XDG_CACHE_HOME"] = str(home)
    return home
