"""Ranks from the variables of each launcher."""

import pytest

from thunder_mdfuse.comm.launchers import ALONE, Launch, read_launch
from thunder_mdfuse.errors import CommError

OPEN_MPI = {
    "OMPI_COMM_WORLD_RANK": "3",
    "OMPI_COMM_WORLD_SIZE": "4",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
    "PMIX_NAMESPACE": "prterun-a-17@1",
}
SLURM = {
    "SLURM_PROCID": "6",
    "SLURM_NTASKS": "7",
    "SLURM_STEP_NUM_TASKS": "7",
    "SLURM_LOCALID": "0",
    "SLURM_NODEID": "3",
    "SLURM_STEP_TASKS_PER_NODE": "2(x3),1",
    "SLURM_STEP_ID": "0",
    "SLURM_JOB_ID": "99",
}
TORCHRUN = {
    "RANK": "1",
    "WORLD_SIZE": "2",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "2",
    "TORCHELASTIC_RUN_ID": "x",
}
MPICH = {"PMI_RANK": "0", "PMI_SIZE": "2", "MPI_LOCALRANKID": "0", "MPI_LOCALNRANKS": "2"}


def place(launch: Launch) -> tuple[str, int, int, int | None, int | None]:
    return (launch.launcher, launch.rank, launch.size, launch.local_rank, launch.local_size)


@pytest.mark.parametrize(
    ("env", "wanted"),
    [
        ({}, ("none", 0, 1, 0, 1)),
        (OPEN_MPI, ("Open MPI", 3, 4, 1, 2)),
        (SLURM, ("Slurm", 6, 7, 0, 1)),
        (TORCHRUN, ("torchrun", 1, 2, 1, 2)),
        (MPICH, ("MPICH", 0, 2, 0, 2)),
        # mpirun inside a Slurm job: Slurm's variables describe mpirun's daemon.
        ({**SLURM, **OPEN_MPI}, ("Open MPI", 3, 4, 1, 2)),
        ({**SLURM, **MPICH}, ("MPICH", 0, 2, 0, 2)),
        # torchrun inside either.
        ({**SLURM, **OPEN_MPI, **TORCHRUN}, ("torchrun", 1, 2, 1, 2)),
        # srun --mpi=pmi2 sets some of MPICH's variables.
        ({**SLURM, "PMI_RANK": "6", "PMI_SIZE": "7"}, ("Slurm", 6, 7, 0, 1)),
        # Set by hand: local ranks are not known.
        ({"RANK": "0", "WORLD_SIZE": "2"}, ("torchrun", 0, 2, None, None)),
        # A batch script's own shell is not a rank.
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "8", "SLURM_JOB_ID": "9"}, ("none", 0, 1, 0, 1)),
        # A step of one task in a job of many.
        (
            {
                "SLURM_PROCID": "0",
                "SLURM_NTASKS": "8",
                "SLURM_STEP_NUM_TASKS": "1",
                "SLURM_STEPID": "2",
                "SLURM_LOCALID": "0",
                "SLURM_STEP_TASKS_PER_NODE": "1",
            },
            ("Slurm", 0, 1, 0, 1),
        ),
    ],
)
def test_place(env: dict[str, str], wanted: tuple[str, int, int, int | None, int | None]) -> None:
    assert place(read_launch(env)) == wanted


def test_alone_is_no_launch() -> None:
    assert read_launch({}) is ALONE
    assert read_launch({"RANK": "0", "WORLD_SIZE": "1"}) is not ALONE


def test_one_host() -> None:
    assert read_launch(TORCHRUN).on_one_host
    assert not read_launch(OPEN_MPI).on_one_host
    assert not read_launch({"RANK": "0", "WORLD_SIZE": "2"}).on_one_host


def test_jobs_have_different_texts() -> None:
    assert read_launch(OPEN_MPI).job == "prterun-a-17@1"
    assert read_launch(SLURM).job == "99.0"
    assert read_launch({**SLURM, "SLURM_STEP_ID": "1"}).job == "99.1"


@pytest.mark.parametrize(
    ("env", "text"),
    [
        ({"RANK": "0"}, "WORLD_SIZE, found None"),
        ({"OMPI_COMM_WORLD_RANK": "x", "OMPI_COMM_WORLD_SIZE": "2"}, "RANK, found 'x'"),
        ({"RANK": "2", "WORLD_SIZE": "2"}, "rank 2 of 2"),
        ({**TORCHRUN, "LOCAL_WORLD_SIZE": "3"}, "local rank 1 of 3"),
        ({**TORCHRUN, "LOCAL_RANK": "2"}, "local rank 2 of 2"),
    ],
)
def test_incomplete_or_contradictory(env: dict[str, str], text: str) -> None:
    with pytest.raises(CommError, match=text):
        read_launch(env)


def test_unknown_form_of_tasks_per_node_leaves_local_size_open() -> None:
    assert read_launch({**SLURM, "SLURM_STEP_TASKS_PER_NODE": "?"}).local_size is None
