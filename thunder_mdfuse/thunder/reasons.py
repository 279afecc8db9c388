"""Why a symbol is not in a region. ``explain`` shows them all."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Reason:
    """One sentence for the user: what was found and, where there is one, the remedy."""

    text: str

    def __str__(self) -> str:
        return self.text
