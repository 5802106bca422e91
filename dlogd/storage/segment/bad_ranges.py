"""Bad ranges: damaged offsets that are refused until they are repaired.

Recovery takes a partition with damage out of service; here is what rots later, or where recovery
need not look (before the last good index entry). The rest of the log is served.
Owner: the event loop's thread.
"""

import logging
from collections.abc import Callable
from typing import NamedTuple

from dlog.errors import CorruptMessageError

log = logging.getLogger(__name__)

PLACES_MAX = 64
"""Damaged places remembered per log; the oldest is found again when it is asked for."""
REPEATS_MAX = 2
"""How often a batch is sent again from the disk before it is looked at."""
KNOWN_REPEATS_MAX = 16
"""The same for a batch whose place is known: many readers may ask for it, each once."""
VOUCHED_REPEATS = 1_000
"""How often a batch that was looked at and found good is sent before it is looked at again."""
OFFSETS_MAX = 32


class BadRange(NamedTuple):
    """Where a segment has no batch that could be served. What ends is exclusive."""

    path: str
    position: int
    end_position: int
    first_offset: int
    next_offset: int
    error: CorruptMessageError


def _ignore() -> None:
    """Nobody asked to be told."""


class BadRanges:
    """The damaged places of one log."""

    __slots__ = ("_places", "_sent", "is_watched", "on_note")

    def __init__(self) -> None:
        self._places: dict[tuple[str, int], BadRange] = {}
        self._sent: dict[int, int] = {}
        self.is_watched = False
        self.on_note: Callable[[], None] = _ignore
        """Called when a place was noted that was not known."""

    @property
    def places(self) -> list[BadRange]:
        """All that is known, in the order in which it was found."""
        return list(self._places.values())

    def note(
        self, path: str, position: int, first_offset: int, next_offset: int, end_position: int
    ) -> None:
        """There is no batch at `position`: offsets in [first, next) cannot be found.

        The next good one is at `end_position`, or the segment ends there. A place that turns out
        to be larger than it was taken for is noted anew.
        """
        key = (path, position)
        known = self._places.get(key)
        if known is not None and known.next_offset >= next_offset:
            return
        error = CorruptMessageError(
            f"{path} is damaged: no batch at position {position}, so offsets from {first_offset}"
            f" to {next_offset - 1} cannot be read"
        )
        log.error("Damaged log file=%s position=%d error=%s", path, position, error)
        while len(self._places) >= PLACES_MAX:
            del self._places[next(iter(self._places))]
        self._places[key] = BadRange(path, position, end_position, first_offset, next_offset, error)
        self.on_note()

    def check(self, offset: int) -> None:
        """Raise CorruptMessageError when `offset` lies in a damaged place."""
        if not self._places:
            return
        for place in self._places.values():
            if place.first_offset <= offset < place.next_offset:
                raise place.error.with_traceback(None)

    def is_doubtful(self, offset: int, *, is_known: bool) -> bool:
        """Count that `offset` is sent unseen; tell whether that was too often.

        A consumer that gets a batch whose length is damaged asks for it again and again.
        """
        count = self._sent.pop(offset, 0) + 1
        while len(self._sent) >= OFFSETS_MAX:
            del self._sent[next(iter(self._sent))]
        self._sent[offset] = count
        return count > (KNOWN_REPEATS_MAX if is_known else REPEATS_MAX)

    def is_suspect(self, offset: int) -> bool:
        """Whether `offset` was sent unseen too often; its batch has to be looked at as a whole."""
        if self._sent.get(offset, 0) <= REPEATS_MAX:
            return False  # still counted: who asks for it may have it located each time
        del self._sent[offset]
        return True

    def vouch(self, offset: int) -> None:
        """The batch at `offset` was looked at as a whole, and is good."""
        self._sent[offset] = -VOUCHED_REPEATS

    def forget_place(self, place: BadRange) -> None:
        """A place is whole again."""
        self._places.pop((place.path, place.position), None)
        self._sent.clear()

    def forget(self, offset: int) -> None:
        """The log was cut at `offset`: what is damaged below it still is."""
        kept = {key: place for key, place in self._places.items() if place.next_offset <= offset}
        self._places = kept
        self._sent.clear()

    def problems(self, log_start_offset: int) -> list[str]:
        """Return the damage that is still part of the log, in sentences."""
        return [
            str(place.error)
            for place in self._places.values()
            if place.next_offset > log_start_offset
        ]
