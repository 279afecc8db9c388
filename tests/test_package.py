"""What is built from this tree holds all that it needs, and works away from the tree."""

import os
import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from importlib.metadata import version
from pathlib import Path

import pytest
from test_demo import check_shown

import thunder_mdfuse
from thunder_mdfuse import knobs

ROOT = Path(__file__).parent.parent
PACKED = ("pyproject.toml", "setup.py", "MANIFEST.in", "README.md", "CHANGELOG.md")
FOLDERS = ("thunder_mdfuse", "csrc", "tests", "notebooks", "benchmarks", ".ci")
NOT_PACKED = re.compile(r"__pycache__|\.pyc$|\.egg-info$|^\.venv|\.ipynb_checkpoints")


def run(command: list[str], folder: Path, timeout: float = 300, **env: str) -> str:
    """Everything that the command wrote; it must succeed."""
    done = subprocess.run(
        command,
        cwd=folder,
        env=knobs.child_environment(**env),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        stdin=subprocess.DEVNULL,
        text=True,
        timeout=timeout,
    )
    assert done.returncode == 0, f"exit {done.returncode} from {' '.join(command)}:\n{done.stdout}"
    return done.stdout


def sources(folder: str) -> dict[str, bytes]:
    """The files of a folder of this tree that are sources."""
    files = (p for p in (ROOT / folder).rglob("*") if p.is_file())
    found = {str(p.relative_to(ROOT)): p.read_bytes() for p in files}
    return {name: text for name, text in found.items() if not NOT_PACKED.search(name)}


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The unpacked source distribution, built from a copy of this tree."""
    tree, built = tmp_path_factory.mktemp("tree"), tmp_path_factory.mktemp("built")
    files = {name: (ROOT / name).read_bytes() for name in PACKED}
    for folder in FOLDERS:
        files |= sources(folder)
    for name, text in files.items():
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        (tree / name).write_bytes(text)
    # What must not be packed although it lies there.
    (tree / "csrc" / "__pycache__").mkdir()
    (tree / "csrc" / "__pycache__" / "left.pyc").write_bytes(b"")
    hook = f"from setuptools.build_meta import build_sdist; build_sdist({str(built)!r})"
    run([sys.executable, "-c", hook], tree)
    (archive,) = built.glob("*.tar.gz")
    unpacked = tmp_path_factory.mktemp("sdist")
    with tarfile.open(archive) as packed:
        packed.extractall(unpacked, filter="data")
    (folder,) = unpacked.iterdir()
    return folder


@pytest.fixture(scope="module")
def wheel(sdist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from the source distribution alone."""
    folder = tmp_path_factory.mktemp("wheel")
    pip = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--quiet", "-w", str(folder)]
    # The test extra brings a setuptools that can build; where it is older, pip fetches one.
    if int(version("setuptools").split(".")[0]) >= 77:
        pip.append("--no-build-isolation")
    run([*pip, str(sdist)], folder)
    (found,) = folder.glob("*.whl")
    return found


def test_the_sdist_is_complete_and_clean(sdist: Path) -> None:
    found = {str(p.relative_to(sdist)) for p in sdist.rglob("*") if p.is_file()}
    expected = set(PACKED)
    for folder in FOLDERS:
        expected |= sources(folder).keys()
    assert expected <= found, expected - found
    assert not [name for name in found if "__pycache__" in name or name.endswith(".pyc")]


def test_the_wheel_holds_the_package_and_its_sources(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as packed:
        found = {name: packed.read(name) for name in packed.namelist()}
    expected = sources("thunder_mdfuse")
    assert "thunder_mdfuse/py.typed" in expected
    for name, text in sources("csrc").items():
        expected[f"thunder_mdfuse/_csrc/{name.removeprefix('csrc/')}"] = text
    info = {name for name in found if ".dist-info/" in name}
    assert {name: found[name] for name in found.keys() - info} == expected
    (metadata,) = (found[name].decode() for name in info if name.endswith("/METADATA"))
    assert f"Version: {thunder_mdfuse.__version__}" in metadata
    assert "Requires-Dist: lightning-thunder==0.2.6" in metadata


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    site = tmp_path_factory.mktemp("site")
    pip = [sys.executable, "-m", "pip", "install", "--no-deps", "--quiet"]
    run([*pip, "--target", str(site), str(wheel)], site)
    return site


def test_an_installed_wheel_finds_its_own_sources(installed: Path, tmp_path: Path) -> None:
    script = "from thunder_mdfuse.compile.sources import csrc_root; print(csrc_root())"
    shown = run([sys.executable, "-c", script], tmp_path, PYTHONPATH=str(installed))
    assert Path(shown.strip()) == installed / "thunder_mdfuse" / "_csrc"


def test_an_installed_wheel_runs_the_demo_from_another_folder(
    installed: Path, tmp_path: Path
) -> None:
    """With two ranks that it starts itself, and kernels compiled from the wheel's own sources."""
    demo = [sys.executable, "-m", "thunder_mdfuse.demo", "--device", "cpu", "--tokens", "2"]
    env = {name: "" for name in os.environ if name.startswith("MDFUSE_")}
    shown = run(
        demo,
        tmp_path,
        **{**env, "PYTHONPATH": str(installed), "MDFUSE_BACKEND": "emulate"},
        OMP_NUM_THREADS="1",
    )
    check_shown(shown, "emulate")


def test_versions_are_said_once_and_tools_exactly() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["version"] == thunder_mdfuse.__version__
    assert project["requires-python"] == ">=3.11,<3.14"
    extras = project["optional-dependencies"]
    assert {"demo", "models", "notebooks", "test", "upstream"} == set(extras)
    pinned = {r.split("==")[0] for r in extras["test"] if re.fullmatch(r"[\w-]+==[\d.]+", r)}
    assert {"ruff", "mypy"} <= pinned
