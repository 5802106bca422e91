"""Who leads next, and what becomes of records that only the old leader had (H1, H2, H3, H7, L2)."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from dlog.client.admin import Admin, Resource
from dlog.client.admin_views import Drain, Election
from dlog.client.consumer import Consumer
from dlog.client.gaps import Gap, GapReason
from dlog.client.producer import Producer
from tests.cluster.nodes import Node
from tests.cluster.stage import Stage, kill, start


def test_h1_a_follower_that_is_ahead_of_its_leader_cuts_its_log(stage: Stage) -> None:
    """A leader takes records with acks leader that nobody else gets, and dies. The others go on
    without them. When it is back, its log has to become theirs, to the byte.
    """

    async def story(stage: Stage) -> None:
        a, b, c = stage.nodes(1, 2, 3)
        log = await stage.topic()
        await log.write(b"both 0", b"both 1")
        await kill(b, c)
        for number in range(20):
            await log.send(a, b"lonely %d" % number, acks=1)
        await kill(a)
        await start(b, c)
        await log.until(lambda view: view.leader in (2, 3))
        await log.write(b"others 0", b"others 1", b"others 2")
        await start(a)
        await log.until_whole()
        await log.write(b"all")
        expected = [b"both 0", b"both 1", b"others 0", b"others 1", b"others 2", b"all"]
        assert await log.values() == expected
        on_disk = await log.until_same([a, b, c])
        assert max(each.next_offset for each in on_disk.values()) == len(expected)

    stage.play(story)


def test_h2_followers_keep_the_offsets_that_the_leader_gave(stage: Stage) -> None:
    """A follower is killed in the middle of the writing, twice. Its files are the leader's."""

    async def story(stage: Stage) -> None:
        a, b, c = stage.nodes(1, 2, 3)
        log = await stage.topic()
        written = asyncio.Semaphore(0)
        is_enough = False

        async def write() -> int:
            """Write records until it is enough, each a batch of its own; return how many."""
            count = 0
            async with Producer(stage.cluster.bootstrap, acks="all") as producer:
                while not is_enough:
                    assert (await producer.write(log.topic, b"%d" % count)).offset == count
                    count += 1
                    written.release()
            return count

        async with asyncio.TaskGroup() as tasks:
            writing = tasks.create_task(write())
            for _ in range(2):
                for _ in range(60):
                    await written.acquire()
                assert not writing.done()
                await kill(c)
                await log.until(lambda view: 3 not in view.isr)
                await start(c)
                await log.until_whole()
            is_enough = True
        count = writing.result()
        on_disk = await log.until_same([a, b, c])
        assert [int(value or b"") for value in await log.values()] == list(range(count))
        assert len(on_disk) == count > 120
        ends = [0, *(on_disk[base].next_offset for base in sorted(on_disk))]
        assert sorted(on_disk) == ends[:-1]

    stage.play(story)


@asynccontextmanager
async def nothing_sent_to_laggards(stage: Stage) -> AsyncIterator[None]:
    """Let no leader send anything of a throttled topic to who is not in sync."""
    rate = "leader.replication.throttled.rate"
    async with Admin(stage.cluster.bootstrap) as admin:
        await admin.alter_configs(Resource.BROKER, "", set_values={rate: "0"})
    try:
        yield
    finally:
        async with Admin(stage.cluster.bootstrap) as admin:
            await admin.alter_configs(Resource.BROKER, "", delete_names=[rate])


async def until_followed(stage: Stage, leader: Node, follower: Node) -> None:
    """Return when a node follows all that another one leads and it has a replica of."""

    def is_so(statuses: list[dict[str, Any]]) -> bool:
        lags = statuses[0]["replication"]["followers"]
        (lag,) = [each for each in lags if each["node"] == follower.node_id]
        return bool(lag["following"] == lag["partitions"])

    await stage.cluster.until(is_so, [leader])


def test_h3_who_lacks_acknowledged_records_never_leads(stage: Stage) -> None:
    """One replica was away while the others acknowledged. It follows again, a few records behind
    that are not sent to it, and they go on; then those die. Rather nobody leads than one who would
    lose what was promised.
    """

    async def story(stage: Stage) -> None:
        a, b, c = stage.nodes(1, 2, 3)
        log = await stage.topic(leader_replication_throttled_replicas="*")
        values = [b"%d" % number for number in range(50)]
        await log.write(values[0])
        await kill(c)
        await log.until(lambda view: set(view.isr) == {1, 2})
        async with nothing_sent_to_laggards(stage):
            await log.write(*values[1:30])
            await start(c)
            await until_followed(stage, a, c)
            for value in values[30:]:
                await log.write(value)
            assert set((await log.view()).isr) == {1, 2}
            await kill(a, b)
            await log.until(lambda view: view.leader == -1)
            await stage.cluster.until_well(stage.nodes(3, 4, 5))
            for _ in range(10):
                await asyncio.sleep(0.2)
                assert (await log.view()).leader == -1
        await start(a, b)
        await log.until(lambda view: view.leader in (1, 2))
        assert await log.values() == values
        await log.until_whole()
        await log.until_same([a, b, c])

    stage.play(story)


def test_h7_isr_changes_are_known_whoever_leads_the_metadata(stage: Stage) -> None:
    """The leader of the topic is not the controller, and the controller changes meanwhile. An
    election after that uses the ISR as it is, not as it was.
    """

    async def story(stage: Stage) -> None:
        a, b, c = stage.nodes(1, 2, 3)
        log = await stage.topic()
        await kill(c)
        await log.until(lambda view: set(view.isr) == {1, 2})
        others = stage.nodes(1, 2, 4, 5)
        async with Admin([each.client_address for each in others]) as admin:
            await admin.transfer_controller(5)
        await log.write(b"without c")
        await kill(a)
        await log.until(lambda view: view.leader == 2)
        await start(c)
        await log.until(lambda view: set(view.isr) == {2, 3})
        await log.write(b"without a")
        await kill(b)
        await log.until(lambda view: view.leader == 3)
        await start(a)  # one alone need not know yet that the last record was acknowledged
        assert await log.values() == [b"without c", b"without a"]
        await start(b)
        await log.until_whole()
        await log.until_same([a, b, c])

    stage.play(story)


def test_l2_a_log_comes_back_with_the_replica_that_has_it(stage: Stage) -> None:
    """The only one who has everything dies: there is no candidate. Nobody has to do anything when
    it comes back.
    """

    async def story(stage: Stage) -> None:
        a, b = stage.nodes(1, 2)
        log = await stage.topic((1, 2), min_isr=1)
        await kill(b)
        await log.until(lambda view: view.isr == (1,))
        await log.write(b"only a has it")
        await kill(a)
        await log.until(lambda view: view.leader == -1)
        await start(b)
        await stage.cluster.until_well(stage.nodes(2, 3, 4, 5))
        assert (await log.view()).leader == -1
        await start(a)
        await log.until(lambda view: view.leader == 1)
        assert await log.values() == [b"only a has it"]
        await log.until_whole()

    stage.play(story)


def test_clients_follow_the_leader_that_a_refusal_names(stage: Stage) -> None:
    """An operator takes the leaders off a node. Who writes to it and who waits there for records
    goes on at the new leader without asking anybody (KIP-951).
    """

    async def story(stage: Stage) -> None:
        log = await stage.topic()
        addresses = stage.cluster.bootstrap
        async with (
            Admin(addresses) as admin,
            Producer(addresses, acks="all") as producer,
            Consumer(addresses, log.topic) as consumer,
        ):
            await producer.write(log.topic, b"before")
            assert [each.value for each in await consumer.poll(timeout_ms=None)] == [b"before"]
            await admin.drain_node(1, Drain.LEADERS)
            try:
                await log.until(lambda view: view.leader in (2, 3))
                await stage.cluster.until_equal()
                written = await producer.write(log.topic, b"after")
                assert written.offset == 1
                assert [each.value for each in await consumer.poll(timeout_ms=None)] == [b"after"]
                wrote, read = producer.cluster.counters, consumer.client_counters
                assert (wrote.leader_hints, wrote.rediscoveries) == (1, 0), wrote
                # It waited at the old leader, and may be at the next before that knows its office.
                assert read.leader_hints == 1 and read.rediscoveries <= 1, read
            finally:
                await admin.drain_node(1, Drain.NONE)
        await log.until_whole()

    stage.play(story)


def test_a_consumer_hears_of_what_an_unclean_election_has_cut(stage: Stage) -> None:
    """It has read what only the dead leader had. The next one wrote on from before that, and is
    longer by now: the consumer goes back to where the two part, and misses nothing of the new.
    """

    async def story(stage: Stage) -> None:
        a, b, c = stage.nodes(1, 2, 3)
        log = await stage.topic(min_isr=1)
        gaps: list[Gap] = []
        async with Consumer(stage.cluster.bootstrap, log.topic, on_gap=gaps.append) as consumer:

            async def read(count: int) -> list[bytes | None]:
                found: list[bytes | None] = []
                while len(found) < count:
                    found += [each.value for each in await consumer.poll(timeout_ms=None)]
                return found

            await log.write(b"both")
            await kill(b, c)
            await log.until(lambda view: set(view.isr) == {1})
            lost = [b"lost %d" % number for number in range(5)]
            for value in lost:
                await log.send(a, value)
            assert await read(6) == [b"both", *lost]
            await kill(a)
            await start(b)
            await log.until(lambda view: view.leader == -1)
            await stage.cluster.until_well(stage.nodes(2, 4, 5))
            async with Admin([each.client_address for each in stage.nodes(2, 4, 5)]) as admin:
                outcomes = await admin.elect_leaders([(log.topic, 0)], Election.UNCLEAN)
            assert list(outcomes.values()) == [None], outcomes
            new = [b"new %d" % number for number in range(20)]
            await log.write(*new)
            assert await read(20) == new
            assert [(each.reason, each.offset, each.resume_offset) for each in gaps] == [
                (GapReason.TRUNCATED, 6, 1)
            ]
        await start(a, c)
        await log.until_whole()
        assert await log.values() == [b"both", *new]

    stage.play(story)
