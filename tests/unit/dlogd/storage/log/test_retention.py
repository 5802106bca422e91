"""Plans of retention, and the reserve of a disk."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlog.types import Offset
from dlogd.config.units import DiskReserve
from dlogd.storage.io.disk_reserve import DiskSpace
from dlogd.storage.io.files import DiskUsage
from dlogd.storage.log.retention import NO_LIMIT, RetentionPlan, plan_retention
from dlogd.storage.segment.segment_info import SegmentInfo

NOW = 1_000_000


def segments(*items: tuple[int, int]) -> list[SegmentInfo]:
    """Make segments of ten offsets each, of (size, age in ms; -1 = without timestamp)."""
    return [
        SegmentInfo(
            base_offset=i * 10,
            end_offset=(i + 1) * 10 if size else i * 10,
            size_bytes=size,
            max_timestamp_ms=NOW - age if age >= 0 else -1,
        )
        for i, (size, age) in enumerate(items)
    ]


def plan(
    found: list[SegmentInfo],
    *,
    time: int = NO_LIMIT,
    size: int = NO_LIMIT,
    end_limit: int = 1 << 40,
) -> RetentionPlan | None:
    return plan_retention(
        found,
        retention_ms=time,
        retention_bytes=size,
        end_limit=Offset(end_limit),
        timestamp_ms=NOW,
    )


def trim_to(result: RetentionPlan | None) -> int:
    return 0 if result is None else result.trim_to


@pytest.mark.parametrize(
    ("time", "size", "end_limit", "expected"),
    [
        (NO_LIMIT, NO_LIMIT, 99, 0),
        (500, NO_LIMIT, 99, 0),
        (150, NO_LIMIT, 99, 20),
        (150, NO_LIMIT, 19, 10),
        (150, NO_LIMIT, 9, 0),
        (300, NO_LIMIT, 99, 10),
        (NO_LIMIT, 100, 99, 30),
        (NO_LIMIT, 101, 99, 20),
        (NO_LIMIT, 399, 99, 0),
        (NO_LIMIT, 400, 99, 0),
        (NO_LIMIT, 300, 99, 10),
        (150, 300, 99, 20),
        (300, 101, 99, 20),
    ],
)
def test_which_segments_go(time: int, size: int, end_limit: int, expected: int) -> None:
    found = segments((100, 301), (100, 200), (100, 100), (100, 0))
    result = plan(found, time=time, size=size, end_limit=end_limit)
    assert trim_to(result) == expected
    if result is not None:
        assert not result.roll and result.segment_count == expected // 10
        assert result.size_bytes == 100 * result.segment_count
        assert result.reason


def test_the_active_segment_goes_when_all_of_it_is_due() -> None:
    result = plan(segments((10, 500), (10, 400)), time=100)
    assert result is not None and result.roll and result.trim_to == 20
    result = plan(segments((10, 500), (0, -1)), time=100)
    assert result is not None and not result.roll and result.trim_to == 10
    assert plan(segments((0, -1)), time=0, size=0) is None
    result = plan(segments((10, 0)), size=0)
    assert result is not None and result.roll
    assert plan([], time=0) is None


def test_a_young_segment_keeps_the_older_ones_behind_it() -> None:
    assert plan(segments((10, 5), (10, 500), (10, 1)), time=100) is None


def test_records_without_timestamps_go_by_the_last_write_of_their_file() -> None:
    first, *others = segments((10, -1), (10, 500), (10, 1))
    for age, expected in ((50, 0), (101, 20), (5000, 20)):
        found = [replace(first, written_ms=NOW - age), *others]
        assert trim_to(plan(found, time=100)) == expected  # whatever the later records say
    assert plan([first, *others], time=100) is None


@given(
    st.lists(st.tuples(st.integers(0, 50), st.integers(-1, 1000)), max_size=8),
    st.integers(-1, 1000),
    st.integers(-1, 300),
    st.integers(0, 100),
)
def test_plans_keep_to_the_limits(
    items: list[tuple[int, int]], time: int, size: int, end_limit: int
) -> None:
    found = segments(*items)
    result = plan(found, time=time, size=size, end_limit=end_limit)
    if result is None:
        return
    dropped, kept = found[: result.segment_count], found[result.segment_count :]
    assert result.trim_to == dropped[-1].end_offset <= end_limit
    if "time" not in result.reason:
        assert sum(segment.size_bytes for segment in kept) >= size
    if "size" not in result.reason:
        assert all(segment.max_timestamp_ms < NOW - time for segment in dropped)
    assert result.roll == (not kept)


def space(total: int, free: int, reserve: DiskReserve) -> DiskSpace:
    result = DiskSpace(reserve)
    result.measure(DiskUsage(total_bytes=total, free_bytes=free))
    return result


def test_the_reserve_refuses_before_the_disk_is_full() -> None:
    disk = space(10_000, 1_200, DiskReserve(bytes=1_000))
    assert not disk.is_low
    assert not disk.measure(DiskUsage(total_bytes=10_000, free_bytes=1_000))
    assert disk.measure(DiskUsage(total_bytes=10_000, free_bytes=999)) and disk.is_low
    assert not disk.measure(DiskUsage(total_bytes=10_000, free_bytes=0)) and disk.is_low
    assert not disk.measure(DiskUsage(total_bytes=10_000, free_bytes=1_050)) and disk.is_low
    assert disk.measure(DiskUsage(total_bytes=10_000, free_bytes=1_100)) and not disk.is_low


def test_the_reserve_can_change() -> None:
    disk = space(10_000, 1_200, DiskReserve(bytes=1_000))
    disk.reconfigure(DiskReserve(bytes=1_500))
    assert disk.is_low and disk.reserve_bytes == 1_500
    disk.reconfigure(DiskReserve(bytes=100))
    assert not disk.is_low


def test_nothing_is_refused_before_the_first_measurement() -> None:
    disk = DiskSpace(DiskReserve())
    assert not disk.is_low
    disk.reconfigure(DiskReserve(bytes=5))
    assert not disk.is_low
