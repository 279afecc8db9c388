"""What becomes of each prim of Thunder's: ``python -m thunder_mdfuse.thunder.coverage`` prints it.

All of it follows from the tables that the executor works by, so it is what happens.
"""

from collections.abc import Hashable, Sequence

from thunder.core.prims import PrimIDs
from thunder.core.transforms import _grad_fn_map, augmented_forward_impls
from thunder.torch.experimental.dtensor_torch_and_prims import DTensorPrimIDs

from thunder_mdfuse.codegen.exprs import EXPRS, NotGenerated
from thunder_mdfuse.ir.ops import OPS
from thunder_mdfuse.schedule.generated import ATEN_ELEMENTWISE, GENERATED_KINDS
from thunder_mdfuse.thunder.claims import CLAIMS, ops_of
from thunder_mdfuse.thunder.executor import mdfuse_executor
from thunder_mdfuse.thunder.unclaimed import UNCLAIMED

_TITLE = """# Coverage

What becomes of each prim of Lightning-Thunder 0.2.6. This page is what
`python -m thunder_mdfuse.thunder.coverage` prints; `pytest --update-golden` rewrites it, and a test
keeps it true.

- *kernel*: part of a generated kernel, be it arithmetic, index arithmetic, a load or a store.
- *ATen step*: a call of torch's own kernel, as a step of the region's program. Of complex numbers,
  and of a few dtypes, some that are kernels otherwise are ATen steps too.
- *program*: a collective, or a draw of torch's generator, as a step of the region's program.
- *no step*: nothing is computed: the value itself, a size that the host knows, where a result is
  stored.
- *outside*: not claimed. Thunder runs it as it would without this executor.

The last column says whose rule differentiates it: `Thunder`, or `here` where Thunder has none or a
wrong one; empty where there is none, or nothing to differentiate.
"""


def executed_as(ops: Sequence[str]) -> str:
    """Who executes the work of ``ops``, each way once."""
    if not ops:
        return "no step"
    return ", ".join(dict.fromkeys(map(_one, ops)))


def _one(op: str) -> str:
    row, kind = EXPRS[op], OPS[op].kind
    if kind in ("placement", "rng_state"):
        return "program"
    generated = kind in GENERATED_KINDS and op not in ATEN_ELEMENTWISE
    if not generated:
        assert isinstance(row, NotGenerated), op
        return "ATen step"
    return "kernel"


def _differentiated(id: Hashable) -> str:
    own = mdfuse_executor.implmap.get(id)
    if own is not None and own.grad_transform is not None:
        return "here"
    return "Thunder" if id in _grad_fn_map or id in augmented_forward_impls else ""


def _row(id: Hashable, name: str) -> str:
    if id in CLAIMS:
        ops = ops_of(id)
        shown = " ".join(f"`{op}`" for op in ops)
        cells = [f"`{name}`", executed_as(ops), shown, _differentiated(id)]
    else:
        why = str(UNCLAIMED[id]).partition(": ")[2]
        cells = [f"`{name}`", "outside", why, ""]
    return f"| {' | '.join(cells)} |"


def _table(rows: Sequence[tuple[Hashable, str]]) -> str:
    heads = (
        "| symbol | executed as | operations, or why not | gradient |\n| --- | --- | --- | --- |"
    )
    return "\n".join([heads, *(_row(id, name) for id, name in rows)])


def text() -> str:
    """The whole page, in Markdown."""
    prims = [(id, id.name.lower()) for id in PrimIDs]
    on_meshes = [(id, id.name.lower()) for id in DTensorPrimIDs]
    others = [(id, str(id)) for id in CLAIMS if not isinstance(id, PrimIDs | DTensorPrimIDs)]
    computing = [row for row in prims if row[0] in CLAIMS]
    parts = [
        _TITLE,
        f"## Prims that regions take: {len(computing)} of {len(prims)}\n",
        _table(computing),
        "\n## Prims that they do not\n",
        _table([row for row in prims if row[0] not in CLAIMS]),
        "\n## Prims of DTensors\n",
        _table(on_meshes),
        "\n## Functions and symbols that are taken whole\n",
        _table(others),
    ]
    return "\n".join(parts) + "\n"


if __name__ == "__main__":
    print(text(), end="")
