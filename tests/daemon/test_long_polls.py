"""Consumers that wait for long hear at once of what happens: data, a deletion, a stop."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from dlog.errors import UnknownTopicOrPartitionError
from dlog.wire import fetch_client
from tests.daemon.process import DaemonProcess, daemon
from tests.daemon.raw import Raw, client_of, comes_to_be, metric
from tests.fakes.front import FETCH_VERSION, fetch_frame, produce_frame
from tests.fakes.logs import batch_of, values_in

WAIT_MS = 300_000
PROMPT_S = 5.0
"""Much less than any of them would wait, enough for a machine that is busy."""
ENOUGH = 1 << 20  # bytes that never come


@pytest.fixture
def node(tmp_path: Path) -> Iterator[DaemonProcess]:
    with daemon(tmp_path) as process:
        process.start()
        with client_of(process) as client:
            for topic in ("t", "u"):
                client.run(lambda topic=topic: client.admin.create_topic(topic, partitions=1))  # type: ignore[misc]
        yield process
        assert "Traceback" not in process.log


def poll(node: DaemonProcess, *wanted: tuple[str, int], min_bytes: int = 1) -> Raw:
    """Send a Fetch that waits, and wait until the node has it."""
    parked = metric(node, "dlog_server_parked_fetches")
    consumer = Raw(node)
    consumer.send(
        fetch_frame(
            wanted,
            max_wait_ms=WAIT_MS,
            min_bytes=min_bytes,
            max_bytes=2 * ENOUGH,
            partition_bytes=2 * ENOUGH,
        )
    )
    assert comes_to_be(lambda: metric(node, "dlog_server_parked_fetches") == parked + 1)
    return consumer


def produce(node: DaemonProcess, topic: str, value: bytes) -> None:
    producer = Raw(node)
    producer.send(produce_frame(topic, batch_of(value, timestamp_ms=int(time.time() * 1000))))
    assert producer.produced()[1] == 0
    producer.close()


def fetched(consumer: Raw) -> dict[str, tuple[int, list[bytes]]]:
    """Return error code and values of each topic of the answer, which comes at once."""
    begin = time.monotonic()
    frame = consumer.receive()
    assert time.monotonic() - begin < PROMPT_S
    response = fetch_client.parse_response(frame, 4, len(frame), FETCH_VERSION)
    assert response.error_code == 0
    return {
        str(topic): (
            found.error_code,
            [value for _, value in values_in(bytes(frame[start : start + found.records_bytes]))],
        )
        for topic, ((found, start),) in response.topics
    }


def delete(node: DaemonProcess, topic: str) -> None:
    with client_of(node) as client:
        client.run(lambda: client.admin.delete_topic(topic))


def test_new_data_ends_the_wait(node: DaemonProcess) -> None:
    one, both = poll(node, ("t", 0)), poll(node, ("t", 0), ("u", 0))
    produce(node, "t", b"first")
    assert fetched(one) == {"t": (0, [b"first"])}
    assert fetched(both) == {"t": (0, [b"first"]), "u": (0, [])}
    assert node.stop() == 0


def test_less_data_than_wanted_does_not_end_the_wait(node: DaemonProcess) -> None:
    consumer = poll(node, ("t", 0), min_bytes=ENOUGH)
    produce(node, "t", b"first")
    consumer.sock.settimeout(1)
    with pytest.raises(TimeoutError):
        consumer.sock.recv(1)
    consumer.sock.settimeout(20)
    produce(node, "t", b"x" * (ENOUGH // 2))
    produce(node, "t", b"y" * (ENOUGH // 2))
    assert [value[:1] for value in fetched(consumer)["t"][1]] == [b"f", b"x", b"y"]
    assert node.stop() == 0


def test_a_deleted_topic_ends_the_wait(node: DaemonProcess) -> None:
    gone = UnknownTopicOrPartitionError.code
    consumers = [
        poll(node, ("t", 0)),
        poll(node, ("t", 0), min_bytes=ENOUGH),
        poll(node, ("u", 0), ("t", 0)),
    ]
    other = poll(node, ("u", 0))
    delete(node, "t")
    assert [fetched(each) for each in consumers] == [
        {"t": (gone, [])},
        {"t": (gone, [])},
        {"u": (0, []), "t": (gone, [])},
    ]
    # Who waits for another topic goes on waiting, and is served.
    produce(node, "u", b"later")
    assert fetched(other) == {"u": (0, [b"later"])}
    assert node.stop() == 0


def test_a_stop_ends_the_wait_with_what_is_there(node: DaemonProcess) -> None:
    idle = poll(node, ("t", 0))
    waiting = poll(node, ("t", 0), ("u", 0), min_bytes=ENOUGH)
    produce(node, "u", b"first")
    assert fetched_after_stop(node, idle) == {"t": (0, [])}
    assert fetched(waiting) == {"t": (0, []), "u": (0, [b"first"])}
    assert idle.is_closed() and waiting.is_closed()


def fetched_after_stop(node: DaemonProcess, consumer: Raw) -> dict[str, tuple[int, list[bytes]]]:
    begin = time.monotonic()
    assert node.stop() == 0
    assert time.monotonic() - begin < PROMPT_S
    return fetched(consumer)
