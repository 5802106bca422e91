"""Reasons why foreign tests fail on dlog; each names the tests by a pattern (fnmatch)."""

from typing import NamedTuple


class Reason(NamedTuple):
    """Why some tests of a suite do not pass on dlog."""

    suite: str
    tests: str
    why: str


REASONS: tuple[Reason, ...] = ()
