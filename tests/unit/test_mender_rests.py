"""How often mending is tried where nobody has what is needed."""

import asyncio
from typing import Any, cast

from dlog.types import NodeId, PartitionId, TopicId
from dlogd.metadata.image import ClusterImage
from dlogd.replication.mender import REST_S_MAX, Mender
from dlogd.replication.partition import Partition
from tests.fakes.logs import LogHost, append_waiting, run_virtual

PLACES = 20


def test_many_places_are_tried_no_more_often_than_one() -> None:
    """Each that was noted had all of them tried once more in ten minutes, from every node."""

    class Damaged:
        is_cutting = False

        def __init__(self, log: Any) -> None:
            self.log = log

    async def scenario() -> None:
        plog = await LogHost().open()
        for _ in range(PLACES + 1):
            await append_waiting(plog, b"x" * 100)
        plog.roll()
        loop = asyncio.get_running_loop()
        key = TopicId(int=1), PartitionId(0)
        partition = cast("Partition", Damaged(plog))
        asked: list[float] = []

        def image() -> ClusterImage:
            asked.append(loop.time())
            return ClusterImage()

        mender = Mender(NodeId(1), {key: partition}, image, cast("Any", None), loop)
        task = asyncio.ensure_future(mender.run())
        plog.damage.on_note = lambda: mender.on_damage(key)
        for number in range(PLACES):
            plog.damage.note(plog.segments[0].path, number, number, number + 1, number + 1)
            await asyncio.sleep(1)
        assert len(asked) >= PLACES, "each at once"
        asked.clear()
        await asyncio.sleep(10 * REST_S_MAX)
        assert 9 * PLACES <= len(asked) <= 11 * PLACES
        task.cancel()

    run_virtual(scenario)
