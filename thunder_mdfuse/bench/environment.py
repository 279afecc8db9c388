"""What a record of measurements says of where they were taken."""

import platform
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, packages_distributions, version

import torch


def environment() -> dict[str, str]:
    """The date, the GPU and the versions of what takes part."""

    def installed(name: str) -> str:
        try:
            return version(name)
        except PackageNotFoundError:
            return "not installed"

    packages = ("lightning-thunder", "cuda-core", "liger-kernel", "quack-kernels")
    return {
        "date": datetime.now(UTC).date().isoformat(),
        "gpu": torch.cuda.get_device_name(0) if torch.cuda.is_available() else "none",
        "python": platform.python_version(),
        "torch": torch.__version__,
        "cuda": str(torch.version.cuda),
        **{p: installed(p) for p in packages},
        "nvfuser": _nvfuser(),
    }


def _nvfuser() -> str:
    """nvFuser's package, whose name says for which CUDA and torch it is, and its version."""
    found = sorted({*packages_distributions().get("nvfuser_direct", ())})
    return ", ".join(f"{name} {version(name)}" for name in found) or "not installed"
