"""The blocking producer against a real `dlogd`: threads, memory, time, the end."""

import contextlib
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from dlog.batch.decoding import decode_records
from dlog.batch.records import Record
from dlog.client.blocking import BlockingClient, Producer
from dlog.client.cluster.partition_calls import fetch
from dlog.client.futures import BufferFullError, RefusedError, UnknownOutcomeError, WrittenSpan
from dlog.client.retry import RetryPolicy
from dlog.errors import DlogError, RecordTooLargeError
from dlog.transport import Address, ConnectionOptions
from tests.daemon.process import DaemonProcess, daemon

POLICY = RetryPolicy(base_s=0.001, cap_s=0.05, deadline_s=5.0)
OPTIONS = ConnectionOptions(request_timeout_s=0.5, connect_timeout_s=0.5)


class Bench:
    """A node with one topic, and a blocking client beside the producer."""

    def __init__(self, node: DaemonProcess, topic: str) -> None:
        self.node = node
        self.address = Address.parse(node.status()["listeners"][0])
        self.topic = topic
        self.client = BlockingClient([self.address])
        configs = {"retention.ms": "-1"}  # records have timestamps of any time
        self.client.run(
            lambda: self.client.admin.create_topic(topic, partitions=1, configs=configs)
        )

    def producer(self, **options: object) -> Producer:
        given = {"policy": POLICY, "connection": OPTIONS, "request_timeout_ms": 500} | options
        return Producer(str(self.address), **given)  # type: ignore[arg-type]

    def read(self) -> list[Record]:
        async def work() -> list[Record]:
            found: list[Record] = []
            while True:
                leader = await self.client.cluster.leader(self.topic, 0)
                fetched = await fetch(leader, self.topic, 0, len(found), max_wait_ms=0)
                found += decode_records(fetched.records, len(found))
                if len(found) >= fetched.high_watermark:
                    return found

        return self.client.run(work)


def offsets_of(span: WrittenSpan) -> range:
    return range(span.base_offset, span.base_offset + len(span.indexes))


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaemonProcess]:
    folder: Path = tmp_path_factory.mktemp("node")
    with daemon(folder) as process:
        process.start()
        yield process


@pytest.fixture
def bench(node: DaemonProcess, request: pytest.FixtureRequest) -> Iterator[Bench]:
    threads = threading.active_count()
    made = Bench(node, request.node.name[:100])
    yield made
    made.client.close()
    assert threading.active_count() == threads


def test_records_are_written(bench: Bench) -> None:
    with bench.producer(compression="zstd") as producer:
        assert producer.write(bench.topic, b"0", timestamp_ms=7) == (0, 0, 7)
        delivery = producer.send(bench.topic, b"1", b"key", [("h", b"v")])
        many = producer.send_many(bench.topic, [b"%d" % n for n in range(2, 3000)])
        assert delivery.result().offset == 1
        assert [offset for span in many.result() for offset in offsets_of(span)] == [
            *range(2, 3000)
        ]
        assert many.done()
        producer.send_many(bench.topic, [Record(None, b"3000", (), 1)])
        producer.send(bench.topic, b"3001")
        producer.flush()
        assert producer.counters.records_written == 3002
        last = producer.send(bench.topic, b"3002")
        with pytest.raises(TypeError, match="result"):
            last.__await__()
    assert last.done()
    assert [record.value for record in bench.read()] == [b"%d" % n for n in range(3003)]


def test_many_threads_share_a_producer(bench: Bench) -> None:
    with bench.producer(batch_bytes=500, memory_bytes=3000) as producer:

        def write(writer: int) -> None:
            for number in range(300):
                delivery = producer.send(bench.topic, b"%d" % number, b"%d" % writer)
                if number % 50 == 0:
                    delivery.result(30)
            producer.send_many(
                bench.topic, [b"%d" % n for n in range(300, 400)], [b"%d" % writer] * 100
            )

        threads = [threading.Thread(target=write, args=(each,)) for each in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        producer.flush()
        assert producer.counters.memory_waits
    read = bench.read()
    for writer in range(6):
        mine = [int(record.value or b"") for record in read if record.key == b"%d" % writer]
        assert mine == list(range(400))


def test_a_node_that_is_silent(bench: Bench) -> None:
    bounds = {"memory_bytes": 2000, "batch_bytes": 1000, "block_ms": 50}
    with bench.producer(delivery_timeout_ms=600, **bounds) as producer:
        producer.write(bench.topic, b"0")
        bench.node.signal(19)  # SIGSTOP
        try:
            delivery = producer.send(bench.topic, b"1")
            with pytest.raises(TimeoutError):
                delivery.result(0.01)
            with pytest.raises(BufferFullError):
                producer.send_many(bench.topic, [b"x" * 100] * 100)
            with pytest.raises(RecordTooLargeError):
                producer.send(bench.topic, b"x" * 5000)
            with pytest.raises(UnknownOutcomeError):
                delivery.result(30)
            late = producer.send_many(bench.topic, [b"2"])
            with pytest.raises((RefusedError, UnknownOutcomeError)):
                late.result(30)
        finally:
            bench.node.signal(18)  # SIGCONT
    assert bench.read()[0].value == b"0"


def test_the_end(bench: Bench) -> None:
    producer = bench.producer()
    with pytest.raises(DlogError, match="not open"):
        producer.send(bench.topic, b"")
    with producer, pytest.raises(RuntimeError):
        producer.start()
    producer.close()
    for call in (producer.send, producer.write, producer.send_many):
        with pytest.raises(DlogError, match="not open"):
            call(bench.topic, b"")  # type: ignore[operator]


def test_two_threads_may_end_it(bench: Bench) -> None:
    with bench.producer() as producer:
        delivery = producer.send(bench.topic, b"0")
        threads = [threading.Thread(target=producer.close) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
    assert delivery.result(0).offset == 0


def test_a_cluster_that_is_not_there(bench: Bench) -> None:
    policy = RetryPolicy(base_s=0.001, cap_s=0.005, deadline_s=0.05)
    with pytest.raises(DlogError), Producer("127.0.0.1:1", policy=policy):
        pass
    producer = Producer("127.0.0.1:1", policy=policy, acks="all", block_ms=50)
    with producer, pytest.raises(DlogError):
        producer.send(bench.topic, b"")
    with pytest.raises(DlogError):  # and not that its thread cannot be started twice
        failing = Producer("127.0.0.1:1", policy=policy)
        with contextlib.suppress(DlogError):
            failing.start()
        failing.start()


def test_a_forked_process_is_told_that_it_has_none(bench: Bench) -> None:
    """The thread that sends is not there: nothing must be taken over, nothing waits for ever."""
    with bench.producer(linger_ms=10_000) as producer:
        delivery = producer.send(bench.topic, b"0")
        child = os.fork()
        if child == 0:
            code = 1
            try:
                calls = (
                    lambda: producer.send(bench.topic, b"1"),
                    lambda: producer.send_many(bench.topic, [b"1"]),
                    lambda: delivery.result(5),
                    lambda: producer.flush(5),
                )
                refusals = 0
                for call in calls:
                    try:
                        call()
                    except DlogError as error:
                        refusals += "start another" in str(error)
                producer.close(1)
                code = 0 if refusals == len(calls) else 2
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert producer.write(bench.topic, b"2").offset == 1
    assert delivery.result(0).offset == 0
