"""Consumers that have read what a log no longer has are told from where on (KIP-320, KIP-595)."""

import asyncio
from pathlib import Path

import pytest

from dlog.errors import FencedLeaderEpochError, OffsetOutOfRangeError
from dlog.types import LeaderEpoch
from dlog.wire import fetch_client
from dlog.wire.fetch import FetchedPartition
from tests.fakes.front import Client, Front, fetch_request, run_on, until
from tests.fakes.replica_host import append

VERSION = 12


async def fetched(
    client: Client, *entries: tuple[str, int, int], leader_epoch: int = -1, max_wait_ms: int = 0
) -> list[FetchedPartition]:
    """Fetch from topics at an offset, with the epoch of what was read last."""
    request = fetch_request(
        [
            (topic, [(0, leader_epoch, offset, last_epoch, -1, 1 << 20)])
            for topic, offset, last_epoch in entries
        ],
        max_wait_ms=max_wait_ms,
        min_bytes=1 if max_wait_ms == 0 else 1 << 20,
    )
    await client.send(fetch_client.encode_request(VERSION, 1, "test", request))
    frame = await client.receive()
    response = fetch_client.parse_response(frame, 5, len(frame), VERSION)
    return [row for _, rows in response.topics for row, _ in rows]


async def write(front: Front, topic: str, leader_epoch: int, count: int) -> None:
    """Lead in an epoch and write batches of one record."""
    partition = front.partition(topic)
    partition.lead(LeaderEpoch(leader_epoch))
    for _ in range(count):
        await append(partition, b"v")


@pytest.mark.parametrize(
    ("offset", "last_epoch", "expected"),
    [
        (5, 6, (5, 4)),  # epoch 6 was another leader's; here 5 ends at 4 and 8 begins
        (3, 4, (3, 2)),
        (4, 3, (3, 2)),
        (4, 6, (5, 4)),  # the ends are the same: what was read of epoch 6 is another thing here
        (3, 6, (5, 4)),
        (6, 9, (8, 6)),  # nobody can tell whether the reader has something of epoch 9
        (9, 8, (8, 6)),  # the end, as this node does not lead in that epoch any more
        (9, 9, (8, 6)),  # nothing was written in epoch 9
        (1, 0, (0, 0)),  # the log begins with epoch 3
        (4, 5, None),
        (2, 3, None),
        (6, 8, None),
        (6, 10, None),
        (0, 0, None),
        (4, -1, None),
    ],
)
def test_a_log_says_where_it_differs(
    tmp_path: Path, offset: int, last_epoch: int, expected: tuple[int, int] | None
) -> None:
    async def scenario() -> None:
        async with Front.open(tmp_path, ["a"]) as front:
            for epoch, count in ((3, 2), (5, 2), (8, 2), (10, 0)):
                await write(front, "a", epoch, count)
            client = await front.connect()
            (row,) = await fetched(client, ("a", offset, last_epoch))
            assert (row.error_code, row.diverging_epoch) == (0, expected)
            assert (row.records_bytes > 0) is (expected is None and offset < 6)
            assert row.high_watermark == 6
            (row,) = await fetched(client, ("a", offset, last_epoch), leader_epoch=8)
            assert row.error_code == FencedLeaderEpochError.code

    run_on(asyncio.new_event_loop, scenario())


def test_who_asks_for_what_was_deleted_hears_that_and_no_divergence(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with Front.open(tmp_path, ["a"]) as front:
            for epoch, count in ((3, 3), (6, 3), (9, 0)):
                await write(front, "a", epoch, count)
            await front.partition("a").log.trim_to(4)
            client = await front.connect()
            for last_epoch in (8, 6, 5, 3, -1):
                (row,) = await fetched(client, ("a", 2, last_epoch))
                assert (row.error_code, row.diverging_epoch) == (OffsetOutOfRangeError.code, None)

    run_on(asyncio.new_event_loop, scenario())


def test_without_an_epoch_an_offset_behind_the_end_is_out_of_range(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with Front.open(tmp_path, ["a"]) as front:
            await write(front, "a", 3, 2)
            (row,) = await fetched(await front.connect(), ("a", 9, -1))
            assert row.error_code == OffsetOutOfRangeError.code

    run_on(asyncio.new_event_loop, scenario())


def test_who_waits_for_several_logs_hears_of_the_one_that_differs(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with Front.open(tmp_path, ["a", "b"]) as front:
            await write(front, "a", 3, 5)
            await write(front, "b", 3, 0)
            client = await front.connect()
            asked = asyncio.create_task(
                fetched(client, ("a", 5, 3), ("b", 0, -1), max_wait_ms=20_000)
            )
            await until(lambda: front.fetch.parked)
            a = front.partition("a")
            a.follow(LeaderEpoch(4), OffsetOutOfRangeError("not heard by who waits here"))
            row, _ = await asked
            assert row.error_code
            await a.log.truncate_to(2)
            await write(front, "a", 6, 9)
            row, other = await fetched(client, ("a", 5, 3), ("b", 0, -1), max_wait_ms=20_000)
            assert (row.diverging_epoch, other.error_code) == ((3, 2), 0)

    run_on(asyncio.new_event_loop, scenario())
