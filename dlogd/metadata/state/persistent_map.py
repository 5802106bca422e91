"""Persistent map: immutable, with cheap changed copies at any size.

Pure. A command that touches one topic out of 10,000 must not copy them all: entries lie in small
chunks, in the order in which their keys came, and a copy shares all chunks but those it changes.
Which chunk holds a key is kept in shards that are shared the same way. The order of iteration is
that of insertion, as with `dict`, and depends on nothing else. Used by
`dlogd.metadata.state.image`.
"""

from collections.abc import ItemsView, Iterable, Iterator, Mapping, ValuesView
from typing import Any, TypeVar
from uuid import UUID
from zlib import crc32

K = TypeVar("K", str, UUID, int)
V = TypeVar("V")
D = TypeVar("D")

CHUNK_ITEMS = 64
"""A chunk that has got so many keys takes no further ones."""

SHARDS = 256
_SPARE_CHUNKS = 16

_NO_SHARD: dict[Any, int] = {}
_EMPTY: tuple[dict[Any, int], ...] = (_NO_SHARD,) * SHARDS


def _place(key: str | UUID | int) -> int:
    """Return the shard of a key: the same in every process."""
    if isinstance(key, str):
        return crc32(key.encode(errors="surrogatepass")) % SHARDS
    return (key.int if isinstance(key, UUID) else key) % SHARDS


class PersistentMap(Mapping[K, V]):
    """Like `dict`, with `with_items` and `without` in place of assignment and deletion.

    Invariant: `_shards[_place(key)][key]` is the number of the chunk that holds `key`.
    """

    __slots__ = ("_chunks", "_length", "_shards")

    def __init__(self, items: Mapping[K, V] | Iterable[tuple[K, V]] = ()) -> None:
        self._chunks: tuple[dict[K, V], ...] = ()
        self._shards: tuple[dict[K, int], ...] = _EMPTY
        self._length = 0
        pairs = list(dict(items).items())
        if not pairs:
            return
        shards: list[dict[K, int]] = [{} for _ in range(SHARDS)]
        chunks: list[dict[K, V]] = []
        for start in range(0, len(pairs), CHUNK_ITEMS):
            chunk = dict(pairs[start : start + CHUNK_ITEMS])
            for key in chunk:
                shards[_place(key)][key] = len(chunks)
            chunks.append(chunk)
        self._chunks = tuple(chunks)
        self._shards = tuple(shard or _NO_SHARD for shard in shards)
        self._length = len(pairs)

    def __getitem__(self, key: K) -> V:
        return self._chunks[self._shards[_place(key)][key]][key]

    def get(self, key: K, default: V | D | None = None) -> V | D | None:  # type: ignore[override]
        """Return the value of a key, `default` when it is not there."""
        number = self._shards[_place(key)].get(key)
        return default if number is None else self._chunks[number][key]

    def __contains__(self, key: object) -> bool:
        return isinstance(key, str | UUID | int) and key in self._shards[_place(key)]

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[K]:
        for chunk in self._chunks:
            yield from chunk

    def __repr__(self) -> str:
        return f"ChunkedMap({dict(self.items())!r})"

    def items(self) -> ItemsView[K, V]:
        """Return all keys and values, as `dict` does."""
        return _Items(self)

    def values(self) -> ValuesView[V]:
        """Return all values, as `dict` does."""
        return _Values(self)

    def with_items(self, items: Iterable[tuple[K, V]]) -> "PersistentMap[K, V]":
        """Return a copy in which keys have new values; new keys come last."""
        chunks = list(self._chunks)
        shards: list[dict[K, int]] | None = None
        fresh: set[int] = set()  # chunks that this copy has of its own
        fresh_shards: set[int] = set()
        length = self._length
        for key, value in items:
            place = _place(key)
            shard = (self._shards if shards is None else shards)[place]
            number = shard.get(key)
            if number is None:
                if not chunks or len(chunks[-1]) >= CHUNK_ITEMS:
                    fresh.add(len(chunks))
                    chunks.append({})
                number = len(chunks) - 1
                if shards is None:
                    shards = list(self._shards)
                if place not in fresh_shards:
                    fresh_shards.add(place)
                    shard = shards[place] = dict(shard)
                shard[key] = number
                length += 1
            if number not in fresh:
                fresh.add(number)
                chunks[number] = dict(chunks[number])
            chunks[number][key] = value
        return self._copy(chunks, self._shards if shards is None else tuple(shards), length)

    def without(self, keys: Iterable[K]) -> "PersistentMap[K, V]":
        """Return a copy that lacks some keys."""
        chunks, shards, length = list(self._chunks), list(self._shards), self._length
        for key in keys:
            place = _place(key)
            number = shards[place].get(key)
            if number is None:
                continue
            shards[place] = dict(shards[place])
            del shards[place][key]
            chunks[number] = dict(chunks[number])
            del chunks[number][key]
            length -= 1
        if len(chunks) > _SPARE_CHUNKS + length // (CHUNK_ITEMS // 4):
            # Deletions have left many chunks nearly empty.
            return PersistentMap([item for chunk in chunks for item in chunk.items()])
        return self._copy(chunks, tuple(shards), length)

    def _copy(
        self, chunks: list[dict[K, V]], shards: tuple[dict[K, int], ...], length: int
    ) -> "PersistentMap[K, V]":
        copy: PersistentMap[K, V] = PersistentMap.__new__(PersistentMap)
        copy._chunks, copy._shards, copy._length = tuple(chunks), shards, length
        return copy


class _Items(ItemsView[K, V]):
    """Goes through the chunks, without a look-up for each key."""

    _mapping: PersistentMap[K, V]

    def __iter__(self) -> Iterator[tuple[K, V]]:
        for chunk in self._mapping._chunks:
            yield from chunk.items()


class _Values(ValuesView[V]):
    """The same for values."""

    _mapping: PersistentMap[Any, V]

    def __iter__(self) -> Iterator[V]:
        for chunk in self._mapping._chunks:
            yield from chunk.values()


def chunked(mapping: Mapping[K, V]) -> PersistentMap[K, V]:
    """Return a mapping as a ChunkedMap: itself if it is one."""
    return mapping if isinstance(mapping, PersistentMap) else PersistentMap(mapping)


def suspects(some: Mapping[K, V], other: Mapping[K, V]) -> Iterator[tuple[K, V]]:
    """Yield the items of `some` that may differ in `other`, in order; shared chunks are skipped."""
    if some is other:
        return
    if not isinstance(some, PersistentMap) or not isinstance(other, PersistentMap):
        yield from some.items()
        return
    chunks, others = some._chunks, other._chunks
    for chunk, counterpart in zip(chunks, others, strict=False):
        if chunk is not counterpart:
            yield from [item for item in chunk.items() if counterpart.get(item[0]) is not item[1]]
    for chunk in chunks[len(others) :]:
        yield from chunk.items()
