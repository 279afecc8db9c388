"""The watch over NCCL's collectives: what it reads, and when it speaks; the counts are given.

That it names the right ranks is shown by three of them in tests/multirank/faults_ranks.py.
"""

from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist

from thunder_mdfuse.comm.team import group_team
from thunder_mdfuse.comm.watch import Progress, Watch, nccl_progress, read_progress

# Recorded on two H200s with torch 2.11, of a rank whose peer was killed.
TRACE = b"""{"comm_lib_version":"2.28.9","nccl_comm_state":{},"pg_config":{"0":{"desc":"default_pg",
"name":"0","ranks":"[0, 1]"},"1":{"desc":"undefined","name":"1","ranks":"[0, 1]"}},"pg_status":{"0":
{"last_completed_collective":"2","last_enqueued_collective":"2","last_started_collective":"-1"},"1":
{"last_completed_collective":"2","last_enqueued_collective":"4","last_started_collective":"-1"}},
"version":"2.10"}"""


@pytest.fixture(autouse=True)
def alone() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    if dist.is_initialized():
        dist.destroy_process_group()


class Scene:
    """A watch over the default group, whose counts and clock the test sets."""

    def __init__(self) -> None:
        self.now, self.begun, self.done = 1e6, 0, 0
        self.said: list[str] = []
        group = dist.group.WORLD
        assert group is not None
        name = group.group_name
        self.watch = Watch(
            lambda: {name: Progress(self.begun, self.done)}, self.said.append, lambda: self.now
        )
        self.team = group_team(group, "tp")
        assert self.watch.add(self.team, torch.device("cpu"))
        assert not self.watch.add(self.team, torch.device("cpu"))

    def after(self, seconds: float, begun: int, done: int) -> int:
        """How often the watch has spoken."""
        self.now, self.begun, self.done = self.now + seconds, begun, done
        self.watch.look()
        return len(self.said)


def test_the_counts_are_those_of_the_flight_recorder() -> None:
    assert read_progress(TRACE) == {"0": Progress(2, 2), "1": Progress(4, 2)}
    assert read_progress(b'{"pg_status":{}}') == {}
    if dist.is_nccl_available():
        assert nccl_progress() == {}


def test_it_speaks_once_of_what_stands_still() -> None:
    scene = Scene()
    assert scene.after(1, 1, 0) == 0
    assert scene.after(29, 5, 0) == 0
    assert scene.after(2, 5, 0) == 1
    assert "rank 0 has waited 31 s for a collective over tp (ranks 0)" in scene.said[0]
    assert "all ranks have begun it" in scene.said[0]
    assert scene.after(100, 5, 0) == 1
    # It went on after all, and stands still again.
    assert scene.after(1, 5, 4) == 1
    assert scene.after(31, 5, 4) == 2


def test_it_is_silent_while_all_goes_on() -> None:
    scene = Scene()
    assert scene.after(1, 1, -1) == 0  # the very first
    for n in range(1, 20):
        assert scene.after(20, n, n - 1) == 0
    assert scene.after(1, 19, 19) == 0
    assert scene.after(1000, 19, 19) == 0  # nothing is waited for
    assert scene.after(1, 20, 19) == 0


def test_the_timeout_is_the_users_or_less_where_the_group_has_less(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("MDFUSE_COMM_TIMEOUT", "5")
    scene = Scene()
    assert (scene.after(1, 1, 0), scene.after(5, 1, 0)) == (0, 1)
    monkeypatch.setenv("MDFUSE_COMM_TIMEOUT", "100000")
    scene = Scene()  # gloo's own timeout is 30 minutes
    assert (scene.after(1, 1, 0), scene.after(1200, 1, 0), scene.after(70, 1, 0)) == (0, 0, 1)


def test_a_destroyed_group_is_forgotten() -> None:
    scene = Scene()
    assert scene.after(1, 1, 0) == 0
    dist.destroy_process_group()
    assert scene.after(31, 1, 0) == 0
    assert not scene.watch._groups
