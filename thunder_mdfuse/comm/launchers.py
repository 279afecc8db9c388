"""What torchrun, mpirun, Slurm, or nobody says about this process: its rank among how many.

In: the variables that launchers set (``knobs.launcher_environment``). Out: a ``Launch``. What a
launcher does not say is None, and found out later from the ranks' host names.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from thunder_mdfuse.errors import CommError


@dataclass(frozen=True)
class Launch:
    """This process's place in the job. ``job`` is a text that no other job of the host has."""

    launcher: str
    rank: int
    size: int
    local_rank: int | None
    local_size: int | None
    job: str = ""
    rank_variable: str = ""

    @property
    def on_one_host(self) -> bool:
        """Whether the launcher says that all ranks are on this host."""
        return self.local_size == self.size


ALONE = Launch("none", 0, 1, 0, 1)


@dataclass(frozen=True)
class _Names:
    """The variables in which one launcher says rank, size, local rank and local size."""

    launcher: str
    rank: str
    size: str
    local_rank: str
    local_size: str
    job: tuple[str, ...]


# In this order: torchrun may run inside any of the others, and an mpirun inside a Slurm job sees
# Slurm's variables too, which describe mpirun's own daemons there.
_LAUNCHERS = (
    _Names(
        "torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", ("TORCHELASTIC_RUN_ID",)
    ),
    _Names(
        "Open MPI",
        "OMPI_COMM_WORLD_RANK",
        "OMPI_COMM_WORLD_SIZE",
        "OMPI_COMM_WORLD_LOCAL_RANK",
        "OMPI_COMM_WORLD_LOCAL_SIZE",
        ("PMIX_NAMESPACE",),
    ),
    _Names("MPICH", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS", ("PMI_ID",)),
)


def read_launch(env: Mapping[str, str]) -> Launch:
    """This process's place by the variables ``env``. ``CommError`` when they are incomplete."""
    for names in _LAUNCHERS:
        if names.rank not in env:
            continue
        if names.launcher == "MPICH" and names.local_rank not in env and _in_step(env):
            break  # srun --mpi=pmi2 sets PMI_RANK, and Slurm's own variables say more
        return _checked(
            Launch(
                names.launcher,
                _number(env, names.rank, names.launcher),
                _number(env, names.size, names.launcher),
                _number(env, names.local_rank, names.launcher) if names.local_rank in env else None,
                _number(env, names.local_size, names.launcher) if names.local_size in env else None,
                " ".join(env[name] for name in names.job if name in env and name != "PMI_ID"),
                names.rank,
            )
        )
    return _checked(_slurm(env)) if _in_step(env) else ALONE


def _in_step(env: Mapping[str, str]) -> bool:
    # A batch script has SLURM_PROCID=0 and the job's SLURM_NTASKS too; only srun makes a step.
    step = env.get("SLURM_STEP_ID", env.get("SLURM_STEPID"))
    return "SLURM_PROCID" in env and step is not None


def _slurm(env: Mapping[str, str]) -> Launch:
    size_name = "SLURM_STEP_NUM_TASKS" if "SLURM_STEP_NUM_TASKS" in env else "SLURM_NTASKS"
    node = _number(env, "SLURM_NODEID", "Slurm") if "SLURM_NODEID" in env else 0
    tasks = env.get("SLURM_STEP_TASKS_PER_NODE", env.get("SLURM_TASKS_PER_NODE", ""))
    per_node = _tasks_per_node(tasks)
    step = env.get("SLURM_STEP_ID", env.get("SLURM_STEPID", ""))
    return Launch(
        "Slurm",
        _number(env, "SLURM_PROCID", "Slurm"),
        _number(env, size_name, "Slurm"),
        _number(env, "SLURM_LOCALID", "Slurm") if "SLURM_LOCALID" in env else None,
        per_node[node] if node < len(per_node) else None,
        f"{env.get('SLURM_JOB_ID', '')}.{step}",
        "SLURM_PROCID",
    )


def _tasks_per_node(text: str) -> list[int]:
    """Slurm writes runs of nodes: ``2(x3),1`` is ``[2, 2, 2, 1]``."""
    counts: list[int] = []
    for part in text.split(","):
        found = re.fullmatch(r"(\d+)(?:\(x(\d+)\))?", part.strip())
        if found is None:
            return []
        counts += [int(found[1])] * int(found[2] or 1)
    return counts


def _number(env: Mapping[str, str], name: str, launcher: str) -> int:
    text = env.get(name)
    if text is None or not text.isdecimal():
        raise CommError(
            f"{launcher}'s environment is incomplete: needed a number in {name}, found {text!r}; "
            "start all ranks with one launcher, or unset its variables to run alone"
        )
    return int(text)


def _checked(launch: Launch) -> Launch:
    local_fits = (
        launch.local_rank is None
        or launch.local_size is None
        or launch.local_rank < launch.local_size <= launch.size
    )
    if launch.size < 1 or launch.rank >= launch.size or not local_fits:
        raise CommError(
            f"{launch.launcher}'s environment contradicts itself: rank {launch.rank} of "
            f"{launch.size}, local rank {launch.local_rank} of {launch.local_size} "
            f"({launch.rank_variable} and its siblings); start all ranks with one launcher"
        )
    return launch
