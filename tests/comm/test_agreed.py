"""What ranks remember of what they agreed on: all of a team forget it at the same call."""

import random

import pytest

from thunder_mdfuse.comm import agreed
from thunder_mdfuse.comm.agreed import Agreed


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agreed, "MOST_AGREED", 3)


def test_a_team_is_asked_once_for_each_thing() -> None:
    team, asked = Agreed(), list[int]()
    for key in (1, 2, 1, 2, 3, 1):
        assert team.ask_once(key, lambda key=key: asked.append(key)) == 0
    assert asked == [1, 2, 3]


def test_what_was_not_agreed_on_is_asked_again() -> None:
    team = Agreed()

    def fails() -> None:
        raise ValueError

    for _ in range(2):
        with pytest.raises(ValueError):
            team.ask_once(1, fails)
    assert not team.keys


def test_ranks_that_remember_other_programs_ask_at_the_same_calls() -> None:
    """Each rank has its own memory of entries, some of which it forgets when it likes; the calls,
    of programs in several layouts, are the same.
    """
    draw = random.Random(0)
    calls = [(draw.randrange(8), draw.randrange(3)) for _ in range(2000)]
    asked: list[list[tuple[int, int]]] = []
    for rank in range(3):
        own, team = random.Random(rank), Agreed()
        entries: dict[tuple[int, int], int] = {}
        asked.append([])
        for number, call in enumerate(calls):
            key, layout = call
            entry = (key, layout if rank else 0)  # ranks tell apart other layouts
            if entries.get(entry) != team.epoch:
                asking = lambda number=number, key=key: asked[-1].append((number, key))
                entries[entry] = team.ask_once(key, asking)
            if own.random() < 0.2:
                entries.pop(own.choice(list(entries)), None)
            assert len(team.keys) <= 3
    assert asked[0] == asked[1] == asked[2]
    assert len(asked[0]) > 100
