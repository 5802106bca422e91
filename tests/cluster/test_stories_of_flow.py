"""Replication that does not stop, burn or crawl (L3, L4, L5, L6, L7, L9)."""

import asyncio
import random
import re
import time
from statistics import median

from dlog.client.partitions import produce
from tests.cluster.nodes import Node, cpu_s
from tests.cluster.stage import Log, Stage, connected, kill, one_record, standing_still, start

WATERMARK = re.compile(r"^dlog_partition_high_watermark\{(.*)\} (\d+)", re.MULTILINE)


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
    """The leader stands still, then is dead for good with another replica: the one that is left
    tries again and again, and hardly uses its processor.
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


def test_l6_all_is_said_when_it_is_so_and_not_at_the_next_tick(stage: Stage) -> None:
    """One record after the other with acks all: each waits for two flushes and two ways, not for
    somebody's second to be over.
    """

    async def story(stage: Stage) -> None:
        (a,) = stage.nodes(1)
        log = await stage.topic()
        took_s = []
        async with connected(a) as client:
            for number in range(60):
                begun_s = time.monotonic()
                await produce(client, log.topic, 0, one_record(b"%d" % number), acks=-1)
                took_s.append(time.monotonic() - begun_s)
        assert median(took_s) < 0.1, sorted(took_s)

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
    """Return the high watermark that a node knows, -1 without one."""
    page = (await node.page("/metrics"))[1].decode()
    for labels, value in WATERMARK.findall(page):
        if f'topic="{log.topic}"' in labels:
            return int(value)
    return -1


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
