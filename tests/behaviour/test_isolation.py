"""Records of transactions: what a reader sees of them, and that markers are no gaps."""

from collections.abc import Callable

import pytest

from dlog.client.consumer import Consumer
from dlog.offset_specs import Isolation
from tests.behaviour.scene import Scene, Work, read_count
from tests.behaviour.shapes import numbers_of, rows
from tests.behaviour.transactions import PATIENCE_S, transactional, write

Check = Callable[[Work], None]


async def read_to(reader: Consumer, topic: str, end: int) -> list[int]:
    """Return the numbers up to the offset `end`, by polls of both kinds in turn."""
    found: list[int] = []
    while reader.position((topic, 0)) < end:
        found += numbers_of(await reader.poll(7, timeout_ms=100))
        found += numbers_of(rows(await reader.poll_arrow(7, timeout_ms=100)))
    return found


@pytest.mark.only("kafka")
def test_only_what_was_committed_is_read(check: Check, topic_name: str) -> None:
    async def work(scene: Scene) -> None:
        await scene.create()
        bootstrap = scene.server.bootstrap
        producer = transactional(bootstrap, scene.topic)
        write(producer, scene.topic, range(10))
        producer.commit_transaction(PATIENCE_S)  # marker: 10
        producer.begin_transaction()
        write(producer, scene.topic, range(10, 20))
        producer.abort_transaction(PATIENCE_S)  # marker: 21
        producer.begin_transaction()
        write(producer, scene.topic, range(20, 30))
        producer.commit_transaction(PATIENCE_S)  # marker: 32
        producer.begin_transaction()
        write(producer, scene.topic, range(30, 40))  # open
        async with scene.producer() as plain:
            assert (await plain.write(scene.topic, b"40")).offset == 43

        async with (
            scene.consumer(isolation=Isolation.READ_COMMITTED) as careful,
            scene.consumer(isolation=Isolation.READ_UNCOMMITTED) as hasty,
        ):
            assert list((await hasty.end_offsets()).values()) == [44]
            assert await read_to(hasty, scene.topic, 44) == list(range(41))
            assert list((await careful.end_offsets()).values()) == [33]
            committed = [*range(10), *range(20, 30)]
            assert await read_to(careful, scene.topic, 33) == committed
            # The open one, and what stands behind it, is waited for.
            assert await careful.poll(timeout_ms=150) == []
            assert list((await careful.lag()).values()) == [0]
            producer.commit_transaction(PATIENCE_S)
            assert numbers_of(await read_count(careful, 11)) == list(range(30, 41))
            assert careful.counters.gaps == hasty.counters.gaps == 0
            # From the middle of what was aborted.
            await careful.seek((scene.topic, 0), 15)
            assert numbers_of(await read_count(careful, 21)) == list(range(20, 41))

    check(work)


def test_without_transactions_both_read_everything(check: Check) -> None:
    async def work(scene: Scene) -> None:
        await scene.create()
        async with scene.producer() as producer:
            await (await producer.send_many(scene.topic, [b"%d" % n for n in range(50)]))
        for isolation in Isolation:
            read = await scene.read(50, isolation=isolation)
            assert numbers_of(read) == list(range(50))

    check(work)
