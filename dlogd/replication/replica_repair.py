"""Repair of damaged replicas, with batches of other replicas.

Told by a log's damage, which a read or the scrub has noted. The leader is asked first, then others
in the ISR; a leader asks its followers. Nobody leaves an ISR, nothing is cut, nobody is elected:
the replica lacks nothing, some of its bytes are wrong. What cannot be mended now is tried again,
ever more seldom. Owner: the event loop's thread; made by `dlogd.node.replication_setup`.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from dlog.errors import DlogError
from dlog.types import NO_NODE, NodeId, TopicId
from dlogd.metadata.state.image import ClusterImage
from dlogd.replication.partition.partition import Partition
from dlogd.replication.placement_diff import Key
from dlogd.storage.repair.segment_repair import SegmentRepair
from dlogd.storage.repair.tail_repair import TailRepair
from dlogd.storage.segment.bad_ranges import BadRange

log = logging.getLogger(__name__)

REST_S_MIN = 5.0
REST_S_MAX = 600.0


class ReadReplica(Protocol):
    """Reads batches from another node's replica, committed or not."""

    def __call__(
        self, node_id: NodeId, topic_id: TopicId, partition: int, first: int, end: int, /
    ) -> AsyncIterator[bytes]:
        """Yield record sets from the batch that holds `first` on; raise DlogError."""


@dataclass(slots=True)
class RepairCounters:
    """What happened since the start; plain values that metrics read."""

    mended_total: int = 0
    failures_total: int = 0


def sources(image: ClusterImage, node_id: NodeId, key: Key) -> list[NodeId]:
    """Return who may have good bytes of a partition, the leader first. Pure."""
    topic = image.topics_by_id.get(key[0])
    found = None if topic is None else topic.partition(key[1])
    if found is None:
        return []
    wanted = dict.fromkeys((found.leader, *found.isr))
    return [
        each
        for each in wanted
        if each not in (node_id, NO_NODE)
        and each not in found.offline
        and (node := image.nodes.get(each)) is not None
        and node.active
    ]


class ReplicaRepair:
    """One for all partitions of a node. Life: `run` as a task."""

    def __init__(
        self,
        node_id: NodeId,
        partitions: Mapping[Key, Partition],
        image: Callable[[], ClusterImage],
        read: ReadReplica,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self.counters = RepairCounters()
        self._node_id = node_id
        self._partitions = partitions
        self._image = image
        self._read = read
        self._loop = loop
        self._wanted: dict[Key, None] = {}
        self._rest_s: dict[Key, float] = {}
        self._retries: dict[Key, asyncio.TimerHandle] = {}
        self._wake = asyncio.Event()

    def on_damage(self, key: Key) -> None:
        """A partition is damaged somewhere."""
        self._wanted[key] = None
        self._wake.set()

    async def run(self) -> None:
        """Mend one place after the other, for ever."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._wanted:
                key = next(iter(self._wanted))
                del self._wanted[key]
                if await self._mend(key):
                    self._rest_s.pop(key, None)
                else:
                    self._later(key)

    def _later(self, key: Key) -> None:
        rest_s = self._rest_s.get(key, REST_S_MIN)
        self._rest_s[key] = min(rest_s * 2, REST_S_MAX)
        if (pending := self._retries.pop(key, None)) is not None:
            pending.cancel()  # else each place that was noted would have it tried once more often
        self._retries[key] = self._loop.call_later(rest_s, self.on_damage, key)

    async def _mend(self, key: Key) -> bool:
        """Mend what can be mended of a partition; return whether that was all."""
        partition = self._partitions.get(key)
        if partition is None or not partition.log.is_working:
            return True
        is_whole = True
        for place in partition.log.damage.places:
            if partition.is_cutting or not partition.log.is_working:
                # Since another place was mended: a log that begins anew has no segment meanwhile.
                return False
            if place.next_offset <= partition.log.segments[0].base_offset:
                partition.log.damage.forget_place(place)
            elif place.next_offset > partition.log.log_start_offset:
                # Else nobody needs it; whoever reads behind it passes it over.
                is_whole = await self._mend_place(partition, key, place) and is_whole
        return is_whole

    async def _mend_place(self, partition: Partition, key: Key, place: BadRange) -> bool:
        plog = partition.log
        if plog.segment_of(place.first_offset) is plog.active:
            plog.roll()  # it can be mended when it is closed
        for node_id in sources(self._image(), self._node_id, key):
            if place.next_offset <= plog.log_start_offset:
                return True  # deleted while another node was asked
            try:
                first = max(place.first_offset, plog.log_start_offset)
                mending = (
                    SegmentRepair(plog, place)
                    if first == place.first_offset
                    else TailRepair(plog, place, first)
                )
                async for data in self._read(node_id, key[0], key[1], first, place.next_offset):
                    await mending.take(data)
                    if mending.is_whole:
                        break
                await mending.finish()
            except (DlogError, OSError) as error:
                self.counters.failures_total += 1
                log.warning(
                    "Could not repair damaged log partition=%s offset=%d from_node=%d error=%s",
                    plog.topic_partition,
                    place.first_offset,
                    node_id,
                    error,
                )
                continue
            self.counters.mended_total += 1
            log.warning(
                "Repaired damaged log file=%s position=%d bytes=%d offset=%d from_node=%d",
                place.path,
                place.position,
                place.end_position - place.position,
                place.first_offset,
                node_id,
            )
            return True
        return False
