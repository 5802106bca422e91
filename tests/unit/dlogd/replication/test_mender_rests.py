"""A mender where nobody has what is needed: how often it tries, and what happens meanwhile."""

import asyncio
import errno
from collections.abc import AsyncIterator
from typing import Any, cast

import pytest

from dlog.errors import BrokerNotAvailableError
from dlog.types import NodeId, PartitionId, TopicId
from dlogd.metadata.state.image import ClusterImage
from dlogd.replication import replica_repair as mender_module
from dlogd.replication.partition.partition import Partition
from dlogd.replication.replica_repair import REST_S_MAX, ReplicaRepair
from dlogd.storage.log.partition_log import PartitionLog
from dlogd.storage.segment.segment import SegmentState
from tests.fakes.faults import DiskFault
from tests.fakes.logs import LogHost, append_waiting, run_virtual

PLACES = 20
KEY = TopicId(int=1), PartitionId(0)


class Damaged:
    """What a mender looks at of a partition."""

    is_cutting = False

    def __init__(self, log: PartitionLog) -> None:
        self.log = log


async def _rolled(host: LogHost | None = None) -> PartitionLog:
    plog = await (host or LogHost()).open()
    for _ in range(PLACES + 1):
        await append_waiting(plog, b"x" * 100)
    await plog.flush()
    plog.roll()
    while plog.segments[0].state is not SegmentState.SEALED:
        await asyncio.sleep(0.01)
    return plog


def test_many_places_are_tried_no_more_often_than_one() -> None:
    """Each that was noted had all of them tried once more in ten minutes, from every node."""

    async def scenario() -> None:
        plog = await _rolled()
        loop = asyncio.get_running_loop()
        partition = cast("Partition", Damaged(plog))
        asked: list[float] = []

        def image() -> ClusterImage:
            asked.append(loop.time())
            return ClusterImage()

        mender = ReplicaRepair(NodeId(1), {KEY: partition}, image, cast("Any", None), loop)
        task = asyncio.ensure_future(mender.run())
        plog.damage.on_note = lambda: mender.on_damage(KEY)
        for number in range(PLACES):
            plog.damage.note(plog.segments[0].path, number, number, number + 1, number + 1)
            await asyncio.sleep(1)
        assert len(asked) >= PLACES, "each at once"
        asked.clear()
        await asyncio.sleep(10 * REST_S_MAX)
        assert 9 * PLACES <= len(asked) <= 11 * PLACES
        task.cancel()

    run_virtual(scenario)


def test_what_is_deleted_while_a_node_is_asked_needs_no_mending(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The next node was asked for a place below the log's start, and the mender ended."""
    monkeypatch.setattr(mender_module, "sources", lambda *_: [NodeId(2), NodeId(3)])

    async def scenario() -> None:
        plog = await _rolled()
        asked = []

        async def read(node_id: NodeId, *_: object) -> AsyncIterator[bytes]:
            asked.append(node_id)
            await plog.trim_to(5)
            raise BrokerNotAvailableError("It is away")
            yield b""

        partition = cast("Partition", Damaged(plog))
        loop = asyncio.get_running_loop()
        mender = ReplicaRepair(NodeId(1), {KEY: partition}, ClusterImage, read, loop)
        task = asyncio.ensure_future(mender.run())
        plog.damage.on_note = lambda: mender.on_damage(KEY)
        plog.damage.note(plog.segments[0].path, 0, 3, 5, 100)
        await asyncio.sleep(2 * REST_S_MAX)
        assert not task.done() and asked == [2]
        task.cancel()

    run_virtual(scenario)


def test_a_log_that_begins_anew_while_a_node_is_asked_has_no_segment_to_look_at(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The mender ended by it, and nothing of this node was mended any more."""
    monkeypatch.setattr(mender_module, "sources", lambda *_: [NodeId(2)])

    async def scenario() -> None:
        host = LogHost()
        plog = await _rolled(host)
        damaged = Damaged(plog)
        asked: list[int] = []
        anew: list[asyncio.Future[None]] = []

        async def read(*place: int) -> AsyncIterator[bytes]:
            asked.append(place[3])
            if not anew:
                fault = DiskFault(("create",), errno.ENOSPC, path_part="leader-epochs")
                host.machine.disks["/data"].faults.append(fault)
                damaged.is_cutting = True
                anew.append(asyncio.ensure_future(plog.start_at(30)))
                while plog.segments:
                    await asyncio.sleep(0.01)
            raise BrokerNotAvailableError("It is away")
            yield b""

        loop = asyncio.get_running_loop()
        mender = ReplicaRepair(
            NodeId(1), {KEY: cast("Partition", damaged)}, ClusterImage, cast("Any", read), loop
        )
        for first in (3, 7):
            plog.damage.note(plog.segments[0].path, first, first, first + 1, first + 1)
        task = asyncio.ensure_future(mender.run())
        mender.on_damage(KEY)
        await asyncio.sleep(1)
        assert not plog.segments and not task.done()
        host.machine.disks["/data"].heal()
        await anew[0]
        damaged.is_cutting = False
        await asyncio.sleep(2 * REST_S_MAX)
        assert not task.done() and asked == [3] and not plog.damage.places
        task.cancel()

    run_virtual(scenario)
