"""A bounded memory: what it forgets, what it counts, and that what is forgotten goes on working."""

import threading

import pytest
import torch

from thunder_mdfuse import FusionDefinition, executable
from thunder_mdfuse.errors import MdfuseError
from thunder_mdfuse.lru import CacheStats, Lru


def test_what_was_asked_for_longest_ago_is_forgotten() -> None:
    memory: Lru[str, int] = Lru(2)
    assert memory.put("a", 1) == 1 and memory.put("b", 2) == 2
    assert memory.get("a") == 1
    assert memory.put("c", 3) == 3
    assert [memory.get(k) for k in "abc"] == [1, None, 3]
    assert memory.put("a", 7) == 1, "what is there stays"
    assert memory.stats() == CacheStats(hits=3, misses=1, evictions=1, size=2, capacity=2)
    memory.resize(1)
    assert memory.peek("c") is None and memory.peek("a") == 1
    memory.clear()
    assert memory.stats() == CacheStats(0, 0, 0, 0, 1)
    with pytest.raises(MdfuseError, match="at least one value"):
        memory.resize(0)


def fusion(factor: float) -> FusionDefinition:
    with FusionDefinition() as fd:
        fd.add_output(fd.ops.mul(fd.define_tensor([-1, 4]), factor))
    return fd


def test_programs_are_shared_counted_and_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(executable, "programs", Lru(2))
    x = torch.randn(3, 4)
    first, second = fusion(2.0), fusion(2.0)
    assert first.executable is second.executable
    assert executable.programs.stats() == CacheStats(1, 1, 0, 1, 2)
    first.execute([x])
    for factor in (3.0, 4.0):
        fusion(factor).execute([x])
    assert executable.programs.stats().evictions == 1
    # Whoever holds a forgotten program goes on with it; others get one of their own.
    assert torch.equal(first.execute([x])[0], x * 2.0)
    assert torch.equal(first.execute([torch.ones(5, 4)])[0], torch.full((5, 4), 2.0))
    again = fusion(2.0)
    assert again.executable is not first.executable
    assert torch.equal(again.execute([x])[0], x * 2.0)


def test_threads_make_equal_programs_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(executable, "programs", Lru(1))
    x, wrong = torch.randn(3, 4), []

    def work() -> None:
        for factor in (1.5, 2.5, 3.5) * 3:
            if not torch.equal(fusion(factor).execute([x])[0], x * factor):
                wrong.append(factor)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong
    assert executable.programs.stats().size == 1
