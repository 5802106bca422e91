"""Map of the most recent items by id: immutable, with cheap longer copies.

Pure. The machine remembers the outcomes of the last commands; with each command one comes and the
oldest goes. Items lie in shards, which copies share but for the one that gets the new item. What is
too old is only counted out: it leaves its shard when that has grown too large. The order is that in
which the items came. Used by `dlogd.metadata.state.image`.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import TypeVar
from uuid import UUID

V = TypeVar("V")
D = TypeVar("D")

SHARDS = 256
_SHARD_SPARE = 16

_Shard = dict[int, tuple[int, UUID, V]]


class RecentMap(Mapping[UUID, V]):
    """The last items that were put in, oldest first.

    Invariant: each item has a number, one more than the item before; those from `_first` to
    `_next` (exclusive) are there, whatever else the shards still hold.
    """

    __slots__ = ("_first", "_next", "_shards")

    def __init__(self, items: Mapping[UUID, V] | Iterable[tuple[UUID, V]] = ()) -> None:
        pairs = dict(items)
        shards: list[_Shard[V]] = [{} for _ in range(SHARDS)]
        for number, (key, value) in enumerate(pairs.items()):
            place = key.int
            shards[place % SHARDS][place] = (number, key, value)
        self._shards = tuple(shards)
        self._first = 0
        self._next = len(pairs)

    def __getitem__(self, key: UUID) -> V:
        number, _, value = self._shards[key.int % SHARDS][key.int]
        if number < self._first:
            raise KeyError(key)
        return value

    def get(self, key: UUID, default: V | D | None = None) -> V | D | None:  # type: ignore[override]
        """Return the value of a key, `default` when it is not there (any more)."""
        place = key.int
        found = self._shards[place % SHARDS].get(place)
        return default if found is None or found[0] < self._first else found[2]

    def __len__(self) -> int:
        return self._next - self._first

    def __iter__(self) -> Iterator[UUID]:
        first = self._first
        held = [item for shard in self._shards for item in shard.values() if item[0] >= first]
        held.sort(key=lambda item: item[0])
        return (key for _, key, _ in held)

    def __repr__(self) -> str:
        return f"Recent({dict(self.items())!r})"

    def with_newest(self, key: UUID, value: V, keep: int) -> "RecentMap[V]":
        """Return a copy with one more item, whose key is not there; only the last `keep` stay."""
        place = key.int
        number = place % SHARDS
        first = max(self._first, self._next + 1 - keep)
        shard = self._shards[number]
        if len(shard) > _SHARD_SPARE + 2 * keep // SHARDS:
            shard = {at: item for at, item in shard.items() if item[0] >= first}
        else:
            shard = dict(shard)
        shard[place] = (self._next, key, value)
        copy: RecentMap[V] = RecentMap.__new__(RecentMap)
        copy._shards = (*self._shards[:number], shard, *self._shards[number + 1 :])
        copy._first, copy._next = first, self._next + 1
        return copy
