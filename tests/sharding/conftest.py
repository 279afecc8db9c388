"""Lets tests import ``sharding.simulated``: in importlib mode pytest puts no folder on sys.path.

Eager DTensor's placements come from a fake process group, which no other module may find.
"""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch.distributed as dist

_TESTS = str(Path(__file__).resolve().parents[1])
if _TESTS not in sys.path:
    sys.path.append(_TESTS)


@pytest.fixture(autouse=True, scope="module")
def _no_group_is_left() -> Iterator[None]:
    yield
    if dist.is_initialized():
        from sharding import eager  # noqa: PLC0415 - after the path is set

        dist.destroy_process_group()
        eager.device_mesh.cache_clear()
