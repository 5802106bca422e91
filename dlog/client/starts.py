"""Start positions of reading, as callers give them, and the questions that they need.

Pure; `dlog.client.cluster.offset_lookup` asks, `dlog.client.consumer` takes starts from callers.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import Literal

from dlog.offset_specs import EARLIEST, LATEST

_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)  # noqa: UP017
_OFFSET_MAX = 2**63 - 1
_FORMS = 'give "earliest", "latest", an offset or a time'


@dataclass(frozen=True, slots=True)
class Timestamp:
    """The first record that is not older than this, in milliseconds since 1970 (UTC)."""

    timestamp_ms: int

    def __post_init__(self) -> None:
        if not 0 <= self.timestamp_ms <= _OFFSET_MAX:
            raise ValueError(f"{self.timestamp_ms} is not a time since 1970 in milliseconds")


Start = Literal["earliest", "latest"] | int | datetime | Timestamp
"""`"earliest"`: the first record there is. `"latest"`: what is written from now on. A number: that
offset, or when negative that many records before the end. A time: the first record that is not
older; "latest" where there is none. A datetime must say its time zone."""


def query_timestamp(start: Start) -> int | None:
    """Return what to ask of ListOffsets for `start`; None when it is an offset already.

    For a negative number this is the end; see `place`. Raises ValueError for what is no start.
    """
    if isinstance(start, bool):
        raise ValueError(f"{start!r} is not a start: {_FORMS}")
    if isinstance(start, int):
        if not -_OFFSET_MAX <= start <= _OFFSET_MAX:
            raise ValueError(f"{start} is not an offset")
        return LATEST if start < 0 else None
    if isinstance(start, Timestamp):
        return start.timestamp_ms
    if isinstance(start, datetime):
        if start.tzinfo is None:
            raise ValueError(f"{start} does not say its time zone")
        return Timestamp((start - _EPOCH) // timedelta(milliseconds=1)).timestamp_ms
    if start == "earliest":
        return EARLIEST
    if start == "latest":
        return LATEST
    raise ValueError(f"{start!r} is not a start: {_FORMS}")


def needs_earliest(start: Start) -> bool:
    """Return whether the log start offset must be known too: counting back stops there."""
    return isinstance(start, int) and start < 0


def place(start: Start, found: int, earliest: int) -> int:
    """Return the offset for `start`, given what `query_timestamp` found and the log start."""
    if isinstance(start, int):
        return max(earliest, found + start) if start < 0 else start
    return found
