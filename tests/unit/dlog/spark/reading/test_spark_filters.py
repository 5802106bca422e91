"""Filters that read less: what is clipped, and what Spark looks at again."""

from datetime import datetime, timedelta, timezone
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringStartsWith,
)

from dlog.spark.reading.push_filters import Kept, keep
from dlog.spark.reading.ranges import OffsetRange

PREDICATES: dict[type, Any] = {
    EqualTo: lambda each, value: each == value,
    EqualNullSafe: lambda each, value: each == value,
    GreaterThan: lambda each, value: each > value,
    GreaterThanOrEqual: lambda each, value: each >= value,
    LessThan: lambda each, value: each < value,
    LessThanOrEqual: lambda each, value: each <= value,
    In: lambda each, value: each in value,
}
NUMBERS = st.integers(-2, 12)
COMPARED = st.sampled_from([EqualTo, GreaterThan, GreaterThanOrEqual, LessThan, LessThanOrEqual])
FILTERS = st.lists(
    st.one_of(
        st.builds(
            lambda kind, column, value: kind((column,), value),
            COMPARED,
            st.sampled_from(["offset", "partition"]),
            NUMBERS,
        ),
        st.builds(
            lambda column, values: In((column,), tuple(values)),
            st.sampled_from(["offset", "partition"]),
            st.lists(NUMBERS, min_size=1, max_size=3),
        ),
        st.builds(lambda value: EqualTo(("topic",), value), st.sampled_from("tu")),
    ),
    max_size=4,
)


def narrowed(filters: list[Any]) -> tuple[Kept, list[Filter]]:
    """Return what filters keep, and those that are left to Spark."""
    kept, left = Kept(), []
    for each in filters:
        kept, is_done = keep(kept, each)
        if not is_done:
            left.append(each)
    return kept, left


def passes(each: Any, row: dict[str, Any]) -> bool:
    return bool(PREDICATES[type(each)](row[each.attribute[0]], each.value))


@given(FILTERS, st.integers(0, 3), st.integers(0, 8), st.integers(0, 8))
def test_exactly_what_the_filters_want_is_read(
    filters: list[Any], partition: int, start: int, size: int
) -> None:
    kept, left = narrowed(filters)
    whole = OffsetRange(topic="t", partition=partition, start_offset=start, end_offset=start + size)
    part = kept.clip(whole)
    read = range(part.start_offset, part.end_offset)
    for offset in range(start, start + size):
        row = {"topic": "t", "partition": partition, "offset": offset}
        if all(passes(each, row) for each in filters):
            assert offset in read
        elif all(passes(each, row) for each in left):
            assert offset not in read
    assert set(read) <= set(range(start, start + size))


def test_a_time_leaves_out_only_what_is_before_and_is_looked_at_again() -> None:
    moment = datetime(2024, 10, 4, 2, 0, 0, 1500, tzinfo=timezone(timedelta(hours=2)))
    for kind in (GreaterThan, GreaterThanOrEqual, EqualTo):
        after = kind(("timestamp",), moment)
        kept, left = narrowed([after])
        assert (kept.timestamp_ms, left) == (20_000 * 86_400_000 + 1, [after])
    kept, left = narrowed([LessThan(("timestamp",), moment), after])
    assert kept.timestamp_ms == 20_000 * 86_400_000 + 1 and len(left) == 2


def test_what_is_not_understood_is_left_to_spark() -> None:
    others: list[Filter] = [
        Not(EqualTo(("offset",), 3)),
        IsNull(("offset",)),
        StringStartsWith(("topic",), "t"),
        EqualTo(("value",), b"x"),
        EqualTo(("headers", "offset"), 3),
        EqualTo(("offset",), 1.5),
        GreaterThan(("timestamp",), datetime(2024, 1, 1)),
        IsNotNull(("key",)),
    ]
    assert narrowed(others) == (Kept(), others)
    assert narrowed([IsNotNull(("offset",)), IsNotNull(("topic",))]) == (Kept(), [])
