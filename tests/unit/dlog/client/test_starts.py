"""Where reading begins: what callers may say, and what is asked for it."""

from datetime import UTC, datetime, timedelta, timezone

import pytest

from dlog.client.starts import Start, Timestamp, needs_earliest, place, query_timestamp
from dlog.offset_specs import EARLIEST, LATEST


@pytest.mark.parametrize(
    ("start", "query"),
    [
        ("earliest", EARLIEST),
        ("latest", LATEST),
        (0, None),
        (2**63 - 1, None),
        (-5, LATEST),
        (Timestamp(1234), 1234),
        (datetime(1970, 1, 1, 0, 0, 1, 500_999, tzinfo=UTC), 1500),
        (datetime(1970, 1, 1, 2, 0, 1, tzinfo=timezone(timedelta(hours=2))), 1000),
    ],
)
def test_what_is_asked(start: Start, query: int | None) -> None:
    assert query_timestamp(start) == query


@pytest.mark.parametrize(
    "start",
    ["first", "", True, 2**63, -(2**63), 1.5, None, datetime(2026, 1, 1)],
)
def test_what_is_no_start(start: Start) -> None:
    with pytest.raises(ValueError, match=r"start|offset|time zone"):
        query_timestamp(start)


def test_times_before_1970_are_refused() -> None:
    with pytest.raises(ValueError, match="not a time since 1970"):
        Timestamp(-1)
    with pytest.raises(ValueError, match="not a time since 1970"):
        query_timestamp(datetime(1969, 12, 31, tzinfo=UTC))


def test_counting_back_from_the_end_stops_at_the_beginning() -> None:
    assert needs_earliest(-3)
    assert not needs_earliest(3)
    assert not needs_earliest("earliest")
    assert place(-3, 100, 10) == 97
    assert place(-300, 100, 10) == 10
    assert place(7, 100, 10) == 7
    assert place("latest", 100, 10) == 100
