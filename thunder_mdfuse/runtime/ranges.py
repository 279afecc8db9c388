"""Names of regions in profiles, at no cost while nobody profiles.

In: the name of a region and its run. ``torch.profiler``, and NVTX by way of
``torch.autograd.profiler.emit_nvtx``, are asked at each call, which takes 0.1 us. A profiler that
torch knows nothing of, such as ``nsys``, is told by ``MDFUSE_NVTX=1``, which is read when a region
is made.
"""

from collections.abc import Callable
from typing import TypeVar

import torch

from thunder_mdfuse import knobs

T = TypeVar("T")
_profiled: Callable[[], bool] = torch._C._autograd._profiler_enabled


class Ranges:
    """The range ``mdfuse::<name>`` around each run of a region."""

    __slots__ = ("_nvtx", "title")

    def __init__(self, name: str) -> None:
        self.title = f"mdfuse::{name}"
        self._nvtx = knobs.flag("MDFUSE_NVTX")

    def wanted(self) -> bool:
        """Whether somebody looks."""
        return self._nvtx or _profiled()

    def around(self, run: Callable[..., T], *args: object) -> T:
        """``run(*args)``, inside of the range."""
        if not self._nvtx:
            with torch.autograd.profiler.record_function(self.title):
                return run(*args)
        torch.cuda.nvtx.range_push(self.title)  # type: ignore[no-untyped-call]
        try:
            return run(*args)
        finally:
            torch.cuda.nvtx.range_pop()  # type: ignore[no-untyped-call]
