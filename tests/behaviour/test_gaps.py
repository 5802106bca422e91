"""Records that are gone before they were read: told, by reason and place, never jumped over."""

from collections.abc import Callable

import pytest

from dlog.client.cluster import partition_calls
from dlog.client.cluster.cluster import Cluster
from dlog.client.consumer import Consumer
from dlog.client.gaps import Gap, GapError, GapReason
from tests.behaviour.scene import Scene, Work, read_count
from tests.behaviour.shapes import numbered, numbers_of, rows

Check = Callable[[Work], None]
COUNT = 200


async def fill(scene: Scene, count: int = COUNT, *, first: int = 0, padding: int = 0) -> None:
    """Write numbers in batches of ten."""
    async with scene.producer() as producer:
        for start in range(first, first + count, 10):
            values = [b"%d" % number for number in range(start, start + 10)]
            keys = [b"x" * padding] * 10
            await (await producer.send_many(scene.topic, values, keys, partition=0))


def cluster_of(reader: Consumer) -> Cluster:
    """Return what a started consumer asks."""
    return reader._reading.cluster


async def delete_before(reader: Consumer, topic: str, offset: int) -> None:
    """Delete the records before `offset`."""
    node = await cluster_of(reader).leader(topic, 0)
    assert await partition_calls.delete_records(node, topic, {0: offset}) == {0: offset}


def test_deleted_records_are_told_of(check: Check) -> None:
    async def work(scene: Scene) -> None:
        await scene.create()
        await fill(scene)
        limits = {"max_partition_bytes": 500, "max_prefetch_bytes": 1_000}
        async with scene.consumer(**limits) as reader:
            found = numbers_of(await reader.poll(3, timeout_ms=None))
            await delete_before(reader, scene.topic, 155)
            with pytest.raises(GapError) as caught:
                while True:
                    found += numbers_of(await reader.poll(timeout_ms=None))
            # First what was at hand, then the gap, and it stays until somebody deals with it.
            gap = caught.value.gap
            assert found == list(range(gap.offset))
            assert (gap.reason, gap.resume_offset) == (GapReason.RETENTION, 155)
            assert gap.lost_count == 155 - gap.offset
            with pytest.raises(GapError):
                await reader.poll(timeout_ms=None)
            with pytest.raises(GapError):
                await reader.poll_arrow(timeout_ms=None)
            await reader.seek((scene.topic, 0), gap.resume_offset)
            assert numbers_of(await read_count(reader, 45)) == list(range(155, COUNT))

    check(work)


@pytest.mark.parametrize("way", ["poll", "arrow"])
def test_who_is_told_goes_on_behind_the_gap(check: Check, way: str) -> None:
    async def work(scene: Scene) -> None:
        await scene.create()
        await fill(scene)
        told: list[Gap] = []
        async with scene.consumer(start=0, on_gap=told.append) as reader:
            await delete_before(reader, scene.topic, 60)
            await reader.seek((scene.topic, 0), 5)
            found: list[int] = []
            while len(found) < COUNT - 60:
                if way == "poll":
                    found += numbers_of(await reader.poll(timeout_ms=None))
                else:
                    found += numbers_of(rows(await reader.poll_arrow(timeout_ms=None)))
            assert found == list(range(60, COUNT))
            (gap,) = told
            assert (gap.reason, gap.offset, gap.resume_offset) == (GapReason.RETENTION, 5, 60)
            assert reader.counters.gaps == 1

    check(work)


def test_retention_that_overtakes_a_reader_is_told_of(check: Check) -> None:
    async def work(scene: Scene) -> None:
        # Kafka's smallest segment is 1 MiB; both keep one segment at least.
        await scene.create(configs={"segment.bytes": "1048576", "retention.bytes": "1"})
        told: list[Gap] = []
        limits = {"max_partition_bytes": 2_000, "max_prefetch_bytes": 4_000}
        async with scene.consumer(on_gap=told.append, **limits) as reader:
            await fill(scene, 10, padding=100)
            found = numbers_of(await reader.poll(1, timeout_ms=None))
            await fill(scene, 400, first=10, padding=9_000)
            while not next(iter((await reader.start_offsets()).values())):
                await fill(scene, 10, first=410, padding=1)
            while not told:
                found += numbers_of(await reader.poll(timeout_ms=None))
            (gap,) = told
            assert gap.reason is GapReason.RETENTION
            assert [n for n in found if n < gap.offset] == list(range(gap.offset))
            assert found[gap.offset : gap.offset + 1] in ([], [gap.resume_offset])
            assert gap.resume_offset > gap.offset

    check(work)


def test_an_offset_beyond_the_end_is_told_of(check: Check) -> None:
    async def work(scene: Scene) -> None:
        await scene.create()
        await fill(scene, 10)
        async with scene.consumer(start=1_000) as reader:
            with pytest.raises(GapError) as caught:
                await reader.poll(timeout_ms=None)
            gap = caught.value.gap
            assert (gap.reason, gap.offset, gap.resume_offset) == (GapReason.TRUNCATED, 1_000, 10)

    check(work)


def test_another_topic_of_the_same_name_is_told_of(check: Check) -> None:
    async def work(scene: Scene) -> None:
        await scene.create()
        await fill(scene, 30)
        async with scene.consumer() as reader, scene.admin() as admin:
            assert numbers_of(await read_count(reader, 30)) == list(range(30))
            await admin.delete_topic(scene.topic)
            await scene.create()
            await fill(scene, 50)  # longer than before: no offset tells
            with pytest.raises(GapError) as caught:
                await reader.poll(timeout_ms=None)
            assert caught.value.gap.reason is GapReason.RECREATED
            await reader.seek((scene.topic, 0), "earliest")
            assert numbers_of(await read_count(reader, 50)) == list(range(50))

    check(work)


@pytest.mark.only("kafka")  # dlogd refuses compacted topics so far
def test_what_compaction_left_out_is_no_gap(check: Check) -> None:
    async def work(scene: Scene) -> None:
        await scene.create(
            configs={
                "cleanup.policy": "compact",
                "segment.bytes": "1048576",
                "min.cleanable.dirty.ratio": "0.001",
                "max.compaction.lag.ms": "1",
            }
        )
        async with scene.producer() as producer:
            for record in numbered(range(1_000)):
                await producer.send(
                    scene.topic, record.value, b"key %d" % (record.timestamp_ms % 7)
                )
            await producer.flush()
            # A segment that is closed, so that it can be compacted.
            for _ in range(3):
                await producer.write(scene.topic, b"x" * 600_000, b"other")
        while True:
            # GapError is raised here where an offset that compaction took is called a gap.
            async with scene.consumer() as reader:
                (end,) = (await reader.end_offsets()).values()
                read = []
                while reader.position((scene.topic, 0)) < end:
                    read += await reader.poll(timeout_ms=None)
            if len(read) < 1_000:
                break
        assert {each.key for each in read} > {b"key %d" % number for number in range(7)}
        assert [each.offset for each in read] == sorted({each.offset for each in read})

    check(work)
