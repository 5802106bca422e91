"""Digests of replicas: equal where they hold the same, whatever their segments; else told where."""

import asyncio
import json
from typing import Any

import pytest

from dlog.errors import KafkaStorageError
from dlog.types import Offset
from dlogctl.cluster.digests import Finding, common_range, compare, findings_of_heads
from dlogd.status.http_heads import HttpError
from dlogd.storage.log.log_config import LogConfig
from dlogd.storage.log.partition_log import PartitionLog
from dlogd.storage.repair.digest import Digest, DigestWalk
from dlogd.storage.segment.segment import SegmentState
from dlogd.storage.segment.segment_names import file_name
from tests.fakes.logs import LogHost, append_waiting, batch_of, run
from tests.fakes.small_fleet import SmallFleet, tell

BATCH_BYTES = len(batch_of(b"x" * 100))
COUNT = 100


async def log_of(segment_bytes: int, count: int = COUNT) -> tuple[LogHost, PartitionLog]:
    """Return a flushed log of so many batches."""
    config = LogConfig(segment_bytes=segment_bytes, preallocate_bytes=0, index_interval_bytes=1000)
    host = LogHost(config=config)
    plog = await host.open()
    for number in range(count):
        await append_waiting(plog, b"%03d" % number + b"x" * 97)
    await plog.flush()
    while any(each.state is not SegmentState.SEALED for each in plog.segments[:-1]):
        await asyncio.sleep(0.01)
    return host, plog


def shown(digest: Digest) -> list[tuple[int, int, int, int]]:
    """Return the ranges as tuples."""
    return [(each.first_offset, each.next_offset, each.crc, each.bytes) for each in digest.ranges]


def test_the_same_records_in_other_segments_are_the_same() -> None:
    async def scenario() -> None:
        found = []
        for segment_bytes in (3000, 7000, 1 << 20):
            _, plog = await log_of(segment_bytes)
            digest = await DigestWalk(plog, 0, COUNT, step=16).run()
            assert (digest.next_offset, digest.damaged) == (COUNT, [])
            assert digest.read_bytes == COUNT * BATCH_BYTES
            found.append(shown(digest))
            again = await DigestWalk(plog, 0, COUNT, step=16).run()
            assert shown(again) == found[-1]
        assert found[0] == found[1] == found[2]
        assert [row[:2] for row in found[0]][:2] == [(0, 16), (16, 32)] and len(found[0]) == 7

    run(scenario)


def test_a_part_of_the_log_and_a_limit() -> None:
    async def scenario() -> None:
        _, plog = await log_of(5000)
        whole = shown(await DigestWalk(plog, 0, COUNT, step=10).run())
        part = shown(await DigestWalk(plog, 20, 50, step=10).run())
        assert part == whole[2:5]
        offset, pieces = 0, []
        while offset < COUNT:
            digest = await DigestWalk(plog, offset, COUNT, step=10, limit=1).run()
            assert digest.next_offset > offset
            offset = digest.next_offset
            pieces += shown(digest)
        assert sum(row[3] for row in pieces) == sum(row[3] for row in whole)

    run(scenario)


def test_other_bytes_are_other_checksums_and_bad_ones_are_damage() -> None:
    async def scenario() -> None:
        host, plog = await log_of(5000)
        good = shown(await DigestWalk(plog, 0, COUNT, step=10).run())
        file = host.directory.open(file_name(0))
        other = batch_of(b"yyy" + b"x" * 97)
        other[:8] = (12).to_bytes(8, "big")
        other[12:16] = bytes(4)
        file.pwrite(bytes(other), 12 * BATCH_BYTES)
        file.pwrite(b"\xff", 25 * BATCH_BYTES + 90)
        file.close()
        digest = await DigestWalk(plog, 0, COUNT, step=10).run()
        assert digest.damaged == [(25, 26)]
        # The node knows now, too, and does not wait for its scrub.
        (place,) = plog.damage.places
        assert (place.first_offset, place.next_offset) == (25, 26)
        assert (place.position, place.end_position) == (25 * BATCH_BYTES, 26 * BATCH_BYTES)
        differ = [n for n, row in enumerate(shown(digest)) if row != good[n]]
        assert differ == [1, 2]

    run(scenario)


def test_damage_of_the_open_segment_is_told_and_not_noted() -> None:
    """What a reader of it finds is another matter: its tail may be on its way to the disk."""

    async def scenario() -> None:
        host, plog = await log_of(1 << 20)
        file = host.directory.open(file_name(0))
        file.pwrite(b"\xff", 25 * BATCH_BYTES + 90)
        file.close()
        assert (await DigestWalk(plog, 0, COUNT).run()).damaged == [(25, 26)]
        assert not plog.damage.places

    run(scenario)


# -- comparing


def answer(*crcs: int, damaged: Any = (), error: str | None = None) -> dict[str, Any]:
    rows = [
        {"first": n * 10, "next": n * 10 + 10, "crc": crc, "bytes": 5} for n, crc in enumerate(crcs)
    ]
    return {"error": error, "next": 10 * len(crcs), "ranges": rows, "damaged": list(damaged)}


def test_what_is_deleted_meanwhile_is_no_damage() -> None:
    """It was told as damage of a good replica, with the advice to fetch that anew."""

    async def scenario() -> None:
        _, plog = await log_of(3000)
        walk = DigestWalk(plog, 0, COUNT, step=16)

        async def trim() -> None:
            while walk.found.next_offset < 40:
                await asyncio.sleep(0)
            await plog.trim_to(Offset(80))

        trimming = asyncio.ensure_future(trim())
        with pytest.raises(KafkaStorageError, match="has changed meanwhile"):
            await walk.run()
        await trimming
        with pytest.raises(KafkaStorageError, match="from 80 to 100 now"):
            await DigestWalk(plog, 40, 60).run()
        assert not walk.found.damaged and not plog.damage.places
        assert (await DigestWalk(plog, 80, COUNT).run()).damaged == []

    run(scenario)


def test_who_is_wrong() -> None:
    same = answer(1, 2, 3)
    assert compare({1: same, 2: same, 3: same}, leader=1) == []
    found = compare({1: same, 2: answer(1, 9, 8), 3: same}, leader=1)
    assert found == [Finding(node=2, what="differs", first_offset=10, next_offset=30)]
    found = compare({1: answer(1, 9, 3), 2: same, 3: same}, leader=1)
    assert [each.node for each in found] == [1], "two against the leader"
    found = compare({1: answer(1, 9, 3), 2: same}, leader=1)
    assert [each.node for each in found] == [2], "one against the leader"
    found = compare({1: same, 2: answer(0, 0, 0, damaged=[[4, 6]])}, leader=1)
    assert found == [Finding(node=2, what="damaged", first_offset=4, next_offset=6)]
    broken = {"error": "on fire"}
    assert [each.what for each in compare({1: same, 2: broken}, leader=1)] == ["failed"]
    short = answer(1, 2)
    assert {each.what for each in compare({1: same, 2: short}, leader=1)} == {"failed", "differs"}


def test_what_is_compared() -> None:
    heads: dict[int, dict[str, Any]] = {
        1: {"log_start_offset": 0, "high_watermark": 90, "error": None},
        2: {"log_start_offset": 7, "high_watermark": 100, "error": "broken"},
    }
    assert common_range(heads) == (7, 90)
    assert common_range({}) == (0, 0)
    assert [each.node for each in findings_of_heads(heads)] == [2]


# -- a node's page


def test_the_page_of_a_cluster() -> None:
    async def story(fleet: SmallFleet) -> None:
        await fleet.create("t", segment_bytes="4000")
        await fleet.produce("t", *[b"%03d" % n + b"x" * 97 for n in range(60)])
        await fleet.until_in_sync("t")
        told = []
        for node_id in (1, 2, 3):
            broker = fleet.broker(node_id)
            head = await _ask(fleet, node_id, "topic=t&partition=0")
            assert (head["log_start_offset"], head["high_watermark"]) == (0, 60)
            found = await _ask(fleet, node_id, "topic=t&partition=0&from=0&to=60&step=7")
            told.append((found["ranges"], found["next"], found["damaged"]))
            json.dumps(found)
            for query, status in (
                ("topic=no&partition=0", 404),
                ("topic=t&partition=x", 400),
                ("topic=t&partition=0&from=0&to=61", 409),
                ("", 404),
            ):
                with pytest.raises(HttpError) as caught:
                    await broker.digest(query)
                assert caught.value.status == status
        assert told[0] == told[1] == told[2]
        assert len(told[0][0]) == 9

    tell(story)


async def _ask(fleet: SmallFleet, node_id: int, query: str) -> dict[str, Any]:
    """Ask on the node's own loop."""
    loop = fleet.host(node_id).loop
    assert loop is not None
    task = loop.create_task(fleet.broker(node_id).digest(query))
    await fleet.until(task.done)
    return dict(task.result())
