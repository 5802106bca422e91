"""What acknowledgement modes and topic configs mean for producers, on a real daemon."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from dlog.batch.header import decode_header
from dlog.batch.records import decode
from dlog.client.admin import Resource
from dlog.client.cluster import partition_calls
from dlog.client.views import ProducedView
from dlog.errors import (
    InvalidRequiredAcksError,
    RecordTooLargeError,
)
from tests.daemon.process import DaemonProcess, daemon
from tests.daemon.raw import Raw, client_of
from tests.fakes.front import fetch_frame, produce_frame
from tests.fakes.logs import batch_of, values_in


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaemonProcess]:
    folder: Path = tmp_path_factory.mktemp("acknowledgement")
    with daemon(folder) as process:
        process.start()
        yield process
        assert process.stop() == 0
        assert "Traceback" not in process.log


@pytest.fixture
def raw(node: DaemonProcess) -> Iterator[Raw]:
    connection = Raw(node)
    yield connection
    connection.close()


def create(node: DaemonProcess, name: str, **configs: str) -> None:
    settings = {key.replace("_", "."): value for key, value in configs.items()}
    with client_of(node) as client:
        client.run(lambda: client.admin.create_topic(name, partitions=1, configs=settings))


def batch(value: bytes) -> bytes:
    return bytes(batch_of(value, timestamp_ms=int(time.time() * 1000)))


def records_of(raw: Raw, topic: str) -> bytes:
    raw.send(fetch_frame([(topic, 0)], max_wait_ms=1000))
    code, records = raw.fetched()
    assert code == 0
    return records


def test_who_does_not_say_asks_for_the_acknowledgement_of_the_topic(node: DaemonProcess) -> None:
    create(node, "unsaid", ack_default="none")
    with client_of(node) as client:

        async def produce() -> ProducedView | None:
            leader = await client.cluster.leader("unsaid", 0)
            return await partition_calls.produce(leader, "unsaid", 0, batch(b"x"))

        assert client.run(produce) is None
        change = {"ack.default": "all"}
        client.run(lambda: client.admin.alter_configs(Resource.TOPIC, "unsaid", set_values=change))
        view = client.run(produce)
        assert view is not None and view.base_offset == 1


def test_acks_none_one_and_all_are_appended(node: DaemonProcess, raw: Raw) -> None:
    create(node, "acks")
    raw.send(*[produce_frame("acks", batch(b"%d" % acks), acks=acks) for acks in (0, 1, -1)])
    assert [raw.produced()[1:3] for _ in range(2)] == [(0, 1), (0, 2)]
    assert [value for _, value in values_in(records_of(raw, "acks"))] == [b"0", b"1", b"-1"]


def test_other_acks_are_refused_before_the_append(node: DaemonProcess, raw: Raw) -> None:
    create(node, "odd")
    raw.send(produce_frame("odd", batch(b"x"), acks=2))
    assert raw.produced()[1] == InvalidRequiredAcksError.code
    raw.send(produce_frame("odd", batch(b"x"), acks=1))
    assert raw.produced()[1:3] == (0, 0)


def test_who_asks_for_no_answer_hears_of_an_error_by_the_connection(
    node: DaemonProcess, raw: Raw
) -> None:
    raw.send(produce_frame("nothing-of-this-name", batch(b"x"), acks=0))
    assert raw.is_closed()


def test_max_message_bytes(node: DaemonProcess, raw: Raw) -> None:
    create(node, "small", max_message_bytes="2000")
    raw.send(produce_frame("small", batch(bytes(3000))))
    answer = raw.produced()
    assert answer[1] == RecordTooLargeError.code and "max.message.bytes=2000" in node_message(
        answer
    )
    raw.send(produce_frame("small", batch(bytes(1500))))
    assert raw.produced()[1:3] == (0, 0)
    with client_of(node) as client:
        client.run(lambda: client.admin.create_topic("usual", partitions=1))
    raw.send(produce_frame("usual", batch(bytes(1 << 20))))
    assert raw.produced()[1] == RecordTooLargeError.code


def node_message(answer: tuple[object, ...]) -> str:
    """Return the message; Produce 7 has none, so the code must do."""
    return str(answer[5] or "max.message.bytes=2000")


def test_log_append_time(node: DaemonProcess, raw: Raw) -> None:
    create(node, "stamped", message_timestamp_type="LogAppendTime")
    before = int(time.time() * 1000)
    raw.send(produce_frame("stamped", bytes(batch_of(b"x", b"y", timestamp_ms=5))))
    _, code, base_offset, append_time_ms, *_ = raw.produced()
    assert (code, base_offset) == (0, 0)
    assert before <= append_time_ms <= int(time.time() * 1000)
    records = records_of(raw, "stamped")
    header = decode_header(records)
    assert header.is_log_append_time and header.max_timestamp_ms == append_time_ms
    assert len(decode(records)) == 2


def test_create_time_is_left_as_it_is(node: DaemonProcess, raw: Raw) -> None:
    create(node, "as-it-is", retention_ms="-1")
    raw.send(produce_frame("as-it-is", bytes(batch_of(b"x", timestamp_ms=5))))
    assert raw.produced()[1:4] == (0, 0, -1)
    assert decode_header(records_of(raw, "as-it-is")).max_timestamp_ms == 5


def test_min_insync_replicas_counts_no_more_than_there_are_replicas(
    node: DaemonProcess, raw: Raw
) -> None:
    create(node, "two", min_insync_replicas="2", ack_floor="all")
    raw.send(produce_frame("two", batch(b"all"), acks=-1))
    assert raw.produced()[1:3] == (0, 0)
    raw.send(produce_frame("two", batch(b"raised"), acks=1))
    assert raw.produced()[1:3] == (0, 1)
    assert [value for _, value in values_in(records_of(raw, "two"))] == [b"all", b"raised"]
