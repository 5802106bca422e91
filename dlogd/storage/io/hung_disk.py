"""Detector of hung disks: how long an I/O may stay unanswered.

Pure: `dlogd.storage.background_tasks` looks. An I/O is timed by the looks that have seen it and by
no clock, so that a host that slept, a process that was stopped or a loop that was busy count as one
look.
"""

from collections.abc import Iterable

LOOKS = 5
"""So many looks are one timeout."""


class HangDetector:
    """What one directory had in flight at the looks so far."""

    def __init__(self) -> None:
        # The objects themselves, so that no later one can take the place of one that has ended.
        self._seen: dict[object, int] = {}

    def look(self, in_flight: Iterable[object]) -> bool:
        """Take a look; return whether something was there already LOOKS looks ago."""
        self._seen = {each: self._seen.get(each, -1) + 1 for each in in_flight}
        return any(count >= LOOKS for count in self._seen.values())
