"""Replication that does not stop, burn or crawl (L3, L4, L5, L7, L9), nor is felt.

Nor does who reads from a follower stop with it.
"""

import asyncio
import json
import random
import signal
import time

from dlog.batch.header import iter_headers
from dlog.client.admin import Admin, Resource
from dlog.client.consumer import Consumer
from tests.cluster.nodes import LOOK_S, Node, cpu_s
from tests.cluster.replica_logs import folder_of
from tests.cluster.senders import Manner, Own, Rdk, SendLog
from tests.cluster.stage import PATIENCE_S, Log, Stage, kill, standing_still, start
from tests.histories.files import Recorder

LEASE_S = 3.0


def test_l3_a_hung_leader_stops_nobody_elses_followers(stage: Stage) -> None:
    """One node leads a log of which another has a replica; that one leads a log of its own. The
    first stands still, and the second log does not notice.
    """

    async def story(stage: Stage) -> None:
        a, b, _ = stage.nodes(1, 2, 3)
        hung = await stage.topic((1, 2, 3))
        other = await stage.topic((2, 3))
        await hung.write(b"warm")
        await other.write(b"warm")
        with standing_still(a):
            longest_s = 0.0
            for number in range(40):
                begun_s = time.monotonic()
                await other.send(b, b"%d" % number)
                longest_s = max(longest_s, time.monotonic() - begun_s)
                await asyncio.sleep(0.05)
            assert longest_s < 2.5, longest_s  # less than its lease
        await hung.until_whole()

    stage.play(story)


def test_l4_a_lasting_error_costs_little(stage: Stage) -> None:
    """Two nodes of three are dead: the one that is left looks for them again and again, leads what
    it may, and hardly uses its processor.
    """

    async def story(stage: Stage) -> None:
        a, b, c = stage.nodes(1, 2, 3)
        logs = [await stage.topic((1, 2, 3)) for _ in range(5)]
        for each in logs:
            await each.write(b"warm")
        await kill(a, b)
        await logs[-1].until(lambda view: view.leader == -1 or view.isr == (3,))
        await asyncio.sleep(1)
        assert c.process is not None
        used_s = cpu_s(c.process.pid)
        await asyncio.sleep(4)
        used_s = cpu_s(c.process.pid) - used_s
        assert used_s < 1.0, used_s
        await start(a, b)
        for each in logs:
            await each.until_whole()

    stage.play(story)


def reload_with(stage: Stage, node: Node, **changes: str) -> None:
    """Let a node run on with other settings."""
    named = {key.replace("_", "."): value for key, value in changes.items()}
    debug = {"log.level": "debug"}
    node.write_config({**stage.cluster.overrides_of(node), **debug, **named})
    node.signal(signal.SIGHUP)


def refusals(node: Node) -> int:
    """Return how often a follower's log has not taken what its leader sent."""
    return node.log.count("Could not append replicated records ")


def test_l4_nor_does_a_replica_that_takes_nothing(stage: Stage) -> None:
    """A follower's disk has no room, and its leader lives: it is asked seldom for what would be
    sent in vain.
    """

    async def story(stage: Stage) -> None:
        a, b, c = stage.nodes(1, 2, 3)
        logs = [await stage.topic() for _ in range(5)]
        reload_with(stage, c, disk_reserve_bytes="100TiB")
        try:
            for each in logs:
                while 3 in (await each.view()).isr:
                    await each.write(b"not at c")
            attempts, begun_s = refusals(c), time.monotonic()
            await asyncio.sleep(4)
            attempts, waited_s = refusals(c) - attempts, time.monotonic() - begun_s
            print(f"{attempts} attempts of {len(logs)} logs in {waited_s:.1f} s")
            assert attempts <= len(logs) * waited_s
        finally:
            reload_with(stage, c)
        for each in logs:
            await each.until_whole()
            await each.until_same([a, b, c])

    stage.play(story)


def test_l5_a_large_batch_does_not_jam_the_log(stage: Stage) -> None:
    """A batch larger than anything that is fetched at once, with small ones before and behind it,
    also for a replica that has to catch up.
    """

    async def story(stage: Stage) -> None:
        a, b, c = stage.nodes(1, 2, 3)
        log = await stage.topic(max_message_bytes="8000000")
        large = random.Random(5).randbytes(6_000_000)
        await kill(c)
        for value in (b"small", large, b"small", large, b"small"):
            await log.send(a, value, timeout_ms=20_000)
        await start(c)
        await log.until_whole()
        await log.until_same([a, b, c])
        assert await log.values() == [b"small", large, b"small", large, b"small"]

    stage.play(story)


def test_l7_what_followers_fetch_is_nothing_for_the_metadata(stage: Stage) -> None:
    """Hundreds of acknowledged records: the image of the metadata is the one from before."""

    async def story(stage: Stage) -> None:
        (a,) = stage.nodes(1)
        log = await stage.topic()
        await log.write(b"warm")  # a block of producer ids is a change
        before = await stage.cluster.until_equal()
        for number in range(300):
            await log.send(a, b"%d" % number)
        assert await stage.cluster.until_equal() == before

    stage.play(story)


async def watermark_at(node: Node, log: Log) -> int:
    """Return the high watermark that a node knows, -1 without one, or while it does not answer."""
    try:
        # /metrics may be a second old.
        code, page = await node.page(f"/digest?topic={log.topic}&partition=0")
    except (OSError, TimeoutError):
        return -1
    return int(json.loads(page)["high_watermark"]) if code == 200 else -1


def test_l9_followers_know_the_high_watermark(stage: Stage) -> None:
    """Nothing is written any more, and all followers know soon that everything is safe. So the next
    leader shows it at once.
    """

    async def story(stage: Stage) -> None:
        a, b, c = stage.nodes(1, 2, 3)
        log = await stage.topic()
        values = [b"%d" % number for number in range(20)]
        await log.write(*values)
        async with asyncio.timeout(5):
            while [await watermark_at(each, log) for each in (a, b, c)] != [20, 20, 20]:
                await asyncio.sleep(0.05)
        await kill(a)
        await log.until(lambda view: view.leader in (2, 3))
        assert await log.values() == values

    stage.play(story)


def sequences(node: Node, log: Log) -> dict[int, list[tuple[int, int, int]]]:
    """Return epoch, base sequence and count of the batches in a log, by producer id."""
    found: dict[int, list[tuple[int, int, int]]] = {}
    folder = folder_of([node.data], log.key)
    assert folder is not None
    for path in sorted(folder.glob("*.log")):
        content = path.read_bytes()
        for _, head in iter_headers(content, 0, len(content.rstrip(b"\0"))):
            if head.producer_id >= 0:
                batch = (head.producer_epoch, head.base_sequence, head.record_count)
                found.setdefault(head.producer_id, []).append(batch)
    return found


def test_producers_notice_nothing_of_a_follower_that_catches_up(stage: Stage) -> None:
    """A node was down while much was written. While it catches up, slowly because replication is
    throttled on both sides, idempotent producers of two libraries are acknowledged as before: none
    hears of an error or a throttle, none numbers its batches anew.
    """

    async def story(stage: Stage) -> None:
        a, b, c = stage.nodes(1, 2, 3)
        rates = [f"{side}.replication.throttled.rate" for side in ("follower", "leader")]
        log = await stage.topic(
            follower_replication_throttled_replicas="*", leader_replication_throttled_replicas="*"
        )
        await kill(c)
        await log.until(lambda view: set(view.isr) == {1, 2})
        await log.write(*(bytes(600_000) for _ in range(8)))
        recorder = Recorder(stage.cluster.directory / "catching-up")
        told = SendLog(recorder)
        senders = [
            kind(index, Manner(idempotent=True), told, random.Random(index), [log.key], where)
            for where in [[a.client_address, b.client_address]]
            for index, kind in enumerate((Own, Rdk))
        ]
        async with Admin([a.client_address]) as admin, asyncio.TaskGroup() as tasks:
            await admin.alter_configs(Resource.BROKER, "", set_values={rates[0]: "1000"})
            for each in senders:
                tasks.create_task(each.run())
            await start(c)
            while not 0 < await watermark_at(c, log) < 8:  # it takes one large batch at a time
                await asyncio.sleep(LOOK_S)
            await admin.alter_configs(Resource.BROKER, "", set_values={rates[1]: "1000"})
            begun = told.counts.acknowledged
            while told.counts.acknowledged < begun + 300:
                told.progress.clear()
                await told.progress.wait()
            assert 0 < await watermark_at(c, log) < 8
            assert set((await log.view()).isr) == {1, 2}
            await admin.alter_configs(Resource.BROKER, "", delete_names=rates)
            await log.until_whole()
            for each in senders:
                each.stop()
        recorder.close()
        assert told.counts.reasons == {} and told.counts.refused == told.counts.unknown == 0
        await log.until_same([a, b, c])
        numbered = sequences(a, log)
        assert len(numbered) == 3  # with the one that wrote what was missed
        for batches in numbered.values():
            following = 0
            for epoch, base_sequence, count in batches:
                assert (epoch, base_sequence) == (0, following), batches
                following += count

    stage.play(story)


MISSED = 500
MISSED_BYTES = 600_000
FRAME = 50


def test_who_comes_back_with_much_to_fetch_holds_up_nobody(stage: Stage) -> None:
    """A node was down while 300 MB were written. It comes back under load, at default settings: no
    throttle spares the producers, and they are acknowledged while it is behind all the same. None
    hears of an error, and none waits for as long as a lease.
    """

    async def story(stage: Stage) -> None:
        a, b, c = stage.nodes(1, 2, 3)
        log = await stage.topic()
        await kill(c)
        await log.until(lambda view: set(view.isr) == {1, 2})
        for _ in range(MISSED // 50):  # within the memory of a producer
            await log.write(*(bytes(MISSED_BYTES) for _ in range(50)))
        told = SendLog(Recorder(stage.cluster.directory / "coming-back"))
        senders = [
            kind(index, Manner(idempotent=True), told, random.Random(index), [log.key], where)
            for where in [[a.client_address, b.client_address]]
            for index, kind in enumerate((Own, Rdk))
        ]
        behind: list[int] = []  # how many were acknowledged whenever it was seen behind
        async with asyncio.TaskGroup() as tasks:
            for each in senders:
                tasks.create_task(each.run())
            # librdkafka takes up to a second for its first record.
            sent = told.recorder.history.sends
            while len({each.client for each in sent}) < len(senders) or len(sent) < 100:
                told.progress.clear()
                await told.progress.wait()
            usual_s, told.gap_s_max = told.gap_s_max, 0.0
            await start(c)
            async with asyncio.timeout(PATIENCE_S):
                while True:
                    in_sync = (await log.view()).isr
                    at = await watermark_at(c, log)
                    if at >= MISSED:
                        break
                    # A frame is on its way at most; who is in sync is waited for.
                    assert at > MISSED - FRAME or 3 not in in_sync, (at, in_sync)
                    if at > 0:
                        behind.append(told.counts.acknowledged)
                    await asyncio.sleep(LOOK_S)
            await log.until_whole()
            for each in senders:
                each.stop()
        told.recorder.close()
        meanwhile = behind[-1] - behind[0]
        print(
            f"{MISSED * MISSED_BYTES >> 20} MiB fetched: {meanwhile} acknowledged meanwhile,"
            f" the slowest after {told.gap_s_max:.3f} s, before that {usual_s:.3f} s"
        )
        assert told.counts.reasons == {} and told.counts.refused == told.counts.unknown == 0
        assert meanwhile >= len(behind) > 2
        assert told.gap_s_max < LEASE_S
        await log.until_same([a, b, c])

    stage.play(story)


def test_a_reader_leaves_the_follower_that_has_left_the_isr(stage: Stage) -> None:
    """A consumer reads from the follower in its rack, whose disk then has no room. What is
    acknowledged without it reaches the consumer all the same, in seconds and not after minutes.
    """

    async def story(stage: Stage) -> None:
        c = stage.cluster.node(3)
        log = await stage.topic()
        async with Consumer(stage.cluster.bootstrap, log.topic, rack="rack-3") as consumer:
            found: list[bytes | None] = []

            async def until_read(count: int) -> None:
                async with asyncio.timeout(15):
                    while len(found) < count:
                        found.extend(each.value for each in await consumer.poll())

            # Its long poll at the follower is under way when that one gets nothing more.
            for number in range(100):
                await log.write(b"%d" % number)
                await until_read(number + 1)
                if consumer.counters.follower_moves:
                    break
            assert consumer.counters.follower_moves == 1
            written = len(found)
            reload_with(stage, c, disk_reserve_bytes="100TiB")
            try:
                while 3 in (await log.view()).isr:
                    await log.write(b"with or without")
                    written += 1
                await log.write(*(b"%d later" % number for number in range(20)))
                await until_read(written + 20)
                assert 3 not in (await log.view()).isr
            finally:
                reload_with(stage, c)
        await log.until_whole()

    stage.play(story)
