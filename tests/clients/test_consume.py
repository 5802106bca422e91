"""Where a consumer starts: earliest, latest, an offset, a time; and waiting at the end."""

import threading
import time
from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.clients.drivers.driver import TAIL_WAIT_MS, Driver, Rec, RefusedError
from tests.clients.records import STAMP_MS, check_same, numbered

OFFSET_OUT_OF_RANGE = 1


def test_from_the_middle(client: Driver, topic_name: str) -> None:
    client.create_topic(topic_name)
    # Several batches, so that the offset asked for lies inside one of them.
    for _ in range(4):
        client.produce(topic_name, numbered(25))
    written = numbered(25) * 4
    for start in (1, 24, 25, 60, 99):
        read = client.consume(topic_name, 0, start, 100 - start)
        check_same(read, written[start:], start)


def test_waiting_at_the_end(
    client: Driver, clients: Callable[[str], Driver], topic_name: str
) -> None:
    """A record that arrives while a fetch is parked is delivered at once, not at its time-out."""
    client.create_topic(topic_name)
    client.produce(topic_name, numbered(10))
    late = [Rec(key=None, value=b"late")]
    writer = threading.Timer(1, clients("confluent-kafka").produce, (topic_name, late))
    with client.tail(topic_name, 0) as read:
        writer.start()
        started = time.monotonic()
        (record,) = read(1, 20)
        waited_ms = (time.monotonic() - started) * 1000
        writer.join()
    assert record.value == b"late"
    assert record.offset == 10
    assert waited_ms < TAIL_WAIT_MS / 2


def test_nothing_new_means_waiting_not_failing(client: Driver, topic_name: str) -> None:
    client.create_topic(topic_name)
    client.produce(topic_name, numbered(3))
    assert client.consume(topic_name, 0, 3, 1, timeout_s=2) == []


def test_offsets_of_an_empty_and_of_a_filled_partition(client: Driver, topic_name: str) -> None:
    client.create_topic(topic_name)
    assert client.list_offset(topic_name, 0, "earliest") == 0
    assert client.list_offset(topic_name, 0, "latest") == 0
    client.produce(topic_name, numbered(42))
    assert client.list_offset(topic_name, 0, "earliest") == 0
    assert client.list_offset(topic_name, 0, "latest") == 42


@pytest.mark.needs("timestamps")
def test_by_timestamp(client: Driver, topic_name: str) -> None:
    client.create_topic(topic_name)
    for first in range(0, 100, 20):
        batch = [
            replace(record, timestamp_ms=STAMP_MS + (first + index) * 1000)
            for index, record in enumerate(numbered(20))
        ]
        client.produce(topic_name, batch)
    for offset in (0, 19, 20, 50, 99):
        exact_ms = STAMP_MS + offset * 1000
        assert client.list_offset(topic_name, 0, exact_ms) == offset
        assert client.list_offset(topic_name, 0, exact_ms - 1) == offset
    first_ms = STAMP_MS + 50_000
    start = client.list_offset(topic_name, 0, first_ms)
    read = client.consume(topic_name, 0, start, 50)
    assert [record.timestamp_ms for record in read] == [first_ms + n * 1000 for n in range(50)]


@pytest.mark.needs("timestamps")
def test_no_record_at_or_after_a_timestamp(client: Driver, topic_name: str) -> None:
    client.create_topic(topic_name)
    client.produce(topic_name, [Rec(key=None, value=b"x", timestamp_ms=STAMP_MS)])
    # Clients differ in how they show "none": -1, or the end.
    assert client.list_offset(topic_name, 0, STAMP_MS + 1) in (-1, 1)


@pytest.mark.needs("timestamps", "max_timestamp")
def test_the_offset_of_the_largest_timestamp(client: Driver, topic_name: str) -> None:
    client.create_topic(topic_name)
    for value, seconds in ((b"a", 1), (b"b", 9), (b"c", 5)):
        stamp_ms = STAMP_MS + seconds * 1000
        client.produce(topic_name, [Rec(key=None, value=value, timestamp_ms=stamp_ms)])
    assert client.list_offset(topic_name, 0, "max_timestamp") == 1


def test_an_offset_that_is_not_there_is_refused(client: Driver, topic_name: str) -> None:
    client.create_topic(topic_name)
    client.produce(topic_name, numbered(5))
    if client.name in ("kcat", "librdkafka-1.7"):
        # kcat's default policy is to go to the end: nothing comes, nothing fails.
        assert client.consume(topic_name, 0, 100, 1, timeout_s=3) == []
        return
    with pytest.raises(RefusedError) as caught:
        client.consume(topic_name, 0, 100, 1, timeout_s=10)
    assert caught.value.code in (OFFSET_OUT_OF_RANGE, -140, -1)
