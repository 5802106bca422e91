"""The pure parts of produce, consume and perf: places, line numbers, buckets, schedules."""

import math
import random
import signal
from datetime import datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlog.client.consumed import ConsumedRecord
from dlog.client.futures import BatchResult, Delivery, RefusedError, UnknownOutcomeError
from dlog.client.starts import Timestamp
from dlog.types import PartitionId, TopicPartition
from dlogctl.cluster.log_places import parse_place
from dlogctl.commands.consume import _Run
from dlogctl.interrupts import Interrupts
from dlogctl.perf.histogram import BAR_CELLS, Histogram, bars, format_latency
from dlogctl.perf.measurement import Measured, Progress
from dlogctl.perf.perf_report import marks
from dlogctl.perf.send_schedule import GROUP_RECORDS, Pace
from dlogctl.records.deliveries import SWEEP_RECORDS, Deliveries, format_lines
from dlogctl.records.record_formats import PlainLines
from tests.fakes.accumulators import Quiet

NOW_MS = 1_700_000_000_000


def batch(partition: int = 0) -> BatchResult:
    return BatchResult(partition, Quiet())


def test_places() -> None:
    assert parse_place("start", NOW_MS) == "earliest"
    assert parse_place("latest", NOW_MS) == "latest"
    assert parse_place("42", NOW_MS) == 42
    assert parse_place("-3", NOW_MS) == -3
    assert parse_place("-15min", NOW_MS) == Timestamp(NOW_MS - 900_000)
    assert parse_place("-99999d", NOW_MS) == Timestamp(0)
    assert parse_place("@7", NOW_MS) == Timestamp(7)
    assert parse_place("2023-11-14T22:13:20Z", 0) == Timestamp(1_700_000_000_000)
    local = datetime(2023, 11, 14, 12).astimezone().timestamp()
    assert parse_place("2023-11-14 12:00", 0) == Timestamp(round(local * 1000))
    for wrong in ("", "soon", "1h", "-1y", "@x", "-0", "2023-13-01"):
        with pytest.raises(ValueError, match="is not a place in a log"):
            parse_place(wrong, NOW_MS)


def test_line_numbers_are_told_as_runs() -> None:
    assert format_lines([9, 3, 4, 5]) == "3-5, 9"
    assert format_lines([1]) == "1"
    assert format_lines(range(0, 100, 2)).endswith("38, ...")


def test_lines_end_as_their_batches_do() -> None:
    deliveries = Deliveries()
    batches = [batch(0), batch(1), batch(1)]
    for line in range(1, 10):
        one = batches[line % 3]
        deliveries.add(Delivery(one, (line - 1) // 3, 0), line)
    batches[0].settle(base_offset=5)
    batches[1].settle(error=RefusedError("t-1: too large"))
    batches[2].settle(error=UnknownOutcomeError("t-1: no answer in time"))
    deliveries.finish()
    assert (deliveries.written, deliveries.refused, deliveries.unknown) == (3, 3, 3)
    assert deliveries.partitions == {0}
    assert [(each.is_unknown, each.lines) for each in deliveries.failures] == [
        (False, [1, 4, 7]),
        (True, [2, 5, 8]),
    ]


def test_a_batch_that_was_split_has_the_outcomes_of_its_parts() -> None:
    deliveries = Deliveries()
    whole, first, second = batch(), batch(), batch()
    for line in range(1, 6):
        deliveries.add(Delivery(whole, line - 1, 0), line)
    whole.split([(0, first), (2, second)])
    first.settle(base_offset=0)
    second.settle(error=RefusedError("no"))
    deliveries.finish()
    assert (deliveries.written, deliveries.refused) == (2, 3)
    assert deliveries.failures[0].lines == [3, 4, 5]


def test_what_is_written_is_forgotten_while_it_goes_on() -> None:
    deliveries = Deliveries()
    for number in range(10):
        one = batch()
        for index in range(SWEEP_RECORDS):
            deliveries.add(Delivery(one, index, 0), number * SWEEP_RECORDS + index)
        one.settle(base_offset=0)
    assert deliveries.written >= 7 * SWEEP_RECORDS
    deliveries.finish()
    assert deliveries.written == 10 * SWEEP_RECORDS


def test_a_partition_that_is_new_since_consume_began_has_nothing_for_it() -> None:
    ends = {TopicPartition("t", PartitionId(0)): 2}
    run = _Run(form=PlainLines(), delimiter=b"\n", count_max=None, counts_only=False, ends=ends)
    places = [(0, 1), (0, 2), (1, 0)]
    records = [ConsumedRecord(None, b"v", (), 0, at, "t", number) for number, at in places]
    assert [run.wanted(each) for each in records] == [True, False, False]


@given(st.lists(st.floats(1e-6, 3000), min_size=1, max_size=200), st.sampled_from([50, 90, 99.9]))
def test_percentiles_are_exact_to_one_percent(durations: list[float], percent: float) -> None:
    histogram = Histogram()
    for each in durations:
        histogram.add(each)
    durations.sort()
    exact = durations[max(1, math.ceil(len(durations) * percent / 100)) - 1]
    found = histogram.percentile(percent)
    assert exact <= found * 1.000001
    assert found <= exact * 1.01
    assert histogram.count == len(durations)
    assert math.isclose(histogram.mean_s, sum(durations) / len(durations))
    assert sum(count for _, _, count in histogram.rows(16)) == len(durations)


@given(st.lists(st.tuples(st.floats(0, 10_000), st.integers(1, 9))), st.integers(0, 5))
def test_merging_is_adding(pairs: list[tuple[float, int]], split: int) -> None:
    whole, one, two = Histogram(), Histogram(), Histogram()
    for index, (duration, count) in enumerate(pairs):
        whole.add(duration, count)
        (one if index < split else two).add(duration, count)
    one.merge(two)
    assert one.count == whole.count
    assert [one.percentile(p) for p in (1, 50, 100)] == [whole.percentile(p) for p in (1, 50, 100)]


def test_an_empty_histogram() -> None:
    empty = Histogram()
    assert empty.percentile(99) == 0.0
    assert empty.mean_s == 0.0
    assert empty.rows(10) == []
    assert bars([]) == []


def test_bars() -> None:
    rows = [(0.001, 0.002, 100), (0.002, 0.004, 0), (0.004, 0.008, 1)]
    lines = bars(rows)
    assert lines[0].endswith("100  " + "█" * BAR_CELLS)
    assert lines[1].endswith("  0")
    assert lines[2].endswith("1  ▌") or lines[2].endswith("1  ▍")
    assert all(each.isascii() for each in bars(rows, ascii_only=True))
    assert [format_latency(each) for each in (1.5, 0.0123, 2e-5)] == ["1.5 s", "12.3 ms", "20 us"]


def test_a_pace_of_a_rate() -> None:
    pace = Pace(rate=1000, records_max=12, duration_s=None)
    assert pace.next_group(0.0) == (5, 0.005)
    assert pace.next_group(0.005) == (5, 0.01)
    assert pace.next_group(7.0) == (2, 0.015)  # late: it is due when it was due
    assert pace.next_group(7.0) is None
    slow = Pace(rate=2, records_max=None, duration_s=1.2)
    assert [slow.next_group(0), slow.next_group(0), slow.next_group(0)] == [
        (1, 0.5),
        (1, 1.0),
        None,
    ]


def test_a_pace_without_a_rate() -> None:
    pace = Pace(rate=None, records_max=None, duration_s=1.0)
    assert pace.next_group(0.25) == (GROUP_RECORDS, 0.25)
    assert pace.next_group(1.0) is None


@given(st.floats(0.5, 1e5), st.integers(1, 10_000))
def test_a_pace_sends_what_was_asked_for(rate: float, records: int) -> None:
    pace = Pace(rate=rate, records_max=records, duration_s=None)
    total, last_due_s = 0, 0.0
    while (group := pace.next_group(0.0)) is not None:
        total += group[0]
        assert group[1] > last_due_s
        last_due_s = group[1]
    assert total == records
    assert last_due_s >= records / rate * 0.999


def test_a_measurement() -> None:
    now = [10.0]
    measured = Measured(clock=lambda: now[0])
    measured.start()
    now[0] = 12.0
    measured.add(10, 1 << 20, 0.5)
    measured.add(10, 1 << 20, 1.5)
    assert measured.take_recent().count == 20
    found = measured.document()
    assert (found["records"], found["records_per_s"], found["mib_per_s"]) == (20, 10.0, 1.0)
    assert found["latency_ms"]["mean"] == 1000.0
    assert found["latency_ms"]["max"] == 1500.0
    assert "latency_ms" not in Measured().document()


@pytest.mark.parametrize(
    ("ended_s", "rates"), [(0.1, [600.0]), (1.2, [100.0]), (1.8, [100.0, 75.0])]
)
def test_a_picture_shows_short_runs_and_the_ends_of_long_ones(
    ended_s: float, rates: list[float]
) -> None:
    now = [100.0]
    measured = Measured(clock=lambda: now[0])
    progress = Progress(measured, {}, total=None, quiet=True)
    measured.start()
    if ended_s > 1:
        now[0] = 101.0
        measured.add(100, 100, 0.2)
        progress.look()
    now[0] = 100.0 + ended_s
    measured.add(60, 60, 0.1)
    now[0] = 103.0
    progress.end()
    assert [rate for _, rate, _ in measured.samples] == pytest.approx(rates)
    assert all(0 < at_s <= ended_s + 1e-9 and p99_s > 0 for at_s, _, p99_s in measured.samples)


def test_percentiles_too_close_to_tell_apart_share_a_mark() -> None:
    measured = Measured()
    measured.add(500, 0, 0.1)
    measured.add(500, 0, 0.5)
    measured.take_recent()
    assert [name for _, name in marks(measured)] == ["p50", "p99, p99.9"]


def test_an_interrupt_waits_for_what_is_going_on() -> None:
    before = signal.getsignal(signal.SIGINT)
    with Interrupts() as interrupts:
        signal.raise_signal(signal.SIGINT)
        assert interrupts.count == 1
        with pytest.raises(KeyboardInterrupt), interrupts.waiting():
            raise AssertionError("not waited: the signal came before")
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGTERM)  # the second one is for whatever goes on
    assert signal.getsignal(signal.SIGINT) is before


def test_an_interrupt_ends_a_wait() -> None:
    with Interrupts() as interrupts:
        with pytest.raises(KeyboardInterrupt), interrupts.waiting():
            signal.raise_signal(signal.SIGINT)
        assert interrupts.count == 1


@pytest.mark.parametrize(("before", "count"), [(signal.SIG_DFL, 1), (signal.SIG_IGN, 0)])
def test_the_end_of_the_terminal_interrupts_unless_it_is_ignored(
    before: signal.Handlers, count: int
) -> None:
    outside = signal.signal(signal.SIGHUP, before)
    try:
        with Interrupts() as interrupts:
            signal.raise_signal(signal.SIGHUP)
        assert (interrupts.count, signal.getsignal(signal.SIGHUP)) == (count, before)
    finally:
        signal.signal(signal.SIGHUP, outside)


def test_a_random_order_of_lines_makes_the_same_runs() -> None:
    lines = list(range(10, 20))
    random.Random(1).shuffle(lines)
    assert format_lines(lines) == "10-19"
