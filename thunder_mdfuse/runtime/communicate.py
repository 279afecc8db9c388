"""Collective nodes of a local fusion on the process groups of one DeviceMesh."""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch.distributed.device_mesh import DeviceMesh

from thunder_mdfuse.comm import collectives
from thunder_mdfuse.comm.pending import Pending
from thunder_mdfuse.comm.team import Team, mesh_team
from thunder_mdfuse.comm.wire import Traffic, with_size
from thunder_mdfuse.ir.graph import Node
from thunder_mdfuse.runtime.strided import start_strided_gather


class Terms(NamedTuple):
    """How a collective stands in its program. ``mine``: nobody else needs the operand, so that it
    may become the result. ``overlaps``: something runs before its result is waited for.
    """

    mine: bool = False
    overlaps: bool = True


LATER = Terms()
Start = Callable[[torch.Tensor, Team, Any, Traffic, Terms], Pending]


def _broadcast(x: torch.Tensor, team: Team, a: Any, traffic: Traffic, terms: Terms) -> Pending:
    """Others than the source may hold less or nothing, and bring what they get the room for."""
    if team.position != a.source:
        x = x.new_empty(with_size(x.shape, a.dim, a.size))
    return collectives.start_broadcast(x, team, a.source, traffic=traffic)


def _permute_ranks(x: torch.Tensor, team: Team, a: Any, traffic: Traffic, terms: Terms) -> Pending:
    pairs = [(p, team.size - 1 - p) for p in range(team.size)]
    return collectives.start_permute(x, team, pairs, traffic=traffic)


# One row per op that starts a collective.
STARTS: dict[str, Start] = {
    "all_gather": lambda x, team, a, traffic, terms: (
        collectives.start_all_gather(x, team, a.dim, a.size, traffic=traffic)
        if a.split == 1
        else start_strided_gather(x, team, a.dim, a.size, a.split, traffic)
    ),
    "all_reduce": lambda x, team, a, traffic, terms: collectives.start_all_reduce(
        x, team, a.op, in_place=terms.mine, overlaps=terms.overlaps, traffic=traffic
    ),
    "reduce_scatter": lambda x, team, a, traffic, terms: collectives.start_reduce_scatter(
        x, team, a.dim, a.op, traffic=traffic
    ),
    "all_to_all": lambda x, team, a, traffic, terms: collectives.start_all_to_all(
        x, team, a.scatter_dim, a.scatter_size, a.gather_dim, a.gather_size, traffic=traffic
    ),
    "broadcast": _broadcast,
    "permute_ranks": _permute_ranks,
}


class Communicate:
    """Starts and waits for collectives. ``traffic`` counts the bytes that this rank sends."""

    def __init__(self, mesh: DeviceMesh) -> None:
        self.mesh = mesh
        self.traffic = Traffic()
        self._teams: dict[str, Team] = {}

    def team(self, name: str) -> Team:
        """The team along mesh axis ``name``."""
        found = self._teams.get(name)
        if found is None:
            found = self._teams[name] = mesh_team(self.mesh, name)
        return found

    def start(self, node: Node, tensor: torch.Tensor, attrs: Any, terms: Terms = LATER) -> Pending:
        """Start the collective of ``node``, whose attributes with evaluated sizes are ``attrs``."""
        return STARTS[node.op](tensor, self.team(attrs.team), attrs, self.traffic, terms)

    def wait(self, pending: Pending) -> torch.Tensor:
        """The result of a started collective. Raises ``CommError`` when it is not there in time."""
        return pending.wait()
