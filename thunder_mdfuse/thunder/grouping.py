"""Which symbols of a trace go together, and in which order the groups run.

Grouping follows data: a symbol joins the region of what it reads, or else the latest open region,
when no path leaves that region and comes back. A region is on one device, forward or backward, and
has the DTensors of one mesh at most; plain tensors may be beside them.
"""

import heapq
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from thunder.core.proxies import NumberProxy, TensorProxy
from thunder.core.symbol import BoundSymbol, BoundSymbolTag
from thunder.torch.experimental.dtensor_proxy import DTensorProxy

from thunder_mdfuse.comm.team import mesh_digest
from thunder_mdfuse.thunder.dtensor import parts_of
from thunder_mdfuse.thunder.effects import draws, edges_of


@dataclass(frozen=True)
class Kind:
    """What a region has of the symbols in it.

    ``mesh``: the digest of its DTensors' mesh; None with plain tensors only. ``mixes``: whether
    plain tensors and DTensors may be in it together.
    """

    device: str
    backward: bool
    mesh: str | None
    mixes: bool

    def with_(self, other: "Kind") -> "Kind | None":
        """The kind of a region of both; None where there is none."""
        if (self.device, self.backward) != (other.device, other.backward):
            return None
        mixes = self.mixes and other.mixes
        if self.mesh == other.mesh or (mixes and None in (self.mesh, other.mesh)):
            return replace(self, mesh=self.mesh or other.mesh, mixes=mixes)
        return None


def kind_of(bsym: BoundSymbol) -> Kind | None:
    """The kind of a symbol; None for symbols that make numbers alone, which the host computes."""
    if not any(isinstance(p, TensorProxy) for p in bsym.flat_proxy_outs):
        return None
    tensors = [
        p for p in (*bsym.flat_proxy_args, *bsym.flat_proxy_outs) if isinstance(p, TensorProxy)
    ]
    backward = BoundSymbolTag.BACKWARD in bsym.tags
    mixes = all(map(_is_alike, tensors))
    on_mesh = [p for p in tensors if isinstance(p, DTensorProxy)]
    if on_mesh:
        mesh = str(mesh_digest(on_mesh[0].spec._o.mesh))
        return Kind(str(on_mesh[0].device.device_str()), backward, mesh, mixes)
    devices = sorted({str(p.device.device_str()) for p in tensors}, key=lambda d: d == "cpu")
    return Kind(devices[0], backward, None, mixes and not draws(bsym))


def _is_alike(p: TensorProxy) -> bool:
    """Whether a tensor's local part has the same sizes, all known, on every rank.

    Thunder knows the plain tensors that are made of it by the sizes on this rank.
    """
    if any(isinstance(size, NumberProxy) for size in p._shape):
        return False
    if not isinstance(p, DTensorProxy):
        return True
    return all(size % n == 0 for size, n in zip(p._shape, parts_of(p), strict=True))


@dataclass
class _Cluster:
    """Symbols that stay together, by their positions in the trace."""

    kind: Kind | None
    members: list[int]
    before: set[int] = field(default_factory=set)

    @property
    def last(self) -> int:
        return self.members[-1]


class Grouping:
    """Groups the symbols of one trace; ``groups`` gives them in an order that all edges allow."""

    def __init__(
        self, bsyms: Sequence[BoundSymbol], fusible: Callable[[BoundSymbol], bool]
    ) -> None:
        self.bsyms = bsyms
        self.clusters: dict[int, _Cluster] = {}
        self.home: dict[int, int] = {}
        self.latest: dict[Kind, int] = {}
        edges, apart = edges_of(bsyms)
        for i, bsym in enumerate(bsyms):
            kind = kind_of(bsym) if fusible(bsym) else None
            self._place(i, kind, edges[i], apart[i])

    def _place(self, i: int, kind: Kind | None, edges: set[int], apart: set[int]) -> None:
        before = {self.home[j] for j in edges | apart}
        refused = {self.home[j] for j in apart}
        for c, together in self._candidates(kind, before) if kind else ():
            others = before - {c}
            if c not in refused and not self._reaches(others, c):
                cluster = self.clusters[c]
                cluster.members.append(i)
                cluster.before |= others
                cluster.kind = together
                self.home[i] = c
                return
        self.clusters[i] = _Cluster(kind, [i], before)
        self.home[i] = i
        if kind is not None:
            self.latest[kind] = i

    def _candidates(self, kind: Kind, before: set[int]) -> Iterator[tuple[int, Kind]]:
        """Regions that a symbol of ``kind`` may join, and their kinds with it: those that it reads
        from first, then the latest ones.
        """
        latest = sorted(set(self.latest.values()) - before, reverse=True)
        for c in (*sorted(before, reverse=True), *latest):
            found = self.clusters[c].kind
            together = found.with_(kind) if found else None
            if together is not None:
                yield c, together

    def _reaches(self, starts: set[int], goal: int) -> bool:
        """Whether a path leads from region ``goal`` to one of ``starts``."""
        seen: set[int] = set()
        stack = list(starts)
        while stack:
            c = stack.pop()
            if c == goal:
                return True
            if c not in seen:
                seen.add(c)
                stack.extend(self.clusters[c].before)
        return False

    def groups(self) -> list[tuple[Kind | None, list[BoundSymbol]]]:
        """The groups, each in trace order; kind None for a symbol that stays alone."""
        after: dict[int, set[int]] = defaultdict(set)
        waiting = {c: len(cluster.before) for c, cluster in self.clusters.items()}
        for c, cluster in self.clusters.items():
            for b in cluster.before:
                after[b].add(c)
        ready = [(self.clusters[c].last, c) for c, n in waiting.items() if not n]
        heapq.heapify(ready)
        ordered = []
        while ready:
            _, c = heapq.heappop(ready)
            cluster = self.clusters[c]
            ordered.append((cluster.kind, [self.bsyms[i] for i in cluster.members]))
            for d in after[c]:
                waiting[d] -= 1
                if not waiting[d]:
                    heapq.heappush(ready, (self.clusters[d].last, d))
        assert len(ordered) == len(self.clusters), "regions depend on each other in a cycle"
        return ordered
