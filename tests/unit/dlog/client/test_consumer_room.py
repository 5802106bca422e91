"""The room for what is at hand: who reads a partition no more leaves it to the others."""

import asyncio

import pytest

from dlog.client.starts import Start
from dlog.types import TopicPartition
from tests.fakes.batches import batch
from tests.fakes.log_consumers import FIRST, SECOND, THIRD, consumer, offsets, read, run
from tests.fakes.log_nodes import LogNodes


@pytest.mark.parametrize("how", ["pause", "assign"])
def test_what_is_read_no_more_leaves_its_room_to_the_others(how: str) -> None:
    starts: dict[TopicPartition, Start] = {FIRST: 0, SECOND: 0, THIRD: 9}

    async def work(servers: LogNodes) -> None:
        room = 2 * sum(len(each) for _, _, each in servers.logs[0].batches)
        limits = {"max_prefetch_bytes": room, "partitions": list(starts), "start": starts}
        async with consumer(servers, **limits) as reader:
            cursors = reader._reading.fetcher.cursors
            while sum(cursor.buffered_bytes for cursor in cursors.values()) < room:
                await asyncio.sleep(0.001)
            await asyncio.sleep(0.1)  # what was asked for beside that has been answered
            if how == "pause":
                reader.pause(FIRST, SECOND)
            else:
                await reader.assign([THIRD])
            servers.logs[2].append(batch(9))
            servers.notify()
            assert offsets(await reader.poll(timeout_ms=5000), 2) == [9, 10, 11]
            if how == "pause":
                reader.resume()
                records = await read(reader, 18)
                assert offsets(records, 0) == offsets(records, 1) == list(range(9))

    run(work, partitions=3)
