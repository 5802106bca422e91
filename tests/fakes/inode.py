"""One file of the simulated disk, sector by sector: what the system holds and what the disk holds.

Pure apart from the random generator that is passed in. `tests.fakes.disk` puts files into
directories; nothing here knows about paths, errors or time.

A sector (512 bytes) is written whole or not at all; sectors of one write survive independently of
each other. Between two flushes any of the versions that a sector had may be the one on the disk.
"""

import random
from collections.abc import Iterable
from dataclasses import dataclass

SECTOR = 512
ZEROS = bytes(SECTOR)
VERSION_COUNT_MAX = 4


@dataclass(frozen=True, slots=True)
class _Saved:
    """The state just before the first truncation that no flush covers."""

    content: bytes
    size: int
    durable_size: int
    stale: dict[int, bytes]
    pending: dict[int, list[bytes]]


class Inode:
    """Bytes of one file.

    `content` is what reads see; what lies between its end and `size` reads as zeros.
    `stale` holds, for each sector whose bytes differ from the disk's, the disk's bytes.
    `pending` holds the versions of such a sector that may still reach the disk; a stale sector that
    is not pending was lost by a failed flush: no later flush brings it to the disk (Linux).
    """

    def __init__(self) -> None:
        self.content = bytearray()
        self.size = 0
        self.allocated = 0
        self.durable_size = 0
        self.linked = True
        self.open_count = 0
        self.modified_ms = 0
        self.stale: dict[int, bytes] = {}
        self.pending: dict[int, list[bytes]] = {}
        self._before_truncation: _Saved | None = None

    # -- what a process sees

    def read(self, position: int, length: int) -> bytes:
        """Return up to `length` bytes, shorter only at the end of the file."""
        end = min(position + length, self.size)
        if end <= position:
            return b""
        piece = bytes(self.content[position:end])
        return piece + bytes(end - position - len(piece))

    def write(
        self,
        position: int,
        data: bytes | bytearray | memoryview,
        *,
        durable: bool = False,
        sectors: Iterable[int] | None = None,
    ) -> None:
        """Write `data`, or of it only what falls into `sectors`."""
        end = position + len(data)
        if end == position:
            return
        chosen: Iterable[int] = range(position // SECTOR, (end - 1) // SECTOR + 1)
        if sectors is not None:
            allowed = set(sectors)
            chosen = [sector for sector in chosen if sector in allowed]
        for sector in chosen:
            start = max(position, sector * SECTOR)
            stop = min(end, (sector + 1) * SECTOR)
            self._write_sector(sector, start, data[start - position : stop - position], durable)
            self.size = max(self.size, stop)
            self.allocated = max(self.allocated, stop)
            if durable:
                self.durable_size = max(self.durable_size, stop)
        if durable:
            self._before_truncation = None

    def _write_sector(
        self, sector: int, start: int, data: bytes | bytearray | memoryview, durable: bool
    ) -> None:
        before = None if durable else self.sector(sector)
        self._reach(start + len(data))
        self.content[start : start + len(data)] = data
        if before is None:
            self.stale.pop(sector, None)
            self.pending.pop(sector, None)
        else:
            self._note(sector, before, self.sector(sector))

    def _note(self, sector: int, before: bytes, after: bytes) -> None:
        self.stale.setdefault(sector, before)
        versions = self.pending.setdefault(sector, [])
        versions.append(after)
        del versions[:-VERSION_COUNT_MAX]

    def sector(self, sector: int) -> bytes:
        """Return one sector as reads see it, padded with zeros."""
        piece = bytes(self.content[sector * SECTOR : (sector + 1) * SECTOR])
        return piece if len(piece) == SECTOR else piece + ZEROS[len(piece) :]

    def preallocate(self, position: int, length: int) -> None:
        """Make the range exist, with space, reading as zeros."""
        end = position + length
        stop = min(end, len(self.content))
        if stop > position and any(self.content[position:stop]):
            self.write(position, bytes(stop - position))
        self.size = max(self.size, end)
        self.allocated = max(self.allocated, end)

    def truncate(self, size: int) -> None:
        """Cut or extend; volatile until a flush."""
        if size < self.size:
            if self._before_truncation is None:
                self._before_truncation = self._save()
            self._cut(size)
        self.size = size

    def _save(self) -> _Saved:
        return _Saved(
            bytes(self.content),
            self.size,
            self.durable_size,
            dict(self.stale),
            {sector: list(versions) for sector, versions in self.pending.items()},
        )

    def _cut(self, size: int) -> None:
        first_gone = -(-size // SECTOR)
        for sector in [sector for sector in self.stale if sector >= first_gone]:
            del self.stale[sector]
            self.pending.pop(sector, None)
        self.durable_size = min(self.durable_size, size)
        self.allocated = min(self.allocated, size)
        before = self.sector(size // SECTOR) if size % SECTOR else None
        del self.content[size:]
        if before is not None:
            self._note(size // SECTOR, before, self.sector(size // SECTOR))

    def _reach(self, end: int) -> None:
        self.content.extend(bytes(max(0, end - len(self.content))))

    # -- what the disk holds

    @property
    def dirty(self) -> bool:
        """Whether a flush has something to do."""
        return bool(self.pending) or self.size != self.durable_size

    def flush(self) -> None:
        """Bring everything that is pending to the disk."""
        if len(self.stale) == len(self.pending):
            self.stale.clear()
        else:
            for sector in self.pending:
                self.stale.pop(sector, None)
        self.pending.clear()
        self.durable_size = self.size
        self._before_truncation = None

    def fail_flush(self, rng: random.Random) -> None:
        """Bring a part to the disk and forget that the rest is dirty, as Linux does on an error."""
        for sector in sorted(self.pending):
            if rng.random() < 0.5:
                self.stale.pop(sector, None)
        self.pending.clear()

    def write_back(self, rng: random.Random, share: float) -> None:
        """Bring a random part to the disk, as the system does by itself at any time."""
        if self._before_truncation is not None:
            return
        for sector in sorted(self.pending):
            if rng.random() < share:
                del self.pending[sector]
                self.stale.pop(sector, None)
                self.durable_size = max(self.durable_size, min(self.size, (sector + 1) * SECTOR))

    def power_cut(self, rng: random.Random, keep: float) -> None:
        """Become what the disk holds: of what was pending each sector survives or not."""
        saved = self._before_truncation
        if saved is not None and rng.random() < 0.5:
            self.content = bytearray(saved.content)
            self.size, self.durable_size = saved.size, saved.durable_size
            self.stale, self.pending = saved.stale, saved.pending
        for sector in sorted(self.stale):
            chosen = self.stale[sector]
            versions = self.pending.get(sector)
            if versions and rng.random() < keep:
                chosen = versions[-1] if rng.random() < 0.8 else rng.choice(versions)
            self._reach((sector + 1) * SECTOR)
            self.content[sector * SECTOR : (sector + 1) * SECTOR] = chosen
        size = self._surviving_size(rng, keep)
        del self.content[size:]
        self.size = self.durable_size = size
        self.allocated = min(self.allocated, size)
        self.stale.clear()
        self.pending.clear()
        self._before_truncation = None

    def _surviving_size(self, rng: random.Random, keep: float) -> int:
        if self.size <= self.durable_size or rng.random() < keep:
            return self.size
        if rng.random() < 0.5:
            return self.durable_size
        return rng.randint(self.durable_size, self.size)
