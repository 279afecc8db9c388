"""Statements of generated code as a small tree, and the only place where the tree becomes text."""

from collections.abc import Iterable
from dataclasses import dataclass, field


@dataclass
class Block:
    """A brace-enclosed block under ``head`` (``for (...)``, ``if (...)``, or nothing)."""

    head: str = ""
    body: list["Statement"] = field(default_factory=list)
    pragma: str = ""

    def add(self, *lines: "Statement") -> None:
        """Append statements."""
        self.body.extend(lines)

    def open(self, head: str, pragma: str = "") -> "Block":
        """Append a block and return it."""
        inner = Block(head, [], pragma)
        self.body.append(inner)
        return inner


Statement = str | Block


def render(statements: Iterable[Statement], depth: int = 0) -> str:
    """The statements as lines, two spaces for each level."""
    lines: list[str] = []
    pad = "  " * depth
    for statement in statements:
        if isinstance(statement, str):
            lines.append(pad + statement)
            continue
        if statement.pragma:
            lines.append(pad + statement.pragma)
        lines.append(f"{pad}{statement.head} {{" if statement.head else pad + "{")
        if statement.body:
            lines.append(render(statement.body, depth + 1))
        lines.append(pad + "}")
    return "\n".join(lines)
