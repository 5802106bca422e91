"""Reports to the cluster about replicas and directories of this node that are out of service.

Part of the composition: `dlogd.node.broker` makes one. What the image says is compared with what is
so, again and again: a report that failed is made anew, and one that is not needed is not made.
Leaders then move away when somebody else in the ISR lives. Owner: the event loop's thread.
"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from uuid import UUID

from dlog.types import NodeId, TopicId
from dlogd.controller.planner import grouped
from dlogd.metadata.commands.codec import PartitionSet, ReportReplicas
from dlogd.metadata.interface import Metadata
from dlogd.metadata.state.image import Applied, ClusterImage
from dlogd.replication.replica_manager import ReplicaManager
from dlogd.runtime.clock import Clock
from dlogd.runtime.tasks import Tasks
from dlogd.storage.log_manager import LogManager

log = logging.getLogger(__name__)

LOOK_S = 0.5
REPLICAS_MAX = 20_000
"""That one report names; there are as many reports as it takes, at once."""
PROPOSE_TIMEOUT_MS = 5_000

Key = tuple[TopicId, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """What is so on this node."""

    offline: frozenset[Key]  # replicas out of service; the same object until that changes
    online: Callable[[Key], bool]
    failed_directory_ids: tuple[UUID, ...]


def report(
    image: ClusterImage, node_id: NodeId, node_epoch: int, found: Findings, command_id: UUID
) -> ReportReplicas | None:
    """Return what the cluster does not know yet, None when it knows all. Pure.

    Names no more than `REPLICAS_MAX`. What is out of service comes before what is not any more.
    """
    own = image.nodes.get(node_id)
    if own is None or own.node_epoch != node_epoch:
        return None
    offline, online = [], []
    for topic in image.topics.values():
        for number, partition in enumerate(topic.partitions):
            if node_id not in partition.replicas:
                continue
            key = (topic.topic_id, number)
            known = node_id in partition.offline
            if key in found.offline and not known:
                offline.append(key)
            elif known and key not in found.offline and found.online(key):
                online.append(key)
    offline = offline[:REPLICAS_MAX]
    online = online[: REPLICAS_MAX - len(offline)]
    failed = [each for each in found.failed_directory_ids if each not in own.failed_directory_ids]
    if not offline and not online and not failed:
        return None
    return ReportReplicas(
        command_id=command_id,
        node_id=node_id,
        node_epoch=node_epoch,
        failed_directory_ids=tuple(failed),
        offline=grouped(offline),
        online=grouped(online),
    )


class OfflineReports:
    """Compares and reports. Life: `start`; it ends with its tasks."""

    def __init__(
        self,
        store: Metadata,
        node_id: NodeId,
        logs: LogManager,
        replicas: ReplicaManager,
        *,
        clock: Clock,
        new_id: Callable[[], UUID],
        node_epoch: Callable[[], int],
    ) -> None:
        self.reports_total = 0
        self._store = store
        self._node_id = node_id
        self._clock = clock
        self._new_id = new_id
        self._node_epoch = node_epoch
        self._logs = logs
        self._replicas = replicas
        self._wake = asyncio.Event()
        self._compared: tuple[object, ...] = ()

    def start(self, tasks: Tasks) -> None:
        """Compare from now on."""
        tasks.spawn("report replicas", self._run(), is_vital=True)

    def look_now(self) -> None:
        """Something has failed, or works again."""
        self._wake.set()

    async def _run(self) -> None:
        while True:
            while await self._compare():
                pass
            try:
                async with asyncio.timeout(LOOK_S):
                    await self._wake.wait()
            except TimeoutError:
                pass
            self._wake.clear()

    async def _compare(self) -> bool:
        """Report what the cluster does not know; return whether there is more to report at once."""
        image = self._store.image
        found = Findings(
            offline=self._replicas.offline_keys(),
            online=self._replicas.by_id.__contains__,
            failed_directory_ids=self._logs.failed_directory_ids,
        )
        sight = (image.topics, image.nodes, found.offline, found.failed_directory_ids)
        if all(one is other for one, other in zip(sight, self._compared, strict=False)) and (
            self._compared
        ):
            return False
        command = report(image, self._node_id, self._node_epoch(), found, self._new_id())
        if command is None:
            self._compared = sight
            return False
        self.reports_total += 1
        offline, online = _count(command.offline), _count(command.online)
        log.warning(
            "Reporting replicas offline=%d online=%d failed_directories=%d",
            offline,
            online,
            len(command.failed_directory_ids),
        )
        outcome = await self._store.propose(command, self._clock.now_ms() + PROPOSE_TIMEOUT_MS)
        if not isinstance(outcome, Applied):
            log.warning("Could not report replicas, trying again outcome=%r", outcome)
            return False
        # A report that changed nothing would come again and again.
        changed = self._store.image.topics is not image.topics
        return changed and offline + online == REPLICAS_MAX


def _count(partitions: PartitionSet) -> int:
    return sum(len(numbers) for _, numbers in partitions)
