"""Schedule of the scrub: the next closed segment, its pace, its round.

    scrub       the round that is under way or was the last, as `<field>=<number>` lines, and the
                name of the log's directory that it has come to

Pure. A round goes over the logs by name and over their segments by offset, so that a place in it
says what is left, whatever is created and deleted meanwhile. docs/formats/small-files.md.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from dlogd.storage.io import checkpoint_files
from dlogd.storage.io.checkpoint_files import MalformedFileError

KIND = "scrub"
LINES_MAX = 8

Place = tuple[str, int]
"""The name of a log's directory, and the base offset of one of its segments."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """How far a round is. Times by the wall clock, ms since the epoch."""

    started_ms: int
    ended_ms: int = 0
    """0 while it is under way."""
    log: str = ""
    offset: int = -1
    """The last segment that was read."""
    read_bytes: int = 0
    damages: int = 0

    @property
    def is_under_way(self) -> bool:
        """Whether there is something left to read, as far as is known."""
        return not self.ended_ms

    def passed(self, place: Place, size_bytes: int) -> "Round":
        """Return the round after the segment at `place`."""
        name, offset = place
        return replace(self, log=name, offset=offset, read_bytes=self.read_bytes + size_bytes)


def next_place(
    found: Round, names: Iterable[str], offsets_of: Callable[[str], Iterable[int]]
) -> Place | None:
    """Return the segment that comes next; None when the round is at its end.

    `names` of logs; `offsets_of(name)`: the base offsets of its closed segments, ascending.
    """
    ordered = sorted(names)
    for name in ordered[bisect_left(ordered, found.log) :]:
        passed = found.offset if name == found.log else -1
        for offset in offsets_of(name):
            if offset > passed:
                return name, offset
    return None


def due_ms(last: Round | None, interval_ms: int, now_ms: int) -> int:
    """Return when the next round is to begin, or to go on."""
    if last is None or last.is_under_way or last.started_ms > now_ms:
        # A clock that went back says nothing about when it was.
        return now_ms
    return last.started_ms + interval_ms


class Pace:
    """So many bytes in a second, no burst: what is not read in time is not caught up with."""

    def __init__(self) -> None:
        self._free_at_s = 0.0

    def wait_s(self, size_bytes: int, rate: int, now_s: float) -> float:
        """Return how long to rest after `size_bytes` were read, before the next."""
        self._free_at_s = max(self._free_at_s, now_s - size_bytes / rate) + size_bytes / rate
        return max(0.0, self._free_at_s - now_s)


# -- bytes


def encode(found: Round) -> bytes:
    """Return the bytes of the file."""
    return checkpoint_files.encode(
        KIND,
        f"started_ms={found.started_ms}\n"
        f"ended_ms={found.ended_ms}\n"
        f"read_bytes={found.read_bytes}\n"
        f"damages={found.damages}\n"
        f"offset={found.offset}\n"
        f"log={found.log}\n",
    )


def decode(data: bytes) -> Round:
    """Read the bytes of the file; raise MalformedFileError."""
    lines = checkpoint_files.decode(KIND, data).splitlines()[:LINES_MAX]
    fields = dict(line.partition("=")[::2] for line in lines)
    log = fields.pop("log", "")
    try:
        return Round(log=log, **{name: int(text) for name, text in fields.items()})
    except (TypeError, ValueError) as error:
        raise MalformedFileError(f"{KIND} file lacks or garbles a field: {error}") from error
