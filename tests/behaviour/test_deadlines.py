"""Every call ends in time, whatever is lost; records end as written, refused or unknown."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from dlog.client.consumer import Consumer
from dlog.client.futures import (
    BufferFullError,
    Delivery,
    RefusedError,
    UnknownOutcomeError,
    Written,
)
from dlog.client.retry import RetryPolicy
from dlog.errors import DlogError, TransportError
from dlog.transport import ConnectionOptions
from tests.behaviour.harms import BREAKS, heal
from tests.behaviour.scene import Scene, behind_proxy, play
from tests.behaviour.servers import TestedServer
from tests.behaviour.shapes import numbers_of
from tests.fakes.proxy import Direction, Proxy

DEADLINE_MS = 600
BRIEF = RetryPolicy(
    base_s=0.002, cap_s=0.05, deadline_s=DEADLINE_MS / 1000, lookup_timeout_s=0.2, patience_s=0.1
)
OPTIONS = ConnectionOptions(request_timeout_s=0.2, connect_timeout_s=0.2)
HANGS_S = 15.0
"""Nothing here has a deadline anywhere near this."""

Harmed = Callable[[Scene, Proxy], Awaitable[None]]


def run(server: TestedServer, topic: str, work: Harmed) -> None:
    """Run a test behind a proxy, with a topic of one partition."""

    async def main() -> None:
        async with behind_proxy(server, topic) as scene:
            assert scene.proxy is not None
            await scene.create()
            await work(scene, scene.proxy)

    play(main)


async def read_all(scene: Scene) -> list[int]:
    """Return the numbers in the log now."""
    async with scene.consumer() as reader:
        (end,) = (await reader.end_offsets()).values()
        found: list[int] = []
        while reader.position((scene.topic, 0)) < end:
            found += numbers_of(await reader.poll(timeout_ms=None))
        return found


@pytest.mark.parametrize("harm", ["black hole", "refusal", "stall", "half open"])
def test_no_call_outlives_its_deadline(server: TestedServer, topic_name: str, harm: str) -> None:
    brief = {"policy": BRIEF, "connection": OPTIONS}

    async def work(scene: Scene, proxy: Proxy) -> None:
        producer = scene.producer(
            **brief, request_timeout_ms=200, delivery_timeout_ms=DEADLINE_MS, block_ms=DEADLINE_MS
        )
        reader = scene.consumer(**brief)
        async with producer, reader, scene.admin(**brief) as admin:
            await producer.write(scene.topic, b"0")
            assert numbers_of(await reader.poll(timeout_ms=None)) == [0]
            await admin.describe_cluster()

            BREAKS[harm](proxy)
            if harm == "half open":  # new connections are no better
                proxy.swallow()
            async with asyncio.timeout(HANGS_S):
                await asyncio.gather(
                    fails(producer.write(scene.topic, b"1")),
                    fails(producer.send("no-such-topic", b"1")),
                    fails(admin.describe_cluster()),
                    fails(admin.create_topic("x", timeout_ms=1)),
                    fails(reader.end_offsets()),
                    fails(scene.consumer(**brief).start()),
                    fails(scene.producer(**brief).start()),
                    poll_fails(reader),
                )
            # All that the harmed ones still have to do must end as well.
            async with asyncio.timeout(HANGS_S):
                await asyncio.gather(producer.close(), reader.close(), admin.close())
        await heal(proxy)
        proxy.cut(reset=True)

    async def fails(call: Awaitable[object]) -> None:
        with pytest.raises(DlogError):
            await call

    async def poll_fails(reader: Consumer) -> None:
        assert await reader.poll(timeout_ms=50) == []
        with pytest.raises(TransportError):
            while True:
                await reader.poll(timeout_ms=None)

    run(server, topic_name, work)


def test_the_three_outcomes_of_a_record(server: TestedServer, topic_name: str) -> None:
    async def work(scene: Scene, proxy: Proxy) -> None:
        async with scene.producer(
            delivery_timeout_ms=DEADLINE_MS, request_timeout_ms=200, connection=OPTIONS
        ) as producer:

            async def send(number: int) -> Delivery:
                return await producer.send(scene.topic, b"%d" % number)

            async def outcome(delivery: Delivery) -> object:
                delivery.batch.hurry()
                async with asyncio.timeout(HANGS_S):
                    await delivery.wait()
                return delivery.outcome()

            assert isinstance(await outcome(await send(0)), Written)

            # It never left: refused, and it is not there.
            BREAKS["refusal"](proxy)
            await proxy.wait_ended()
            refused = await outcome(await send(1))
            assert isinstance(refused, RefusedError)
            assert isinstance(refused.__cause__, TransportError)
            await heal(proxy)
            assert isinstance(await outcome(await send(2)), Written)

            # It arrived, and nobody said so: unknown, and it is there.
            proxy.swallow(Direction.TO_CLIENT)
            unknown = await outcome(await send(3))
            assert isinstance(unknown, UnknownOutcomeError)
            await heal(proxy)
            proxy.cut()
            assert isinstance(await outcome(await send(4)), Written)

            # It was swallowed: unknown just the same, and it is not there.
            proxy.swallow(Direction.TO_SERVER)
            assert isinstance(await outcome(await send(5)), UnknownOutcomeError)
            await heal(proxy)
            proxy.cut()
            assert isinstance(await outcome(await send(6)), Written)

            counters = producer.counters
            assert counters.records_written == 4
            assert counters.records_refused == 1
            assert counters.records_unknown == 2
        assert await read_all(scene) == [0, 2, 3, 4, 6]

    run(server, topic_name, work)


def test_closing_in_a_hurry_says_what_became_of_each(server: TestedServer, topic_name: str) -> None:
    async def work(scene: Scene, proxy: Proxy) -> None:
        producer = scene.producer(batch_bytes=200, linger_ms=60_000)
        await producer.start()
        sent = [await producer.send(scene.topic, b"0")]
        await sent[0]
        proxy.swallow(Direction.TO_SERVER)
        sent += [await producer.send(scene.topic, b"%d" % number) for number in range(1, 200)]
        async with asyncio.timeout(HANGS_S):
            await producer.close(timeout_ms=300)
        outcomes = [each.outcome() for each in sent]
        kinds = [type(each) for each in outcomes]
        assert kinds[0] is Written
        # What was on the wire is unknown, what was behind it is not.
        assert set(kinds[1:]) == {UnknownOutcomeError, RefusedError}
        assert kinds == sorted(kinds, key=[Written, UnknownOutcomeError, RefusedError].index)
        await heal(proxy)
        assert await read_all(scene) == [0]

    run(server, topic_name, work)


def test_memory_is_bounded_and_nothing_is_dropped(server: TestedServer, topic_name: str) -> None:
    memory, count = 60_000, 3_000

    async def work(scene: Scene, proxy: Proxy) -> None:
        async with scene.producer(memory_bytes=memory, batch_bytes=5_000) as producer:
            accumulator = producer._started().accumulator
            proxy.delay_s = 0.005
            deliveries = []
            for number in range(count):
                deliveries.append(await producer.send(scene.topic, b"%d" % number, b"x" * 90))
                assert accumulator.used_bytes <= memory
            assert producer.counters.memory_waits > 5
            proxy.heal()
            assert [(await each).offset for each in deliveries] == list(range(count))
            assert accumulator.used_bytes == 0
        assert await read_all(scene) == list(range(count))

    run(server, topic_name, work)


def test_full_memory_is_told_when_the_time_is_over(server: TestedServer, topic_name: str) -> None:
    memory = 20_000

    async def work(scene: Scene, proxy: Proxy) -> None:
        async with scene.producer(memory_bytes=memory, batch_bytes=2_000, block_ms=200) as producer:
            await producer.write(scene.topic, b"0")
            proxy.swallow()
            accepted = 1
            with pytest.raises(BufferFullError):
                while True:
                    await producer.send(scene.topic, b"%d" % accepted, b"x" * 90)
                    accepted += 1
            assert memory / 200 < accepted < memory / 90
            await heal(proxy)
            proxy.cut()
            async with asyncio.timeout(HANGS_S):
                await producer.flush()
            assert (await producer.write(scene.topic, b"%d" % accepted)).offset == accepted
        assert await read_all(scene) == list(range(accepted + 1))

    run(server, topic_name, work)


def test_without_idempotence_nothing_is_missing_either(
    server: TestedServer, topic_name: str
) -> None:
    """But a batch whose answer was lost may be there twice."""

    async def work(scene: Scene, proxy: Proxy) -> None:
        async with scene.producer(idempotent=False, batch_bytes=300) as producer:
            for first in range(0, 300, 100):
                sent = [
                    await producer.send(scene.topic, b"%d" % number)
                    for number in range(first, first + 100)
                ]
                sent[-1].batch.hurry()
                proxy.cut_after(Direction.TO_CLIENT, 0)
                for delivery in sent:
                    assert (await delivery).offset >= 0
        found = await read_all(scene)
        assert set(found) == set(range(300))
        assert len(found) > 300

    run(server, topic_name, work)
