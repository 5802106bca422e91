"""Whom the trouble of a producer concerns: a bug ends what needs the errand, a log stops nobody."""

import asyncio
import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from dlog.client import blocking
from dlog.client.cluster.log_lines import LOGGER
from dlog.client.futures import DeliveryError, RefusedError
from dlog.client.producer import Producer
from dlog.client.producing.partition_queue import Batch, PartitionQueue
from dlog.client.producing.producer_identity import ProducerIdentity
from dlog.errors import InvalidRecordError, NotLeaderOrFollowerError, WireError
from dlog.wire import produce
from dlog.wire.apis import ApiKey
from dlog.wire.frame import RequestHeader
from tests.fakes.harmed_cluster import POLICY, World, check

OPTIONS: dict[str, Any] = {"acks": "leader", "idempotent": False, "policy": POLICY}


def answer_with(world: World, error: type[WireError] | None = None) -> None:
    """Let node 1 answer for partition 0, and node 2 for partition 1."""
    code, offset = (0, 7) if error is None else (error.code, -1)

    def answers(node_id: int) -> Any:
        def answer(header: RequestHeader, _frame: memoryview) -> bytes:
            row = (node_id - 1, code, offset, -1, -1, None)
            topics = [("t", [row])]
            return produce.encode_response(header.api_version, header.correlation_id, topics)

        return answer

    for node_id, peer in world.nodes.peers.items():
        peer.raw[ApiKey.PRODUCE] = answers(node_id)
        peer.versions[ApiKey.PRODUCE] = (3, 9)


class _Handler(logging.Handler):
    def __init__(self, seen: list[tuple[str, bool]], lock: Any) -> None:
        super().__init__()
        self._seen = seen
        self._lock = lock

    def emit(self, record: logging.LogRecord) -> None:
        is_free = self._lock.acquire(blocking=False)
        if is_free:
            self._lock.release()
        self._seen.append((record.getMessage().partition(" key=")[0], is_free))


@contextmanager
def lines_of(lock: Any) -> Iterator[list[tuple[str, bool]]]:
    """Gather log lines, and whether another thread could have taken a lock meanwhile."""
    seen: list[tuple[str, bool]] = []
    handler, level = _Handler(seen, lock), LOGGER.level
    LOGGER.addHandler(handler)
    LOGGER.setLevel(logging.DEBUG)
    try:
        yield seen
    finally:
        LOGGER.removeHandler(handler)
        LOGGER.setLevel(level)


@pytest.mark.parametrize(
    ("error", "line"),
    [(InvalidRecordError, "Gave up a batch"), (NotLeaderOrFollowerError, "Partition call failed")],
)
def test_no_line_is_logged_while_others_cannot_send(error: type[WireError], line: str) -> None:
    async def work(world: World) -> None:
        answer_with(world, error)

        def send(address: str) -> list[tuple[str, bool]]:
            with blocking.Producer(address, delivery_timeout_ms=300, **OPTIONS) as producer:
                with lines_of(producer._lock) as seen:
                    with pytest.raises(DeliveryError):
                        producer.write("t", b"v", partition=0)
                    producer.flush()
                return seen

        seen = await asyncio.to_thread(send, str(world.proxies[1].address))
        assert any(text.startswith(line) for text, _ in seen)
        assert all(is_free for _, is_free in seen)

    check(work)


def test_who_waits_for_an_outcome_does_not_wait_for_the_log() -> None:
    class Slow(logging.Handler):
        was_told: bool | None = None

        def emit(self, record: logging.LogRecord) -> None:
            if record.getMessage().startswith("Gave up a batch"):
                self.was_told = told.wait(1.0)

    told, handler = threading.Event(), Slow()

    async def work(world: World) -> None:
        answer_with(world, InvalidRecordError)

        def send(address: str) -> None:
            with blocking.Producer(address, linger_ms=1e6, **OPTIONS) as producer:
                with pytest.raises(DeliveryError):
                    producer.write("t", b"v", partition=0)
                told.set()

        await asyncio.to_thread(send, str(world.proxies[1].address))

    LOGGER.addHandler(handler)
    try:
        check(work)
    finally:
        LOGGER.removeHandler(handler)
    assert handler.was_told


def test_a_bug_on_the_way_to_one_node_ends_no_batch_for_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def work(world: World) -> None:
        answer_with(world)
        async with Producer([world.proxies[1].address], linger_ms=1e6, **OPTIONS) as producer:
            await producer.send_many("t", [])  # knows the topic now
            connect = producer.cluster.connection
            may_fail = asyncio.Event()

            async def broken(node_id: int) -> Any:
                if node_id == 1:
                    await may_fail.wait()
                    raise KeyError("a bug")
                return await connect(node_id)

            monkeypatch.setattr(producer.cluster, "connection", broken)
            other = await producer.send("t", b"1", partition=1)
            one = asyncio.create_task(producer.write("t", b"0", partition=0))
            await asyncio.sleep(0)
            may_fail.set()
            with pytest.raises(RefusedError, match="node 1: KeyError: 'a bug'"):
                await one
            assert other.outcome() is None
            assert (await other).offset == 7

    check(work)


def test_a_bug_in_a_look_up_or_for_an_id_ends_what_needs_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def work(world: World) -> None:
        async with Producer([world.proxies[1].address], **OPTIONS) as producer:
            parts = producer._parts
            assert parts is not None
            errands = parts.sender.errands
            refused: list[tuple[str, list[str]]] = []
            queues = [PartitionQueue(name, 0, None) for name in ("t", "u")]
            queues.append(PartitionQueue("numbered", 0, ProducerIdentity()))

            def note(reason: str, needs_it: Any) -> None:
                refused.append((reason, [each.topic for each in queues if needs_it(each)]))

            async def broken(*_: object) -> Any:
                raise KeyError("a bug")

            monkeypatch.setattr(errands, "_on_refused", note)
            monkeypatch.setattr(producer.cluster, "metadata", broken)
            monkeypatch.setattr(errands, "_identify", broken)
            errands.want_leaders("u")
            errands.want_identity()
            while len(refused) < 2:
                await asyncio.sleep(0.001)
            assert sorted(refused) == [
                ("producer id: KeyError: 'a bug'", ["numbered"]),
                ("topic u: KeyError: 'a bug'", ["u"]),
            ]

    check(work)


def test_a_batch_whose_bytes_cannot_be_made_ends_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    encoded = Batch.encoded

    def fails(batch: Batch) -> bytearray:
        if batch.queue.partition == 0 and batch.order == (0,):
            raise MemoryError("no memory to compress")
        return encoded(batch)

    async def work(world: World) -> None:
        answer_with(world)
        addresses = [world.proxies[1].address]
        async with Producer(addresses, linger_ms=1e6, **OPTIONS) as producer:
            await producer.send_many("t", [])  # knows the topic now
            monkeypatch.setattr(Batch, "encoded", fails)
            other = await producer.send("t", b"1", partition=1)
            with pytest.raises(RefusedError, match="not be encoded: MemoryError"):
                await producer.write("t", b"0", partition=0)
            # The partition goes on.
            assert (await producer.write("t", b"2", partition=0)).offset == 7
            await producer.flush()
            assert (await other).offset == 7

    check(work)
