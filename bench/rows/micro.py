"""Rows of single parts of dlogd, called in a process of their own, as ratios to a CRC."""

import itertools
import shutil

from bench.arena import Arena
from bench.rows.row import Numbers, Row, Target

PARTS = "dlog-parts"
MIB = 1 << 20


class WalkRow(Row):
    """The walk of a leader over the records of a plain batch before the append."""

    contenders = (PARTS,)

    def __init__(self, name: str, title: str, records: int, value_bytes: int) -> None:
        self.name, self.title = name, title
        self._records, self._value_bytes = records, value_bytes
        # A pass over lengths must stay cheaper than the checksum that goes over each byte.
        self.targets = (Target(metric="crc_ratio", ours=PARTS, theirs=None, at_most=1),)

    def open(self, arena: Arena, contender: str) -> None:
        """Nothing has to run."""

    def run(self, arena: Arena, contender: str) -> Numbers:
        """Walk for a while."""
        batch = ("--records", self._records, "--value-bytes", self._value_bytes)
        return arena.program("walk", *batch, "--seconds", arena.pick(3, 1))


class SegmentTimesRow(Row):
    """What it costs to learn the timestamps of a segment, and a search in one that is written."""

    contenders = (PARTS,)

    def __init__(self, name: str, title: str, codec: str, records: int) -> None:
        self.name, self.title = name, title
        self._batch = ("--codec", codec, "--records", records)
        self._numbers = itertools.count()

    def open(self, arena: Arena, contender: str) -> None:
        """Nothing has to run."""

    def run(self, arena: Arena, contender: str) -> Numbers:
        """Fill a fresh segment and learn it."""
        folder = arena.folder / f"log-{next(self._numbers)}"
        size = arena.pick(256, 16) * MIB
        try:
            where = ("--folder", folder, "--bytes", size)
            return arena.program("segment_times", *where, *self._batch)
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def rows() -> list[Row]:
    """Return the rows of this kind."""
    return [
        WalkRow("walk-100", "the walk over plain records, 100 bytes, batches of 160", 160, 100),
        WalkRow("walk-1k", "the same, 1-KiB records, batches of 16", 16, 1024),
        WalkRow("walk-1k-large", "the same, batches of 1,000", 1000, 1024),
        SegmentTimesRow(
            "segment-times",
            "times of a segment by its records, 100 bytes, batches of 160",
            "none",
            160,
        ),
        SegmentTimesRow("segment-times-large", "the same, batches of 1,000", "none", 1000),
        SegmentTimesRow("segment-times-zstd", "the same, zstd, batches of 160", "zstd", 160),
        SegmentTimesRow(
            "segment-times-large-zstd", "the same, zstd, batches of 1,000", "zstd", 1000
        ),
    ]
