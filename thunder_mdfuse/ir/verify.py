"""Checks that a program is well formed. Runs between stages in tests and with ``MDFUSE_VERIFY=1``.

Every rule that a stage relies on is here, so that a broken stage is caught at its own border. A
failure shows the nodes around it and names the stage.
"""

from thunder_mdfuse.errors import IRError
from thunder_mdfuse.ir.attrs import InputAttrs
from thunder_mdfuse.ir.graph import Fusion, Node
from thunder_mdfuse.ir.ops import row
from thunder_mdfuse.ir.text import render_node
from thunder_mdfuse.ir.types import Mesh, Placements, Shard, StridedShard, TensorType, Type

_AROUND = 10


def verify(fusion: Fusion, stage: str) -> Fusion:
    """``fusion`` itself when it is well formed. Raises ``IRError`` otherwise."""
    for i, node in enumerate(fusion.nodes):
        try:
            _check_node(fusion, i, node)
        except IRError as e:
            raise IRError(f"after {stage}: {e}\n{_neighbourhood(fusion, i)}") from None
    _check_outputs(fusion, stage)
    return fusion


def _neighbourhood(fusion: Fusion, at: int) -> str:
    first, last = max(0, at - _AROUND), min(len(fusion.nodes), at + _AROUND + 1)
    marks = ("->" if i == at else "  " for i in range(first, last))
    lines = (render_node(i, fusion.nodes[i]) for i in range(first, last))
    return "\n".join(f"{mark} {line}" for mark, line in zip(marks, lines, strict=True))


def _check_node(fusion: Fusion, i: int, node: Node) -> None:
    op = row(node.op)
    for use in node.args:
        if not 0 <= use.node < i or not 0 <= use.result < len(fusion.nodes[use.node].types):
            raise IRError(f"%{i} reads {use}, which is not a result of an earlier node")
    if not op.operands[0] <= len(node.args) <= op.operands[1]:
        raise IRError(f"%{i}: {node.op} takes {op.operands} operands, found {len(node.args)}")
    if not isinstance(node.attrs, op.attrs):
        raise IRError(f"%{i}: {node.op} needs {op.attrs.__name__}, found {node.attrs}")
    if op.level not in ("any", fusion.level):
        raise IRError(f"%{i}: {node.op} stands in {op.level} programs only")
    if node.op == "input":
        _check_input(fusion, i, node.attrs)
    else:
        inferred = op.rule(node.op, tuple(fusion.type_of(a) for a in node.args), node.attrs)
        if tuple(map(_bare, inferred)) != tuple(map(_bare, node.types)):
            raise IRError(f"%{i}: {node.op} gives {inferred}, but is typed {node.types}")
    for t in node.types:
        if isinstance(t, TensorType) and t.placements is not None:
            if fusion.level == "local":
                raise IRError(f"%{i}: placements end with localize, found {t}")
            check_placements(t, t.placements, fusion.mesh)


def _check_input(fusion: Fusion, i: int, attrs: object) -> None:
    assert isinstance(attrs, InputAttrs)
    if attrs.position != i:
        raise IRError(f"%{i}: inputs come first and in order, found position {attrs.position}")


def _bare(t: Type) -> Type:
    return t.placed(None) if isinstance(t, TensorType) else t


def check_placements(t: TensorType, placements: Placements, mesh: Mesh | None) -> None:
    """Raise ``IRError`` unless ``placements`` fit the tensor type ``t`` and ``mesh``."""
    if mesh is None:
        raise IRError(f"{t} has placements, but the program has no mesh")
    if len(placements) != len(mesh.axes):
        raise IRError(f"{t} needs one placement for each axis of {mesh}")
    for axis, p in zip(mesh.axes, placements, strict=True):
        if isinstance(p, Shard | StridedShard) and not 0 <= p.dim < t.ndim:
            raise IRError(f"mesh axis {axis.name!r}: {p} names no dim of {t}")


def _check_outputs(fusion: Fusion, stage: str) -> None:
    written: set[int] = set()
    for output in fusion.outputs:
        node, result = output.value
        if not 0 <= node < len(fusion.nodes) or result >= len(fusion.nodes[node].types):
            raise IRError(f"after {stage}: the output {output.value} is no value of the program")
        if output.writes is None:
            continue
        if output.writes not in fusion.inputs:
            raise IRError(f"after {stage}: %{output.writes} is written but is no input")
        if output.writes in written:
            raise IRError(f"after {stage}: the input %{output.writes} is written twice")
        written.add(output.writes)
        found, target = fusion.type_of(output.value), fusion.nodes[output.writes].types[0]
        if isinstance(found, TensorType) and isinstance(target, TensorType):
            # Before propagate a value may have no placements yet; reshard gives it the input's.
            target = target if found.placements is not None else target.placed(None)
        if found != target:
            raise IRError(
                f"after {stage}: {output.value} of type {found} cannot be written into "
                f"%{output.writes} of type {target}; cast, broadcast or reshard it first"
            )
