"""Heads of batches that lie, on a real daemon: retention and searches by time go by records.

Of many clients no head says the largest timestamp: sarama up to 1.45.0 leaves it at -1.
"""

import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from dlog.batch.header import decode_header, verify_crc
from dlog.client.cluster import partition_calls
from dlog.compression import Codec
from dlog.errors import InvalidRecordError
from tests.daemon.process import DaemonProcess, daemon
from tests.daemon.raw import Raw, client_of, comes_to_be
from tests.fakes.batches import timed, with_head
from tests.fakes.front import fetch_frame, produce_frame

NEWEST = -3
CONFIG = "retention.check.interval: 50ms\n"


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaemonProcess]:
    folder: Path = tmp_path_factory.mktemp("heads")
    with daemon(folder, CONFIG) as process:
        process.start()
        yield process
        assert process.stop() == 0
        assert "Traceback" not in process.log


def create(node: DaemonProcess, name: str, **configs: str) -> None:
    settings = {key.replace("_", "."): value for key, value in configs.items()}
    with client_of(node) as client:
        client.run(lambda: client.admin.create_topic(name, partitions=1, configs=settings))


def produce(node: DaemonProcess, topic: str, data: bytearray, acks: int = -1) -> tuple[int, int]:
    """Return error code and base offset."""
    connection = Raw(node)
    try:
        connection.send(produce_frame(topic, bytes(data), acks=acks))
        _, code, base_offset, *_ = connection.produced()
        return code, base_offset
    finally:
        connection.close()


def stored(node: DaemonProcess, topic: str) -> bytes:
    connection = Raw(node)
    try:
        connection.send(fetch_frame([(topic, 0)], max_wait_ms=1000))
        code, data = connection.fetched()
        assert code == 0
        return data
    finally:
        connection.close()


def found_at(node: DaemonProcess, topic: str, *times_ms: int) -> list[tuple[int, int]]:
    """Return (offset, timestamp) for each time."""
    with client_of(node) as client:

        async def look() -> list[tuple[int, int]]:
            leader = await client.cluster.leader(topic, 0)
            return [
                (await partition_calls.list_offsets(leader, topic, {0: each}))[0]
                for each in times_ms
            ]

        return client.run(look)


def log_start(node: DaemonProcess, topic: str) -> int:
    return found_at(node, topic, -2)[0][0]


def now_ms() -> int:
    return int(time.time() * 1000)


@pytest.mark.parametrize("codec", list(Codec))
@pytest.mark.parametrize("claim", ["none", "zero", "first", "ahead"])
def test_searches_by_time_find_records_whatever_the_head_says(
    node: DaemonProcess, claim: str, codec: Codec
) -> None:
    topic, now = f"searched-{claim}-{codec.name}", now_ms()
    times = (now - 5000, now - 3000, now - 4000)
    claims = {"none": -1, "zero": 0, "first": times[0], "ahead": now + 1000}
    create(node, topic)
    lying = with_head(timed(*times, codec=codec), max_timestamp_ms=claims[claim])
    assert produce(node, topic, lying) == (0, 0)
    asked = (now - 5000, now - 3500, NEWEST, now - 2999)
    expected = [(0, now - 5000), (1, now - 3000), (1, now - 3000), (-1, -1)]
    assert found_at(node, topic, *asked) == expected
    data = stored(node, topic)
    header = decode_header(data)
    if codec is Codec.NONE:
        assert header.max_timestamp_ms == now - 3000
    assert verify_crc(data, 0, header.batch_bytes)


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.GZIP])
def test_a_crash_changes_nothing_of_that(tmp_path: Path, codec: Codec) -> None:
    now = now_ms()
    times = (now - 5000, now - 3000, now - 4000)
    with daemon(tmp_path, CONFIG) as process:
        process.start()
        create(process, "t")
        lying = with_head(timed(*times, codec=codec), max_timestamp_ms=-1)
        assert produce(process, "t", lying) == (0, 0)
        process.signal(signal.SIGKILL)
        process.wait()
        process.start()
        expected = [(1, now - 3000), (1, now - 3000)]
        assert found_at(process, "t", now - 3500, NEWEST) == expected


@pytest.mark.parametrize("codec", list(Codec))
def test_retention_by_time_goes_by_the_records(node: DaemonProcess, codec: Codec) -> None:
    now = now_ms()
    kept, due, ahead = (f"{name}-{codec.name}" for name in ("kept", "due", "due-too"))
    for topic, retention in ((kept, "600000"), (due, "1000"), (ahead, "1000")):
        create(node, topic, retention_ms=retention)
    young = timed(now, now, codec=codec)
    assert produce(node, kept, with_head(young, max_timestamp_ms=0)) == (0, 0)
    old = timed(now - 5000, now - 3000, now - 4000, codec=codec)
    for topic, claim in ((due, -1), (ahead, now + 3_000_000)):
        assert produce(node, topic, with_head(old, max_timestamp_ms=claim)) == (0, 0)
        assert comes_to_be(lambda topic=topic: log_start(node, topic) == 3)  # type: ignore[misc]
    # Once more: the round of checks that was under way has ended.
    assert produce(node, due, with_head(old, max_timestamp_ms=-1)) == (0, 3)
    assert comes_to_be(lambda: log_start(node, due) == 6)
    assert log_start(node, kept) == 0


@pytest.mark.parametrize("count", [1, 3])
def test_a_wrong_count_of_records_is_refused(node: DaemonProcess, count: int) -> None:
    topic = f"counted-{count}"
    create(node, topic)
    whole = timed(now_ms(), now_ms())
    lying = with_head(whole, record_count=count, last_offset_delta=count - 1)
    assert produce(node, topic, lying) == (InvalidRecordError.code, -1)
    packed = with_head(timed(now_ms(), now_ms(), codec=Codec.GZIP), attributes=0)
    assert produce(node, topic, packed) == (InvalidRecordError.code, -1)
    assert produce(node, topic, whole) == (0, 0)
    with client_of(node) as client:

        async def read() -> int:
            leader = await client.cluster.leader(topic, 0)
            return (await partition_calls.fetch(leader, topic, 0, 0)).high_watermark

        assert client.run(read) == 2
