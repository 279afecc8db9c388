"""The two tables of the sharding engine that are committed in ``tables/``.

``deviations.md``: single ops whose result gets other placements than eager DTensor's, with the
bytes of both. ``changes.md``: the way taken from each list of placements to each other.
"""

from dataclasses import dataclass
from itertools import product
from pathlib import Path

from sharding import eager
from sharding.eager_cases import CASES, program

from thunder_mdfuse.comm.placements import to_placement
from thunder_mdfuse.ir.graph import Fusion, Use
from thunder_mdfuse.ir.sizes import evaluate
from thunder_mdfuse.ir.sizes import product as size_product
from thunder_mdfuse.ir.text import parse, parse_placement, split
from thunder_mdfuse.ir.types import (
    REPLICATE,
    Mesh,
    MeshAxis,
    Partial,
    Placements,
    TensorType,
)
from thunder_mdfuse.sharding.changes import received_bytes, route
from thunder_mdfuse.sharding.localize import localize
from thunder_mdfuse.sharding.propagate import propagate
from thunder_mdfuse.sharding.reshard import reshard

FOLDER = Path(__file__).parent / "tables"


@dataclass(frozen=True)
class Row:
    """One op: placements and bytes received by a rank, eager's (None where it raises) and ours.

    ``owed``: what completing the result's pending reductions moves later.
    """

    name: str
    op: str
    operands: str
    eager: Placements | None
    eager_bytes: int
    eager_owed: int
    ours: Placements
    our_bytes: int
    our_owed: int

    @property
    def differs(self) -> bool:
        return self.eager != self.ours


def compare(name: str) -> Row:
    """The row of one case."""
    operands, op, function = CASES[name]
    fusion = parse(program(name))
    placed = propagate(fusion)
    result = placed.tensor(placed.outputs[0].value)
    mesh, ours = placed.mesh, result.placements
    assert mesh is not None and ours is not None
    types = [fusion.tensor(Use(i)) for i in fusion.inputs]
    tensors = [eager.placed(t, t.placements or (), mesh) for t in types]
    with eager.Wire() as wire:
        try:
            made = function(*tensors)
            # An embedding's own kind of Partial counts as one.
            found = tuple(
                Partial(p.reduce_op) if p.is_partial() else to_placement(p, made.ndim)
                for p in made.placements
            )
        except (RuntimeError, NotImplementedError, ValueError):
            found = None
    places = "; ".join(o.partition(" @ ")[2] for o in operands)
    return Row(
        name,
        op.partition("(")[0],
        places,
        found,
        wire.received,
        0 if found is None else _owed(result, found, mesh),
        ours,
        moved(localize(reshard(placed))),
        _owed(result, ours, mesh),
    )


def _owed(t: TensorType, places: Placements, mesh: Mesh) -> int:
    done = tuple(REPLICATE if isinstance(p, Partial) else p for p in places)
    return int(received_bytes(route(t.shape, t.dtype.itemsize, mesh, places, done), mesh))


def moved(local: Fusion) -> int:
    """The bytes that rank 0, whose shards are the longest, receives in a local program."""
    mesh = local.mesh
    assert mesh is not None
    at_first = {f"@{a.name}": 0 for a in mesh.axes}

    def nbytes(t: object) -> int:
        assert isinstance(t, TensorType)
        return evaluate(size_product(t.shape), at_first) * t.dtype.itemsize

    total = 0
    for node in local.nodes:
        team = getattr(node.attrs, "ranks", 1)
        given, taken = (nbytes(local.tensor(a)) for a in node.args[:1]), nbytes
        if node.op == "all_gather":
            total += (team - 1) * next(given)
        elif node.op == "all_reduce":
            total += 2 * next(given) * (team - 1) // team
        elif node.op == "all_to_all":
            total += next(given) * (team - 1) // team
        elif node.op == "reduce_scatter":
            total += (team - 1) * taken(node.types[0])
        elif node.op in ("broadcast", "permute_ranks"):
            total += taken(node.types[0])
    return total


def _show(places: Placements | None) -> str:
    return "raises" if places is None else ", ".join(map(str, places))


def deviations() -> str:
    """The table of the ops whose placements are not eager's."""
    lines = [
        "# Where placements are not eager DTensor's",
        "",
        "Single ops on a mesh `tp=4`, or `dp=2, tp=2` where operands have two placements, with",
        "nothing pinned. Bytes are those that one rank receives for the op; owed are those of the",
        "reductions that the result still awaits. Eager is torch 2.11's. Written by",
        "`pytest tests/sharding/test_tables.py --update-golden`; the test checks that no row moves",
        "and owes more than eager.",
        "",
        "| case | op | operands | eager | bytes | owed | ours | bytes | owed |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for name in CASES:
        row = compare(name)
        if row.differs:
            theirs = ("-", "-") if row.eager is None else (row.eager_bytes, row.eager_owed)
            cells = (
                row.name,
                row.op,
                row.operands,
                _show(row.eager),
                *theirs,
                _show(row.ours),
                row.our_bytes,
                row.our_owed,
            )
            lines.append("| " + " | ".join(map(str, cells)) + " |")
    return "\n".join(lines) + "\n"


ONE = Mesh((MeshAxis("tp", 4),))
TWO = Mesh((MeshAxis("dp", 4), MeshAxis("tp", 4)))
SINGLE = ("Replicate", "Shard(0)", "Shard(1)", "StridedShard(0, 2)", "Partial(sum)", "Partial(max)")
PAIRS = (
    "Replicate, Shard(0)",
    "Shard(0), Replicate",
    "Shard(0), Shard(0)",
    "Shard(0), Shard(1)",
    "StridedShard(0, 4), Shard(0)",
    "Partial(sum), Shard(0)",
    "Partial(sum), Partial(sum)",
)


def changes() -> str:
    """The table of the ways from placements to placements."""
    lines = [
        "# Which collectives change placements",
        "",
        "For f32[64, 64] (16 KiB) on meshes of 4 and of 4 x 4 ranks: the steps, outermost first in",
        "time, and the bytes that one rank receives. Among all ways the one with the fewest bytes",
        "is taken (`thunder_mdfuse/sharding/changes.py`). Written by",
        "`pytest tests/sharding/test_tables.py --update-golden`.",
        "",
        "| found | wanted | steps | bytes |",
        "|---|---|---|---|",
    ]
    for mesh, options in ((ONE, SINGLE), (TWO, PAIRS)):
        for found, wanted in product(options, options):
            if found != wanted:
                before, after = (tuple(map(parse_placement, split(t))) for t in (found, wanted))
                way = route((64, 64), 4, mesh, before, after)
                steps = ", ".join(f"{s.op} {s.attrs.team}" for s in way.steps) or "none"
                lines.append(f"| {found} | {wanted} | {steps} | {received_bytes(way, mesh):.0f} |")
    return "\n".join(lines) + "\n"


TABLES = {"deviations.md": deviations, "changes.md": changes}
