"""The recorded targets and the occupancy rule."""

import dataclasses

import pytest

from thunder_mdfuse.errors import ScheduleError
from thunder_mdfuse.schedule.target import A100, B200, H200, RECORDED, Target

ALL = list(RECORDED.values())


@pytest.mark.parametrize("target", ALL, ids=lambda t: t.arch)
def test_a_recorded_target_is_consistent(target: Target) -> None:
    assert RECORDED[target.name] is target
    assert target.shared_per_sm - target.shared_per_block == 1024
    assert target.max_threads_per_sm % target.max_threads_per_block == 0
    assert (target.max_cluster > 1) == (target.capability >= 90)
    assert 1e12 < target.copy_bytes_per_s < 1e13


def test_the_recorded_architectures() -> None:
    assert [t.arch for t in (H200, A100, B200)] == ["sm_90", "sm_80", "sm_100"]
    assert [t.capability for t in (H200, A100, B200)] == [90, 80, 100]
    assert dataclasses.replace(H200, arch="sm_90a").capability == 90
    assert (H200.shared_per_block, A100.shared_per_block) == (232448, 166912)


def test_a_target_is_frozen_and_equal_by_value() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        H200.sm_count = 1  # type: ignore[misc]
    assert dataclasses.replace(H200) == H200
    assert hash(dataclasses.replace(H200)) == hash(H200)
    assert dataclasses.replace(H200, sm_count=131) != H200


@pytest.mark.parametrize(
    ("field", "value"),
    [("arch", "90"), ("arch", "compute_90"), ("arch", "sm_"), ("sm_count", 0), ("l2_bytes", -1)],
)
def test_a_target_that_cannot_be_is_refused(field: str, value: str | int) -> None:
    with pytest.raises(ScheduleError, match=field):
        dataclasses.replace(H200, **{field: value})


@pytest.mark.parametrize(
    ("threads", "registers", "shared", "blocks"),
    [
        (1024, 32, 0, 2),  # by threads
        (256, 32, 0, 8),
        (256, 33, 0, 6),  # registers come in eights: 33 count as 40, 65536 // (40 * 256)
        (256, 64, 0, 4),
        (1024, 64, 0, 1),
        (1024, 65, 0, 0),
        (32, 16, 0, 32),  # by the limit on blocks
        (33, 16, 0, 32),  # a warp more: 2048 // 64
        (128, 32, 227 * 1024, 1),
        (128, 32, 113 * 1024, 2),  # with 1 KiB reserved for each, exactly 228 KiB
        (128, 32, 113 * 1024 + 1, 1),
        (128, 32, 227 * 1024 + 1, 0),
        (1025, 16, 0, 0),
        (0, 16, 0, 0),
    ],
)
def test_blocks_per_sm(threads: int, registers: int, shared: int, blocks: int) -> None:
    assert H200.blocks_per_sm(threads, registers, shared) == blocks
