"""Which device a rank takes, who shares its host, and when ranks cannot meet."""

import os
import socket
import threading

import pytest
import torch
import torch.distributed as dist

from thunder_mdfuse.comm import communicator
from thunder_mdfuse.comm.launchers import Launch
from thunder_mdfuse.comm.rendezvous import Rendezvous, rendezvous, roster
from thunder_mdfuse.errors import CommError


@pytest.fixture
def chosen(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    devices: list[int] = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_device", devices.append)
    return devices


def test_a_rank_takes_the_gpu_of_its_local_rank(chosen: list[int]) -> None:
    communicator._choose_device(1, 2)
    assert chosen == [1]


def test_a_launcher_may_show_each_rank_one_gpu(
    chosen: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    communicator._choose_device(3, 4)
    assert chosen == [0]


def test_more_ranks_than_gpus_are_refused(chosen: list[int]) -> None:
    with pytest.raises(CommError, match="local rank 2 of 3 has no GPU of its own: 2 are visible"):
        communicator._choose_device(2, 3)
    assert chosen == []


def test_without_a_gpu_nothing_is_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    communicator._choose_device(7, 8)


def test_local_ranks_are_counted_by_host() -> None:
    hosts = ["a", "b", "a", "b", "b"]
    found = [communicator._count_host(hosts, rank) for rank in range(5)]
    assert found == [(0, 2), (0, 3), (1, 2), (1, 3), (2, 3)]


@pytest.mark.parametrize("local", [(0, 2), (None, None)])
def test_several_hosts_need_an_address(local: tuple[int | None, int | None]) -> None:
    launch = Launch("Slurm", 0, 4, *local)
    with pytest.raises(CommError, match="MASTER_ADDR is not set; set MASTER_ADDR to the host name"):
        rendezvous(launch, {}, 1.0, 0)


@pytest.mark.parametrize(
    "env", [{"MASTER_ADDR": "here"}, {"MASTER_PORT": "1"}, {"MASTER_ADDR": "a", "MASTER_PORT": "b"}]
)
def test_half_an_address_is_refused(env: dict[str, str]) -> None:
    with pytest.raises(CommError, match="needed both, a host and a port number"):
        rendezvous(Launch("Open MPI", 0, 2, 0, 2), env, 1.0, 0)


def test_a_taken_port_is_named() -> None:
    with socket.create_server(("", 0)) as taken:
        port = taken.getsockname()[1]
        env = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        with pytest.raises(CommError, match=f"rank 0 cannot serve the store .* 127.0.0.1:{port}"):
            rendezvous(Launch("Open MPI", 0, 2, 0, 2), env, 1.0, 0)


def test_alone_there_is_a_store_without_file_or_port() -> None:
    alone = rendezvous(Launch("none", 0, 1, 0, 1), {}, 1.0, 0)
    assert roster(alone.store, 0, 1, 1.0) == [socket.gethostname()]
    alone.leave()
    with pytest.raises(CommError, match=r"rank\(s\) 1, 2 of 3 did not come within 0.1 s"):
        roster(alone.store, 0, 3, 0.1)


def test_nobody_waits_for_a_group_that_does_not_end(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As NCCL's does not while a CUDA graph has collectives in it."""
    released, left = threading.Event(), []
    monkeypatch.setattr(dist, "is_initialized", lambda: True)
    monkeypatch.setattr(dist, "get_rank", lambda: 3)
    monkeypatch.setattr(dist, "destroy_process_group", released.wait)
    monkeypatch.setattr(communicator, "LEAVE_SECONDS", 0.1)
    made = communicator.Communicator()
    made._made = Rendezvous(dist.HashStore(), lambda: left.append(True))
    communicator._leave(made, os.getpid())
    released.set()
    assert left == [True]
    assert "rank 3 leaves before its process group has ended" in capsys.readouterr().err
