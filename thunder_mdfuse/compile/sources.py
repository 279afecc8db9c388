"""Where the C++ and CUDA sources are: beside a checkout, or inside an installed wheel.

Out: paths and texts of the device headers that generated kernels include.
"""

from functools import cache
from pathlib import Path

from thunder_mdfuse.errors import CompileError

_PACKAGE = Path(__file__).resolve().parent.parent


@cache
def csrc_root() -> Path:
    """The folder that holds ``device`` and ``emulator``."""
    candidates = (_PACKAGE.parent / "csrc", _PACKAGE / "_csrc")
    for folder in candidates:
        if (folder / "device" / "mdfuse.cuh").is_file():
            return folder
    places = " or ".join(str(folder) for folder in candidates)
    raise CompileError(
        f"the device headers were not found: device/mdfuse.cuh has to be in {places}. "
        "Reinstall thunder_mdfuse, or run it from a complete source checkout."
    )


def _texts(folder: Path, *patterns: str) -> dict[str, str]:
    files = sorted(path for pattern in patterns for path in folder.glob(pattern))
    return {path.name: path.read_text(encoding="ascii") for path in files}


@cache
def _device_headers() -> tuple[tuple[str, str], ...]:
    return tuple(_texts(csrc_root() / "device", "*.cuh").items())


def device_headers() -> dict[str, str]:
    """The name and text of every header that a generated kernel may include, for NVRTC."""
    return dict(_device_headers())


@cache
def _emulator_sources() -> tuple[tuple[str, str], ...]:
    return tuple(_texts(csrc_root() / "emulator", "*.hpp", "*.cpp").items())


def emulator_sources() -> dict[str, str]:
    """The name and text of every file of the emulator."""
    return dict(_emulator_sources())
