"""Ranks compare what they are about to run, before a collective could hang on the difference.

In: a process group and a text on each rank. Out: nothing when all agree, else a ``CommError`` on
every rank, naming ranks, fields and values. All goes through the group's own store, one numbered
round after another, whatever the rounds are about: ranks that come for different reasons meet in
the same round and are told so. A round's keys are deleted when the next one is over.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta

import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore

from thunder_mdfuse import knobs
from thunder_mdfuse.comm.team import check_not_lost, group_store, lose
from thunder_mdfuse.errors import CommError

_POST, _SUMMARY, _GAVE_UP = "post", "summary", "gave_up"
_SHOWN = 8  # fields and characters enough to act on; a program of 200 steps may differ in each
_WIDTH = 160


def agree(group: dist.ProcessGroup, digest: str, summary: Mapping[str, str], what: str) -> None:
    """Returns when all ranks of ``group`` have called with the same ``digest`` and ``what``.

    ``summary`` says in readable fields what the digest stands for, and is only read where digests
    differ. ``CommError`` on a difference, or when a rank does not come in ``MDFUSE_COMM_TIMEOUT``.
    """
    if group.size() == 1:
        return
    turn = _Round(group, what)
    turn.store.set(turn.key(_SUMMARY), json.dumps(dict(summary)))
    found = turn.meet(digest.encode())
    if len(set(found)) > 1:
        summaries = [
            json.loads(turn.store.get(turn.key(_SUMMARY, rank))) for rank in range(len(found))
        ]
        raise CommError(_difference([f.decode() for f in found], summaries, what, turn.ranks))


def agree_on_value(
    group: dist.ProcessGroup, value: bytes, source: int = 0, what: str = "a value"
) -> bytes:
    """The ``value`` of the group's rank ``source``, on every rank. Others' values are not read."""
    if not 0 <= source < group.size():
        raise CommError(f"{what} cannot come from rank {source} of a group of {group.size()}")
    if group.size() == 1:
        return value
    mine = value if group.rank() == source else b""
    return _Round(group, f"{what} from rank {source}").meet(mine)[source]


class _Round:
    """One meeting of all ranks of a group in its store."""

    def __init__(self, group: dist.ProcessGroup, what: str) -> None:
        check_not_lost(group)
        self.group = group
        self.what = what
        self.store = PrefixStore("mdfuse/agree", group_store(group))
        self.ranks = dist.get_process_group_ranks(group)
        # Counted in the store, not here: a count must start afresh when a group is made again.
        self.number = self.store.add(f"rounds/{group.rank()}", 1)

    def key(self, kind: str, rank: int | None = None, number: int | None = None) -> str:
        r = self.group.rank() if rank is None else rank
        return f"{self.number if number is None else number}/{kind}/{r}"

    def meet(self, content: bytes) -> list[bytes]:
        """Every rank's content, by rank in the group. All must have come for the same ``what``."""
        size = self.group.size()
        keys = [self.key(_POST, rank) for rank in range(size)]
        try:
            self.store.set(self.key(_POST), _packed(self.what, content))
            seconds = knobs.seconds("MDFUSE_COMM_TIMEOUT")
            self.store.wait(keys, timedelta(seconds=seconds))
            self._check_nobody_left(size)
            posts = [_unpacked(self.store.get(key)) for key in keys]
        except RuntimeError as e:
            raise self._absence(keys, e) from e
        self._check_same_what([post.what for post in posts])
        # Everybody is in this round, so nobody reads the one before any more.
        for kind in (_POST, _SUMMARY, _GAVE_UP):
            self.store.delete_key(self.key(kind, number=self.number - 1))
        return [post.content for post in posts]

    def _check_same_what(self, whats: list[str]) -> None:
        if len(set(whats)) > 1:
            lines = "; ".join(
                f"rank {r} came for {w}" for r, w in zip(self.ranks, whats, strict=True)
            )
            raise CommError(
                f"ranks run different programs: {lines}; every rank must call the same compiled "
                "functions in the same order with inputs of the same global shapes and placements"
            )

    def _absence(self, keys: list[str], e: RuntimeError) -> CommError:
        try:
            missing = [r for r, key in zip(self.ranks, keys, strict=True) if not _has(self, key)]
            self.store.set(self.key(_GAVE_UP), ",".join(map(str, missing)))
        except RuntimeError:
            missing = []  # the store went away with the rank that served it
        who = f"rank(s) {', '.join(map(str, missing))}" if missing else "at least one rank"
        seconds = knobs.seconds("MDFUSE_COMM_TIMEOUT")
        # Who did not come may have begun a collective, which nobody here must answer later.
        lose(self.group, f"{who} did not come to agree on {self.what}")
        return CommError(
            f"{who} of {self.ranks} did not come within {seconds:g} s (MDFUSE_COMM_TIMEOUT) to "
            f"agree on {self.what}, says rank {self.ranks[self.group.rank()]}: it died, is slower "
            f"than that, or runs another program ({_first_line(e)})"
        )

    def _check_nobody_left(self, size: int) -> None:
        # A rank that comes too late finds all posts, of ranks that have given up on it.
        left = [r for r in range(size) if self.store.check([self.key(_GAVE_UP, r)])]
        if left:
            names = ", ".join(str(self.ranks[r]) for r in left)
            lose(self.group, f"rank(s) {names} stopped waiting to agree on {self.what}")
            raise CommError(
                f"rank(s) {names} stopped waiting to agree on {self.what} before all had come; "
                f"rank {self.ranks[self.group.rank()]} must not go on without them (raise "
                "MDFUSE_COMM_TIMEOUT if ranks are that far apart)"
            )


def _has(turn: _Round, key: str) -> bool:
    return bool(turn.store.check([key]))


@dataclass(frozen=True)
class _Post:
    what: str
    content: bytes


def _packed(what: str, content: bytes) -> str:
    # Stores take text only by their type hints; latin-1 gives each byte a character.
    return json.dumps([what, content.decode("latin-1")])


def _unpacked(post: bytes) -> _Post:
    what, content = json.loads(post)
    return _Post(what, content.encode("latin-1"))


def _difference(
    digests: list[str], summaries: list[dict[str, str]], what: str, ranks: list[int]
) -> str:
    """What most ranks have is shown beside what each other kind of rank has."""
    usual = max(digests, key=digests.count)
    with_usual = [r for r, d in zip(ranks, digests, strict=True) if d == usual]
    reference = summaries[digests.index(usual)]
    lines = [f"ranks do not agree on {what}:"]
    for digest in dict.fromkeys(d for d in digests if d != usual):
        others = [r for r, d in zip(ranks, digests, strict=True) if d == digest]
        other = summaries[digests.index(digest)]
        fields = [name for name in {**reference, **other} if reference.get(name) != other.get(name)]
        for name in fields[:_SHOWN]:
            lines.append(
                f"  {name}: {_ranks(with_usual)} {_clip(reference.get(name))}, "
                f"{_ranks(others)} {_clip(other.get(name))}"
            )
        if len(fields) > _SHOWN:
            lines.append(f"  ... and {len(fields) - _SHOWN} more fields")
        if not fields:
            lines.append(f"  {_ranks(with_usual)} {usual}, {_ranks(others)} {digest}")
    lines.append(
        "  needed the same global program on every rank: give all ranks inputs of the same global "
        "shapes, dtypes and placements, and the same settings"
    )
    return "\n".join(lines)


def _ranks(ranks: list[int]) -> str:
    names = ", ".join(map(str, ranks))
    return f"ranks {names} have" if len(ranks) > 1 else f"rank {names} has"


def _clip(text: str | None) -> str:
    if text is None:
        return "nothing"
    return repr(text if len(text) <= _WIDTH else f"{text[:_WIDTH]}...")


def _first_line(e: BaseException) -> str:
    return (str(e).strip() or type(e).__name__).splitlines()[0]
