"""A memory of bounded size that forgets what was asked for longest ago, and counts.

What is forgotten stays alive for whoever holds it; the memory only makes it anew when it is asked
for again.
"""

import threading
from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar

from thunder_mdfuse.errors import MdfuseError

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


@dataclass(frozen=True)
class CacheStats:
    """How often a value was found, not found, and forgotten; how many are kept, and at most."""

    hits: int
    misses: int
    evictions: int
    size: int
    capacity: int


class Lru(Generic[K, V]):
    """``capacity`` values by key. Safe to use from several threads."""

    def __init__(self, capacity: int) -> None:
        self._kept: OrderedDict[K, V] = OrderedDict()
        self._lock = threading.Lock()
        self._hits = self._misses = self._evictions = 0
        self._capacity = 1
        self.resize(capacity)

    def get(self, key: K) -> V | None:
        """The value of ``key``, now the last to be forgotten; None when there is none."""
        with self._lock:
            found = self._kept.get(key)
            if found is None:
                self._misses += 1
                return None
            self._hits += 1
            self._kept.move_to_end(key)
            return found

    def peek(self, key: K) -> V | None:
        """As ``get``, and neither counts nor keeps the value longer."""
        return self._kept.get(key)

    def put(self, key: K, value: V) -> V:
        """Keep ``value``, and return it; where ``key`` has a value already, that one is kept."""
        with self._lock:
            found = self._kept.setdefault(key, value)
            self._kept.move_to_end(key)
            self._shrink()
            return found

    def resize(self, capacity: int) -> None:
        """Keep ``capacity`` values from now on. Raises ``MdfuseError`` for less than one."""
        if capacity < 1:
            raise MdfuseError(f"a cache keeps at least one value, found a capacity of {capacity}")
        with self._lock:
            self._capacity = capacity
            self._shrink()

    def _shrink(self) -> None:
        while len(self._kept) > self._capacity:
            self._kept.popitem(last=False)
            self._evictions += 1

    def clear(self) -> None:
        """Forget everything, and count from zero."""
        with self._lock:
            self._kept.clear()
            self._hits = self._misses = self._evictions = 0

    def stats(self) -> CacheStats:
        """The counts so far."""
        with self._lock:
            counts = self._hits, self._misses, self._evictions
            return CacheStats(*counts, len(self._kept), self._capacity)
