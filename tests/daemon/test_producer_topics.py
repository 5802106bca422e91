"""The producer on a real `dlogd`: topics made anew, their own acks, blocks left by an error."""

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest

from dlog.client.admin import Admin
from dlog.client.blocking import Producer as BlockingProducer
from dlog.client.futures import RefusedError, UnknownOutcomeError
from dlog.errors import UnknownTopicOrPartitionError
from tests.daemon.process import DaemonProcess
from tests.daemon.producing import OPTIONS, POLICY, Scene, check, node_behind_port

Node = tuple[DaemonProcess, int]


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    """Give one node that runs for all tests of this file."""
    with node_behind_port(tmp_path_factory.mktemp("node")) as running:
        yield running


async def remake(scene: Scene, partitions: int) -> None:
    async with Admin(scene.proxy.address) as admin:
        await admin.delete_topic(scene.topic)
        await admin.create_topic(scene.topic, partitions=partitions)


def test_a_topic_that_is_made_anew_with_fewer_partitions(node: Node) -> None:
    async def work(scene: Scene) -> None:
        async with scene.producer() as producer:
            for partition in range(3):
                await producer.write(scene.topic, b"old", partition=partition)
            await remake(scene, 1)
            gone = await producer.send(scene.topic, b"gone", partition=2)
            with pytest.raises((RefusedError, UnknownOutcomeError)):
                await gone
            written = [await producer.write(scene.topic, b"%d" % n, b"%d" % n) for n in range(30)]
            assert [each.offset for each in written] == list(range(30))
            with pytest.raises(ValueError, match="has partitions 0 to 0"):
                await producer.send(scene.topic, b"", partition=2)
        assert [record.value for record in await scene.read()] == [b"%d" % n for n in range(30)]

    check(node, "anew", work, partition_count=3)


def test_each_topic_has_its_own_default_of_acks(node: Node) -> None:
    async def work(scene: Scene) -> None:
        async with Admin(scene.proxy.address) as admin:
            for name in ("leader", "all"):
                await admin.create_topic(name, partitions=1, configs={"ack.default": name})
        async with scene.producer() as producer:
            topics = (scene.topic, "leader", "all", scene.topic)
            sent = [await producer.send(topic, b"") for topic in topics]
            assert [(await each).offset for each in sent] == [-1, 0, 0, -1]
        async with scene.producer(idempotent=True) as producer:
            with pytest.raises(ValueError, match=f"needs acks; the default of {scene.topic} is"):
                await producer.send(scene.topic, b"")
            await producer.write("all", b"")
        async with scene.producer(acks="all") as producer:
            assert (await producer.write(scene.topic, b"")).offset == 2

    check(node, "own-acks", work, configs={"ack.default": "none"})


class Left(Exception):  # noqa: N818
    """Ends a block."""


async def leave_by_error(scene: Scene, sent: list[Any]) -> None:
    with pytest.raises(Left):
        async with scene.producer(abandon_ms=50) as producer:
            await fill(scene, producer, sent)
            raise Left


async def leave_by_cancelling(scene: Scene, sent: list[Any]) -> None:
    is_filled = asyncio.Event()

    async def work() -> None:
        async with scene.producer(abandon_ms=50) as producer:
            await fill(scene, producer, sent)
            is_filled.set()
            await asyncio.Event().wait()

    task = asyncio.ensure_future(work())
    await is_filled.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def fill(scene: Scene, producer: Any, sent: list[Any]) -> None:
    """Write one record, and have one on the wire and one waiting, which nobody will answer."""
    sent.append(await producer.send(scene.topic, b"0"))
    await sent[0]
    scene.proxy.swallow()
    before = producer.counters.batches_sent
    sent.append(await producer.send(scene.topic, b"1"))
    while producer.counters.batches_sent == before:
        await asyncio.sleep(0.001)
    scene.proxy.refuse()
    sent.append(await producer.send(scene.topic, b"2", partition=1))


@pytest.mark.parametrize("leave", [leave_by_error, leave_by_cancelling])
def test_who_leaves_by_an_error_does_not_wait_for_the_delivery_timeout(
    node: Node,
    caplog: pytest.LogCaptureFixture,
    leave: Callable[[Scene, list[Any]], Awaitable[None]],
) -> None:
    """The time-out of `check` is below the 120 s; what was lost is told and logged."""

    async def work(scene: Scene) -> None:
        sent: list[Any] = []
        async with asyncio.timeout(60):
            await leave(scene, sent)
        assert [each.done() for each in sent] == [True] * 3
        assert sent[0].written().offset == 0
        assert isinstance(sent[1].outcome(), UnknownOutcomeError)
        assert isinstance(sent[2].outcome(), RefusedError | UnknownOutcomeError)
        lines = [line for line in caplog.messages if line.startswith("Gave up a batch")]
        assert len(lines) == 2

    check(node, leave.__name__, work, partition_count=2)


def test_who_leaves_by_an_error_gets_written_what_can_be(node: Node) -> None:
    async def work(scene: Scene) -> None:
        with pytest.raises(Left):
            async with scene.producer(linger_ms=10_000, abandon_ms=60_000) as producer:
                delivery = await producer.send(scene.topic, b"0")
                raise Left
        assert delivery.written().offset == 0

    check(node, "left", work)


def test_who_leaves_a_blocking_producer_by_an_error(node: Node) -> None:
    async def work(scene: Scene) -> None:
        loop = asyncio.get_running_loop()
        address = str(scene.proxy.address)
        given: dict[str, Any] = {"policy": POLICY, "connection": OPTIONS, "abandon_ms": 50}

        def leave() -> Any:
            with BlockingProducer(address, rng=random.Random(1), **given) as producer:
                producer.write(scene.topic, b"0")
                loop.call_soon_threadsafe(scene.proxy.stall)
                sent.append(producer.send(scene.topic, b"1"))
                raise KeyboardInterrupt

        sent: list[Any] = []
        with pytest.raises(KeyboardInterrupt):
            async with asyncio.timeout(60):
                await asyncio.to_thread(caught, leave)
        assert sent[0].done()

    def caught(leave: Callable[[], Any]) -> None:
        leave()

    check(node, "blocking", work)


def test_a_bug_in_an_errand_ends_what_waits_for_it(
    node: Node, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work(scene: Scene) -> None:
        async def broken(_node_id: int) -> Any:
            raise KeyError("a bug")

        async with scene.producer() as producer:
            with monkeypatch.context() as patched:
                patched.setattr(producer.cluster, "connection", broken)
                delivery = await producer.send(scene.topic, b"0")
                with pytest.raises(RefusedError, match="KeyError: 'a bug'"):
                    await delivery
            assert (await producer.write(scene.topic, b"1")).offset == 0
        assert any("Background task failed" in line for line in caplog.messages)

    check(node, "bug", work)


def test_a_bug_in_a_look_up_is_told_to_who_waits_for_it(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work(scene: Scene) -> None:
        async def broken(_topics: Any) -> Any:
            raise KeyError("a bug")

        async with scene.producer() as producer:
            with monkeypatch.context() as patched:
                patched.setattr(producer.cluster._lookup, "ask", broken)
                with pytest.raises(KeyError):
                    await producer.send(scene.topic, b"0")
            await producer.write(scene.topic, b"1")
            with pytest.raises(UnknownTopicOrPartitionError):
                await producer.cluster.metadata("nowhere")

    check(node, "look-up", work)
