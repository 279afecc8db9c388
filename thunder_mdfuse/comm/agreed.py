"""What the ranks of a team have agreed on, in memory of bounded size.

A rank may ask the others only where all of them ask. So nothing is forgotten by when it was used
last, which differs by rank: what a team has agreed on is forgotten as a whole, at the call in which
its ranks have agreed on ``MOST_AGREED`` things, which ends an *epoch*. Whoever goes on without
asking, because it remembers having asked, must have asked in the current epoch.
"""

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field

MOST_AGREED = 4096


@dataclass
class Agreed:
    """What one team has agreed on since its epoch began."""

    epoch: int = 0
    keys: set[Hashable] = field(default_factory=set)

    def ask_once(self, key: Hashable, ask: Callable[[], None]) -> int:
        """The epoch in which the team has agreed on ``key``, by ``ask`` if it has not yet."""
        if key not in self.keys:
            ask()
            if len(self.keys) >= MOST_AGREED:
                self.keys.clear()
                self.epoch += 1
            self.keys.add(key)
        return self.epoch


# By global ranks: process groups may be made again, the processes that agreed are the same.
_teams: dict[tuple[int, ...], Agreed] = {}


def agreed_by(ranks: tuple[int, ...]) -> Agreed:
    """The memory of the team of the processes ``ranks``."""
    return _teams.setdefault(ranks, Agreed())
