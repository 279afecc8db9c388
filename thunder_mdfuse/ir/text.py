"""Programs as text: ``render`` prints a fusion, ``parse`` reads it back to an equal one.

    global mesh[dp=2, tp=2] digest 1a2b
    %0 = input(position=0) : f32[4, 8] @ [Shard(0), Replicate]
    %1 = const(value='2.0', dtype=f64) : f64
    %2 = mul(%0, %1) : f32[4, 8] @ [Shard(0), Replicate]
    return %2, %2 -> %0
    where s0 == s1

An output ``%2 -> %0`` is written into the storage of input ``%0``. What an attribute record looks
like follows from its fields' types, so a new record needs no code here.
"""

import re
import typing
from dataclasses import fields
from functools import cache
from typing import Any

from thunder_mdfuse.errors import IRError
from thunder_mdfuse.ir import sizes
from thunder_mdfuse.ir.attrs import Attrs
from thunder_mdfuse.ir.graph import Fusion, Guard, Node, Output, Use
from thunder_mdfuse.ir.ops import row
from thunder_mdfuse.ir.types import (
    DTYPES,
    REPLICATE,
    DType,
    Mesh,
    MeshAxis,
    Partial,
    Placement,
    ScalarType,
    Shard,
    StridedShard,
    TensorType,
    Type,
)


def render(fusion: Fusion) -> str:
    """The text of ``fusion``, ending in a newline."""
    head = fusion.level + (f" {fusion.mesh}" if fusion.mesh else "")
    lines = [head, *(render_node(i, n) for i, n in enumerate(fusion.nodes))]
    outs = ", ".join(_render_output(o) for o in fusion.outputs)
    lines.append(f"return {outs}")
    lines += [f"where {guard}" for guard in fusion.guards]
    return "\n".join(lines) + "\n"


def render_node(i: int, node: Node) -> str:
    """One line: ``%i = op(operands; attributes) : types``."""
    args = ", ".join(map(str, node.args))
    attributes = ", ".join(f"{f.name}={_show(getattr(node.attrs, f.name))}" for f in _shown(node))
    inside = "; ".join(part for part in (args, attributes) if part)
    return f"%{i} = {node.op}({inside}) : {' | '.join(map(str, node.types))}"


def _shown(node: Node) -> list[Any]:
    return [f for f in fields(node.attrs) if getattr(node.attrs, f.name) != f.default]


def _render_output(output: Output) -> str:
    return f"{output.value}" + ("" if output.writes is None else f" -> %{output.writes}")


def _show(value: object) -> str:
    if isinstance(value, tuple):
        return f"[{', '.join(map(_show, value))}]"
    if isinstance(value, bool) or value is None:
        return str(value).lower()
    return repr(value) if isinstance(value, str | float) else str(value)


def parse(text: str) -> Fusion:
    """The fusion that ``text`` writes. Raises ``IRError`` naming the line that cannot be read."""
    lines = [line.strip() for line in text.strip().splitlines()]
    lines = [line for line in lines if line and not line.startswith("#")]
    if not lines:
        raise IRError("an empty text is no program")
    level, mesh = _parse_head(lines[0])
    nodes: list[Node] = []
    outputs: tuple[Output, ...] | None = None
    guards: list[Guard] = []
    for line in lines[1:]:
        try:
            if line.startswith("return"):
                outputs = tuple(_parse_output(o) for o in split(line[len("return") :]))
            elif line.startswith("where "):
                guards.append(_parse_guard(line[len("where ") :]))
            else:
                nodes.append(_parse_node(line, len(nodes)))
        except (IRError, ValueError, KeyError) as e:
            raise IRError(f"cannot read the line {line!r}: {e}") from None
    if outputs is None:
        raise IRError("the program has no return line")
    return Fusion(tuple(nodes), outputs, mesh, level, tuple(guards))


def _parse_head(line: str) -> tuple[str, Mesh | None]:
    match = re.fullmatch(r"(global|local)(?: mesh\[(.*?)\](?: digest (\S+))?)?", line)
    if not match:
        raise IRError(
            f"the first line must be 'global|local [mesh[axis=size, ...]]', found {line!r}"
        )
    if match[2] is None:
        return match[1], None
    axes = []
    for item in split(match[2]):
        name, _, size = item.partition("=")
        if not name or not size.isdecimal():
            raise IRError(f"mesh axis {item!r} must be 'axis=size' with a size of at least 1")
        axes.append(MeshAxis(name, int(size)))
    return match[1], Mesh(tuple(axes), match[3] or "")


def split(text: str, separator: str = ",") -> list[str]:
    """``text`` cut at ``separator`` outside brackets and quotes; parts stripped, none empty."""
    parts, depth, start, quote = [], 0, 0, ""
    for i, c in enumerate(text):
        if quote:
            quote = "" if c == quote else quote
        elif c in "'\"":
            quote = c
        elif c in "([":
            depth += 1
        elif c in ")]":
            depth -= 1
        elif c == separator and not depth:
            parts.append(text[start:i])
            start = i + 1
    parts.append(text[start:])
    return [p.strip() for p in parts if p.strip()]


def _parse_use(text: str) -> Use:
    match = re.fullmatch(r"%(\d+)(?:\.(\d+))?", text)
    if not match:
        raise IRError(f"{text!r} is not a value such as %3 or %3.1")
    return Use(int(match[1]), int(match[2] or 0))


def _parse_output(text: str) -> Output:
    value, arrow, target = text.partition(" -> ")
    return Output(_parse_use(value), _parse_use(target).node if arrow else None)


def _parse_guard(text: str) -> Guard:
    left, relation, right = re.split(r" (==|!=|<=|<|divides) ", text)
    return Guard(sizes.parse(left), relation, sizes.parse(right))


def _parse_node(line: str, expected: int) -> Node:
    match = re.fullmatch(r"%(\d+) = (\w+)\((.*)\) : (.*)", line)
    if not match or int(match[1]) != expected:
        raise IRError(f"expected '%{expected} = op(...) : type'")
    inside = split(match[3], ";")
    args: tuple[Use, ...] = ()
    if inside and inside[0].startswith("%"):
        args = tuple(_parse_use(a) for a in split(inside.pop(0)))
    values = dict(item.split("=", 1) for item in split(inside[0])) if inside else {}
    record = row(match[2]).attrs
    hints = _hints(record)
    attrs: Attrs = record(**{k: _read(v, hints[k]) for k, v in values.items()})
    return Node(match[2], args, attrs, tuple(parse_type(t) for t in split(match[4], "|")))


@cache
def _hints(record: type) -> dict[str, Any]:
    return typing.get_type_hints(record)


def _read(text: str, hint: Any) -> Any:
    """``text`` as a value of the field type ``hint``."""
    options = typing.get_args(hint)
    if type(None) in options and text == "none":
        return None
    if typing.get_origin(hint) is tuple:
        return tuple(_read(item, options[0]) for item in split(text[1:-1]))
    if hint is DType:
        return DTYPES[text]
    if hint == Placement:
        return parse_placement(text)
    if hint is bool:
        return {"true": True, "false": False}[text]
    if hint is str:
        return text[1:-1]
    if hint is float or float in options:
        return float(text)
    if typing.get_origin(options[0] if options else None) is tuple:
        return _read(text, options[0])
    return sizes.parse(text)


def parse_placement(text: str) -> Placement:
    """The placement that ``text`` writes, such as ``Shard(0)`` or ``Partial(sum)``."""
    name, _, rest = text.partition("(")
    args = split(rest.rstrip(")"))
    if name == "Replicate":
        return REPLICATE
    if name == "Partial":
        return Partial(*args)
    if name in ("Shard", "StridedShard"):
        return (Shard if name == "Shard" else StridedShard)(*map(int, args))
    raise IRError(f"{text!r} is not a placement")


def parse_type(text: str) -> Type:
    """The type that ``text`` writes: ``f64``, ``bf16[4, s0]`` or ``f32[4] @ [Shard(0)]``."""
    body, at, places = text.partition(" @ ")
    match = re.fullmatch(r"(\w+)(?:\[(.*)\])?", body.strip())
    if not match or match[1] not in DTYPES:
        raise IRError(f"{text!r} is not a type")
    dtype = DTYPES[match[1]]
    if match[2] is None:
        return ScalarType(dtype)
    shape = tuple(sizes.parse(s) for s in split(match[2]))
    placements = tuple(parse_placement(p) for p in split(places.strip()[1:-1])) if at else None
    return TensorType(dtype, shape, placements)
