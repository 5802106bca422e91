"""Manager of this node's partitions: opened, changed and closed as the image says.

Reconciles from the image, not from events: every change of the image wakes one worker, which makes
the partitions here equal to the image and tries again later what has failed. Owner: the event
loop's thread; made by `dlogd.node.broker`.
"""

import asyncio
import logging
from collections import ChainMap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from dlog.errors import (
    KafkaStorageError,
    NotLeaderOrFollowerError,
    UnknownTopicIdError,
    UnknownTopicOrPartitionError,
    WireError,
)
from dlog.types import NodeId, Offset, TopicId, TopicPartition
from dlogd.config.schema import Config
from dlogd.metadata.state.delta import ImageDelta
from dlogd.metadata.state.effective_configs import EffectiveTopicConfig, Resolver
from dlogd.metadata.state.image import ClusterImage, TopicImage
from dlogd.metadata.state.persistent_map import suspects
from dlogd.replication.partition.fetch_waiters import Wakes
from dlogd.replication.partition.lease import ENDLESS, Lease
from dlogd.replication.partition.partition import Partition
from dlogd.replication.partition.producer_snapshots import load_producers
from dlogd.replication.partition.producer_state import ProducerStates
from dlogd.replication.partition.snapshot_schedule import SnapshotSchedule
from dlogd.replication.partition.topic_settings import log_config_of, settings_of
from dlogd.replication.placement_diff import Key, given_up, has_place, may_begin_anew, mine
from dlogd.replication.replica_deletion import COUNT_MAX, ReplicaDeletion
from dlogd.replication.role_assigner import RoleAssigner
from dlogd.runtime.clock import Clock
from dlogd.runtime.tasks import Tasks, in_groups
from dlogd.storage.log.log_config import LogConfig
from dlogd.storage.log.partition_log import PartitionLog
from dlogd.storage.log_manager import LogManager

log = logging.getLogger(__name__)

RETRY_S = 5.0
"""How long a failed open or delete rests before it is tried again."""
OPENING_COUNT_MAX = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """Node-wide facts that every partition needs."""

    node_id: NodeId
    loop: asyncio.AbstractEventLoop
    clock: Clock
    lease: Lease = ENDLESS
    fail: Callable[[str], None] = log.critical  # the node cannot go on


class ReplicaManager:
    """All partitions with a replica on this node."""

    def __init__(self, logs: LogManager, config: Config, placement: Placement) -> None:
        self.by_name: dict[tuple[str, int], Partition] = {}
        self.by_id: dict[Key, Partition] = {}
        self._logs = logs
        self._config = config
        self._resolver = Resolver()
        self._place = placement
        self.wakes = Wakes(placement.loop)
        self._tasks = Tasks(fail=placement.fail, task_count_max=COUNT_MAX + 8)
        self._failed: dict[Key, WireError] = {}
        self._offline: frozenset[Key] = frozenset()
        self._offline_counted = 0  # failures of logs that `_offline` knows; -1: count anew
        self._topics: Mapping[TopicId, TopicImage] = {}  # as they were reconciled last
        self._cluster_configs: object = None
        self._applied_config: object = None
        self._image = ClusterImage()
        self._reconciled_version = -1
        self._wake = asyncio.Event()
        self._deletions = ReplicaDeletion(self._delete, self._tasks, self._wake.set)
        self._reconciled: list[asyncio.Future[None]] = []
        self._stopping = False
        self._snapshotting = SnapshotSchedule(self.by_id, placement.clock)
        self.on_closed: Callable[[Key], None] = _ignore
        """Called when a replica is closed for ever."""
        self.roles = RoleAssigner(self.by_id, placement.node_id, placement.lease, placement.clock)
        logs.high_watermark_of = self._high_watermark_of

    async def recover(self, image: ClusterImage, known_directories: Sequence[UUID] = ()) -> None:
        """Recover the log of every partition that the image places here.

        `known_directories`: this node's data directories at its last start.
        """
        self._image = image
        self.roles.begin(image)
        await self._logs.open(
            {
                (topic.topic_partition(index), topic.topic_id): self._log_config(topic)
                for topic in image.topics.values()
                for index in self._mine(topic)
            },
            known_directories,
        )

    def placed(self, image: ClusterImage) -> list[Key]:
        """Return the partitions that an image places here."""
        return [
            (topic.topic_id, index)
            for topic in image.topics.values()
            for index in self._mine(topic)
        ]

    async def start(self, image: ClusterImage) -> None:
        """Open every partition that the image places here; then follow further images."""
        # What was recovered and has lost its place since, while the node registered.
        recovered = self._image
        self._deletions.undeleted = {
            key: recovered.topics_by_id[key[0]] for key in self.placed(recovered)
        }
        self._image = image
        self.roles.begin(image)
        await self._reconcile(image)
        self._tasks.spawn("reconcile partitions", self._run(), is_vital=True)
        self._tasks.spawn("snapshot producers", self._snapshotting.run())

    def on_image(self, image: ClusterImage, delta: ImageDelta) -> None:
        """The cluster's image has changed. What is led is taken over at once, the rest soon."""
        self._image = image
        self.roles.on_image(image, delta)
        self._wake.set()

    def reconfigure(self, config: Config) -> None:
        """Take over a reloaded configuration."""
        self._config = config
        self._wake.set()

    def partition(self, topic: str, index: int) -> Partition:
        """Return a partition with a replica here, led or not; raise WireError if there is none."""
        self.roles.check_lease()
        if (found := self.by_name.get((topic, index))) is not None:
            return found
        raise self._why_absent(self._image.topics.get(topic), index) or (
            UnknownTopicOrPartitionError(f"This node knows no partition {topic}-{index}")
        )

    def partition_by_id(self, topic_id: TopicId, index: int) -> Partition:
        """Do as `partition`; never by the name, which the topic before it may have here yet."""
        self.roles.check_lease()
        if (found := self.by_id.get((topic_id, index))) is not None:
            return found
        raise self._why_absent(self._image.topics_by_id.get(topic_id), index) or (
            UnknownTopicIdError(f"This node knows no topic with id {topic_id}")
        )

    def _why_absent(self, topic: TopicImage | None, index: int) -> WireError | None:
        if topic is None:
            return None
        if topic.partition(index) is None:
            return UnknownTopicOrPartitionError(f"{topic.name} has no partition {index}")
        failed = self._failed.get((topic.topic_id, index))
        return failed or NotLeaderOrFollowerError(f"{topic.name}-{index} is not open here")

    async def await_partitions(self, names: Sequence[str]) -> None:
        """Return when everything in the present image has been opened, or has failed to."""
        version = self._image.version
        while self._reconciled_version < version and not self._stopping:
            future = self._place.loop.create_future()
            self._reconciled.append(future)
            await future

    @property
    def failures(self) -> dict[TopicPartition, WireError]:
        """Partitions that could not be opened, and why."""
        found = {}
        for (topic_id, index), error in self._failed.items():
            topic = self._image.topics_by_id.get(topic_id)
            if topic is not None:
                found[topic.topic_partition(index)] = error
        return found

    def offline(self) -> dict[TopicPartition, WireError]:
        """Return the partitions that are out of service here, and why."""
        found = self.failures
        for partition in self.by_id.values():
            error = partition.log.failed
            if error is not None:
                found[partition.topic_partition] = error
        return found

    def offline_keys(self) -> frozenset[Key]:
        """Return what is out of service here; the same object until that changes."""
        if self._offline_counted != self._logs.log_failures_total:
            self._offline_counted = self._logs.log_failures_total
            failed = [key for key, each in self.by_id.items() if each.log.failed is not None]
            found = frozenset([*self._failed, *failed])
            if found != self._offline:
                self._offline = found
        return self._offline

    @property
    def led_count(self) -> int:
        """Partitions that are led here, and in service."""
        return sum(each.closed is None and not each.log.failed for each in self.by_id.values())

    def damages(self) -> list[str]:
        """Say what reads have found damaged in partitions that are in service."""
        return [
            f"partition {partition.topic_partition}: {text}"
            for partition in self.by_id.values()
            if partition.log.failed is None
            for text in partition.log.damage.problems(partition.log.log_start_offset)
        ]

    async def _run(self) -> None:
        while True:
            is_rest = self._failed or self._deletions.undeleted
            retry = self._place.loop.call_later(RETRY_S, self._wake.set) if is_rest else None
            try:
                await self._wake.wait()
            finally:
                if retry is not None:
                    retry.cancel()
            self._wake.clear()
            await self._reconcile(self._image)

    async def _reconcile(self, image: ClusterImage) -> None:
        """Make the partitions here equal to `image`."""
        before, now = self._topics, image.topics_by_id
        known = before  # what need not be looked at again
        changed = [topic for key, topic in suspects(now, before) if before.get(key) is not topic]
        config = self._config
        if image.configs is not self._cluster_configs or config is not self._applied_config:
            changed, known = list(now.values()), {}
        node_id, here = self._place.node_id, ChainMap[Key, Any](self.by_id, self._failed)
        undeleted = self._deletions.undeleted
        gone = given_up(
            node_id, image, before=before, changed=changed, here=here, undeleted=undeleted
        )
        await self._deletions.carry_out(gone)
        await self._retry_failed(image, changed)
        missing = []
        for topic in changed:
            missing += await self._apply_topic(topic, known.get(topic.topic_id))
        await in_groups(OPENING_COUNT_MAX, self._open, missing)
        self._topics = now
        self._cluster_configs = image.configs
        self._applied_config = config
        self._reconciled_version = image.version
        waiting, self._reconciled = self._reconciled, []
        for future in waiting:
            if not future.done():
                future.set_result(None)

    async def _retry_failed(self, image: ClusterImage, changed: list[TopicImage]) -> None:
        seen = {topic.topic_id for topic in changed}
        for topic_id, _ in list(self._failed):
            topic = image.topics_by_id.get(topic_id)
            if topic is not None and topic_id not in seen:
                seen.add(topic_id)
                changed.append(topic)

    def _mine(self, topic: TopicImage) -> list[int]:
        return mine(topic, self._place.node_id)

    def _effective(self, topic: TopicImage) -> EffectiveTopicConfig:
        return self._resolver.resolve(topic.configs, self._image.configs, self._config)

    def _log_config(self, topic: TopicImage) -> LogConfig:
        return log_config_of(self._effective(topic), self._config)

    async def _apply_topic(
        self, topic: TopicImage, old: TopicImage | None
    ) -> list[tuple[TopicImage, int, EffectiveTopicConfig]]:
        """Change what is open; return what is to be opened, so that many are opened together."""
        effective = self._effective(topic)
        same = old.partitions if old is not None and old.configs == topic.configs else ()
        missing = []
        for index in self._mine(topic):
            partition = self.by_id.get((topic.topic_id, index))
            if partition is None:
                missing.append((topic, index, effective))
            elif index >= len(same) or same[index] is not topic.partitions[index]:
                await self._change(partition, effective)
                self.roles.assign(partition, index)
        return missing

    async def _change(self, partition: Partition, effective: EffectiveTopicConfig) -> None:
        settings = settings_of(effective)
        if partition.settings != settings:
            partition.settings = settings
        limits = self._config.producer_id
        partition.producers.expiry_ms = limits.expiry_ms
        partition.producers.producers_max = limits.per_partition_max
        await self._configure(partition.log, log_config_of(effective, self._config))

    async def _configure(self, plog: PartitionLog, config: LogConfig) -> None:
        if plog.config.durable and not config.durable:
            await self._logs.note_weak(plog)
        plog.reconfigure(config)

    async def _open(self, topic: TopicImage, index: int, effective: EffectiveTopicConfig) -> None:
        key = (topic.topic_id, index)
        name = topic.topic_partition(index)
        place = self._place
        await self._deletions.settle(key)
        try:
            config = log_config_of(effective, self._config)
            failed = self._logs.failed_directory_ids
            anew = may_begin_anew(self._image, topic, index, place.node_id, failed)
            plog = await self._logs.create(name, topic.topic_id, config, anew=anew)
            if plog.failed is not None:
                raise plog.failed
            await self._logs.check_epoch(plog, topic.partitions[index].leader_epoch)
            await self._configure(plog, config)  # it was recovered with those of an earlier image
            producers = ProducerStates(
                expiry_ms=self._config.producer_id.expiry_ms,
                producers_max=self._config.producer_id.per_partition_max,
            )
            is_current = await load_producers(place.clock, plog, producers)
        except (WireError, OSError) as error:
            first_time = key not in self._failed
            self._offline_counted = -1
            self._failed[key] = (
                error if isinstance(error, WireError) else KafkaStorageError(str(error))
            )
            if first_time:
                log.error("Could not open partition partition=%s error=%s", name, error)
            return
        if self._failed.pop(key, None) is not None:
            self._offline_counted = -1
        if key in self.by_id or topic.topic_id not in self._image.topics_by_id:
            return
        partition = Partition(
            plog,
            loop=place.loop,
            clock=place.clock,
            producers=producers,
            settings=settings_of(effective),
            lease=place.lease,
            high_watermark=self._logs.stored_high_watermark(plog),
            wakes=self.wakes,
        )
        partition.closed = NotLeaderOrFollowerError(f"{name} is being opened")
        partition.leader = None
        partition.unsnapshotted_bytes = 0 if is_current else plog.size_bytes
        self.by_name[(topic.name, index)] = partition
        self.by_id[key] = partition
        self.roles.assign(partition, index)

    async def _delete(self, topic: TopicImage, index: int) -> None:
        key = (topic.topic_id, index)
        if has_place(self._image, key, self._place.node_id):  # by now
            return
        self._failed.pop(key, None)
        self._offline_counted = -1  # it may be given back
        partition = self.by_id.pop(key, None)
        if partition is not None:
            if self.by_name.get((topic.name, index)) is partition:
                del self.by_name[(topic.name, index)]
            partition.close(UnknownTopicOrPartitionError("The replica was deleted"))
            self.on_closed(key)
        await self._logs.delete(topic.topic_partition(index), topic.topic_id)

    def _high_watermark_of(self, plog: PartitionLog) -> Offset:
        """Return what storage keeps of a watermark, and never drops by retention before it."""
        partition = self.by_id.get(plog.key)
        return partition.high_watermark if partition else self._logs.stored_high_watermark(plog)

    def logs(self) -> list[PartitionLog]:
        """Return the logs of all open partitions."""
        return [partition.log for partition in self.by_id.values()]

    async def stop(self) -> None:
        """Answer who waits, write producer states; their manager closes the logs themselves."""
        self._stopping = True
        await self._tasks.close()
        for future in self._reconciled:
            if not future.done():
                future.set_result(None)
        partitions = list(self.by_id.values())
        for key, partition in list(self.by_id.items()):
            partition.close()
            self.on_closed(key)
        try:
            await self._snapshotting.save_all(partitions)
        finally:
            self.by_name.clear()
            self.by_id.clear()


def _ignore(_: Key) -> None:
    """A node alone follows nobody."""
