"""The producer in hands that do odd things: nothing is lost in silence, nobody else is harmed."""

import asyncio
import random
from collections.abc import Iterator
from typing import Any

import pytest

from dlog.client.admin import Admin
from dlog.client.producing import sender_tasks
from dlog.errors import UnknownTopicOrPartitionError
from tests.daemon.process import DaemonProcess
from tests.daemon.producing import Scene, check, node_behind_port

Node = tuple[DaemonProcess, int]


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    """Give one node that runs for all tests of this file."""
    with node_behind_port(tmp_path_factory.mktemp("node")) as running:
        yield running


def test_numbers_that_make_no_sense_are_refused_at_once(node: Node) -> None:
    async def work(scene: Scene) -> None:
        for wrong in (
            {"linger_ms": float("nan")},
            {"block_ms": float("nan")},
            {"delivery_timeout_ms": float("nan")},
            {"request_timeout_ms": 1 << 31},
            {"batch_bytes": 1 << 31, "memory_bytes": 1 << 32},
        ):
            with pytest.raises(ValueError, match=next(iter(wrong))):
                scene.producer(**wrong)

    check(node, "numbers", work)


def test_what_is_no_name_of_a_topic_harms_no_other_caller(node: Node) -> None:
    async def work(scene: Scene) -> None:
        names: tuple[Any, ...] = (None, 5, b"names", "\ud800")
        async with scene.producer() as producer:
            good, *bad = await asyncio.gather(
                producer.write(scene.topic, b""),
                *(producer.write(name, b"") for name in names),
                return_exceptions=True,
            )
            assert not isinstance(good, BaseException), good
            assert all(isinstance(each, TypeError | ValueError) for each in bad), bad
            with pytest.raises(UnknownTopicOrPartitionError):
                await producer.write("nobody-made-it", b"")

    check(node, "names", work)


def test_headers_that_can_be_read_once_are_refused(node: Node) -> None:
    """The record may need a second attempt, which would find none."""

    async def work(scene: Scene) -> None:
        async with scene.producer() as producer:
            for _ in range(2):
                once: Any = ((name, b"") for name in "ab")
                with pytest.raises(TypeError, match="sequence"):
                    await producer.write(scene.topic, b"", headers=once)
            await producer.write(scene.topic, b"", headers=[("a", b""), ("b", b"")])
        (record,) = await scene.read()
        assert record.headers == (("a", b""), ("b", b""))

    check(node, "headers", work)


def test_a_small_record_does_not_go_ahead_of_one_that_waits_for_memory(node: Node) -> None:
    async def work(scene: Scene) -> None:
        rng = random.Random(7)
        async with scene.producer(memory_bytes=20_000, batch_bytes=10_000) as producer:

            async def write(number: int) -> None:
                filling = bytes(rng.choice([0, 10, 3000, 8000]))
                await producer.write(scene.topic, b"%d " % number + filling)

            await asyncio.gather(*map(write, range(500)))
            assert producer.counters.memory_waits
        numbers = [int((record.value or b"").split()[0]) for record in await scene.read()]
        assert numbers == list(range(500))

    check(node, "order", work)


def test_who_waits_for_a_new_topic_goes_on_in_order(node: Node) -> None:
    async def work(scene: Scene) -> None:
        scene.topic = "later"
        async with scene.producer() as producer:
            numbers = range(100)
            sends = [
                asyncio.ensure_future(producer.write(scene.topic, b"%d" % number))
                for number in numbers
            ]
            counters = producer.cluster.counters
            asked = counters.metadata_requests
            while counters.metadata_requests < asked + 5:
                await asyncio.sleep(0)
            await Admin(producer.cluster).create_topic(scene.topic)
            await asyncio.gather(*sends)
        assert [int(record.value or b"") for record in await scene.read()] == list(numbers)

    check(node, "sooner", work)


def test_a_topic_that_is_not_there_is_told_to_all_at_once(node: Node) -> None:
    async def work(scene: Scene) -> None:
        async with (
            scene.producer() as producer,
            asyncio.timeout(2 * sender_tasks.NEW_TOPIC_PATIENCE_S),
        ):
            sends = [producer.write("nowhere", b"") for _ in range(20)]
            found = await asyncio.gather(*sends, return_exceptions=True)
        assert [type(each) for each in found] == [UnknownTopicOrPartitionError] * 20

    check(node, "somewhere", work)


def test_who_searches_for_a_topic_may_give_up(node: Node) -> None:
    async def work(scene: Scene) -> None:
        async with scene.producer() as producer:
            first, second = (
                asyncio.ensure_future(producer.write(scene.topic, b"")) for _ in range(2)
            )
            await asyncio.sleep(0)
            first.cancel()
            assert (await second).offset == 0

    check(node, "cancelled", work)


def test_who_leaves_with_an_error_gives_the_turn_on(node: Node) -> None:
    async def work(scene: Scene) -> None:
        async with scene.producer(memory_bytes=20_000, batch_bytes=10_000) as producer:
            await producer.write(scene.topic, b"")
            full = [producer.send(scene.topic, bytes(9_000)) for _ in range(5)]
            wrong = producer.send(scene.topic, bytes(9_000), partition=7)
            behind = producer.send(scene.topic, bytes(9_000))
            async with asyncio.timeout(10):
                *_, error, delivery = await asyncio.gather(
                    *full, wrong, behind, return_exceptions=True
                )
            assert isinstance(error, ValueError)
            assert not isinstance(delivery, BaseException), delivery

    check(node, "turns", work)


def test_it_does_not_begin_again(node: Node) -> None:
    async def work(scene: Scene) -> None:
        producer = scene.producer()
        async with producer:
            await producer.write(scene.topic, b"")
        with pytest.raises(RuntimeError, match="started before"):
            await producer.start()

    check(node, "again", work)
