"""What must hold of the data of a cluster, seen from above: all replicas' logs at once.

Each log has a shadow, the heads of its batches as they were appended, cut and recovered. What a
leader's high watermark has passed is committed: it becomes the one true log of the partition, which
every later leader must have, and every replica below its own high watermark. Looked at whenever a
watermark moves, a node begins to lead, and an image is applied for the first time anywhere. What
may be lost all the same is excused (`excuses`); then the true log begins anew (`true_log`).
"""

import asyncio
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

from dlog.errors import OffsetNotAvailableError
from dlogd.metadata.machine.election import rules_of
from dlogd.metadata.state import delta
from dlogd.metadata.state.image import ClusterImage, PartitionImage
from dlogd.replication.partition.partition import Partition
from dlogd.storage.log.partition_log import PartitionLog
from tests.simulation.fleet.chain_watch import ChainWatch
from tests.simulation.fleet.data_history import FleetHistory
from tests.simulation.fleet.excuses import Excuses
from tests.simulation.fleet.shadows import Head, LogId, Shadow
from tests.simulation.fleet.true_log import TrueLog
from tests.simulation.loop import NS, SimLoop


class DataWatch:
    """All shadows, and what is committed. `registry` takes violations and counts."""

    def __init__(self, registry: Any, history: FleetHistory) -> None:
        self._registry = registry
        self.chain = ChainWatch(registry, self)
        self._history = history
        self._shadows: dict[LogId, dict[int, Shadow]] = {}
        self._true_logs: dict[LogId, TrueLog] = {}
        self._names: dict[LogId, str] = {}
        self._leaders: dict[tuple[Any, int, int], int] = {}
        self.excuses = Excuses(registry, history, self)

    def violate(self, name: str, key: LogId, text: str) -> None:
        """Write down what is wrong with a log."""
        self._registry.violate(f"{name}: {text} log={self._names.get(key, key)}")

    def now_ns(self) -> int:
        """Return the time that all hosts have."""
        now: int = next(iter(self._registry.hosts.values())).world.now_ns
        return now

    def host_here(self) -> Any:
        """Return the host whose step this is, None where it is nobody's."""
        loop = asyncio.events._get_running_loop()
        if not isinstance(loop, SimLoop):
            return None
        return self._registry.hosts.get(loop.address)

    # -- hooks

    @contextmanager
    def watching(self) -> Iterator[None]:
        """See all appends, starts and watermarks for a while."""
        watch = self
        opened, append = PartitionLog.open.__func__, PartitionLog.append  # type: ignore[attr-defined]
        append_as_leader, lead = Partition.append_as_leader, Partition.lead
        slot: Any = Partition.__dict__["high_watermark"]

        async def watched_open(cls: Any, *arguments: Any, **options: Any) -> Any:
            log = await opened(cls, *arguments, **options)
            watch._on_opened(log)
            return log

        def watched_append(log: Any, batch: Any, fields: Any, *, leader_epoch: Any) -> Any:
            watch._before_append(log)
            base_offset = append(log, batch, fields, leader_epoch=leader_epoch)
            if base_offset is not None:
                watch._on_append(log, base_offset, fields, leader_epoch)
            return base_offset

        def watched_leader(partition: Any, *arguments: Any) -> Any:
            appended = append_as_leader(partition, *arguments)
            if appended is not None:
                watch._on_led(partition)
            return appended

        def watched_lead(partition: Any, *arguments: Any, **options: Any) -> Any:
            result = lead(partition, *arguments, **options)
            watch._on_leading(partition)
            return result

        def set_watermark(partition: Any, offset: int) -> None:
            before = slot.__get__(partition) if _has(slot, partition) else None
            slot.__set__(partition, offset)
            watch.chain.note(partition.log)
            if before is not None and offset != before:
                watch._on_watermark(partition, before, offset)

        with ExitStack() as stack:
            stack.enter_context(self.chain.watching())
            for owner, name, replacement in (
                (PartitionLog, "open", classmethod(watched_open)),
                (PartitionLog, "append", watched_append),
                (Partition, "append_as_leader", watched_leader),
                (Partition, "lead", watched_lead),
                (Partition, "high_watermark", property(slot.__get__, set_watermark)),
            ):
                stack.enter_context(mock.patch.object(owner, name, replacement))
            yield

    def _on_opened(self, log: PartitionLog) -> None:
        host = self.host_here()
        if host is None:
            return
        key = (log.topic_id, log.topic_partition.partition)
        self._names[key] = str(log.topic_partition)
        shadows = self._shadows.setdefault(key, {})
        shadow = Shadow(log)
        shadow.follow_on(_copy_before(host, log, shadows.get(host.node_id)))
        # One without records may begin where its leader's begins.
        if shadow.end < log.log_end_offset and log.log_start_offset < log.log_end_offset:
            self.violate("recovery", key, f"{host.name} recovered more than was appended")
        shadows[host.node_id] = shadow

    def shadow_here(self, log: PartitionLog) -> Shadow | None:
        """Return the shadow of a log of the host whose step this is, if it is open there."""
        host = self.host_here()
        if host is None:
            return None
        key = (log.topic_id, log.topic_partition.partition)
        shadow = self._shadows.get(key, {}).get(host.node_id)
        return shadow if shadow is not None and shadow.log is log else None

    def _before_append(self, log: PartitionLog) -> None:
        """See what was cut, trimmed or dropped before: the batch itself hides it."""
        shadow = self.shadow_here(log)
        if shadow is not None:
            shadow.look_at_log()

    def _on_append(
        self, log: PartitionLog, base_offset: int, fields: tuple[int, ...], epoch: int
    ) -> None:
        shadow = self.shadow_here(log)
        if shadow is None:
            return
        if base_offset != shadow.end:
            key = (log.topic_id, log.topic_partition.partition)
            text = f"{base_offset} is appended to a log that ends at {shadow.end}"
            self.violate("OffsetsChain", key, text)
        shadow.heads.append(Head(base_offset, base_offset + fields[6] + 1, epoch, fields[4]))

    def _on_led(self, partition: Any) -> None:
        """One node appends as the leader of an epoch."""
        host = self.host_here()
        key = (partition.topic_id, partition.topic_partition.partition)
        other = self._leaders.setdefault((*key, partition.leader_epoch), host.node_id)
        if other != host.node_id:
            text = f"{other} and {host.node_id} both led epoch {partition.leader_epoch}"
            self.violate("SingleLeaderPerEpoch", key, text)

    # -- watermarks

    def _on_watermark(self, partition: Any, before: int, offset: int) -> None:
        host = self.host_here()
        if host is None or partition.is_ended:
            return
        log = partition.log
        key = (partition.topic_id, partition.topic_partition.partition)
        shadow = self.shadow_here(log)
        if shadow is None:
            return
        shadow.look_at_log()
        leads = partition.closed is None
        if offset < before and leads:
            self.violate("MonotonicHighWatermark", key, f"{before} to {offset} at {host.name}")
        true_log = self.true_log(key)
        if leads:
            self._begin_anew(key, partition)
            true_log.commit(partition.leader_epoch, shadow, offset)
            self._look_at_isr(host, key, partition.leader_epoch, offset)
        if true_log.judges(partition.leader_epoch):
            self._compare(host, key, shadow, offset)

    def _begin_anew(self, key: LogId, partition: Any) -> None:
        """The first leader after an excused loss: what it has is true from now on."""
        true_log = self.true_log(key)
        if true_log.is_loose and partition.leader_epoch >= true_log.since_epoch:
            # Who has read what is lost may tell so later: from its memory, or a deposed leader's.
            told_until_ns = self.now_ns() + int(self._registry.stale_max_ns) + NS
            true_log.begin_anew(partition.leader_epoch, told_until_ns)
            for shadow in self._shadows[key].values():
                shadow.agreed = 0
            self._registry.count("true logs begun anew")

    def _compare(self, host: Any, key: LogId, shadow: Shadow, offset: int) -> None:
        """Compare a log with what is committed, from where that was done before."""
        committed = self.true_log(key).heads
        if committed:  # one that began anew begins where its leader's log did
            shadow.agreed = max(shadow.agreed, committed[0].base_offset)
        at = bisect_right(committed, shadow.agreed, key=lambda head: head.next_offset)
        for head in shadow.from_offset(shadow.agreed):
            if head.next_offset > offset:
                break
            while at < len(committed) and committed[at].base_offset < head.base_offset:
                at += 1
            if at >= len(committed):
                break
            if committed[at] != head:
                text = f"{host.name} has {head}, committed is {committed[at]}"
                self.violate("LogsAgreeBelowHighWatermark", key, text)
                return
            shadow.agreed = head.next_offset
            at += 1

    def _look_at_isr(self, host: Any, key: LogId, leader_epoch: int, offset: int) -> None:
        """A watermark moves with enough replicas in sync, each of which has what is below it."""
        if host.broker is None or host.broker.store is None:
            return
        image: ClusterImage = host.broker.store.image
        topic = image.topics_by_id.get(key[0])
        if topic is None or key[1] >= len(topic.partitions):
            return
        partition: PartitionImage = topic.partitions[key[1]]
        if partition.leader != host.node_id:
            return
        wanted = rules_of(image, topic).min_isr_of(partition)
        if len(partition.isr) < wanted:
            text = f"the watermark moves to {offset} with {partition.isr} of {wanted} in sync"
            self.violate("MinIsrHonoured", key, text)
        # This leader may have been deposed long ago: who is in sync by now has it all the same.
        newest = self.partition(key)
        if newest is not None and leader_epoch >= self.true_log(key).since_epoch:
            self._look_at_members(key, newest, offset)

    def _look_at_members(self, key: LogId, partition: PartitionImage, offset: int) -> None:
        """Each member of an ISR has what is committed, as safe as its flush policy says."""
        for node_id in partition.isr:
            self._look_at_held(key, node_id, offset, partition)

    def look_at_member(self, key: LogId, node_id: int) -> None:
        """The same of one node, if it is in the ISR of the newest image."""
        partition = self.partition(key)
        if partition is not None and node_id in partition.isr:
            self._look_at_held(key, node_id, self.committed_end(key), partition)

    def _look_at_held(self, key: LogId, node_id: int, offset: int, partition: Any) -> None:
        member = self._shadows.get(key, {}).get(node_id)
        if member is None or member.is_lost:
            return
        held = min(member.end, member.log.promised_offset)
        if (
            held < offset
            and not self.true_log(key).is_loose
            and not self.excuses.is_damaged(key, node_id)  # and is let out when it comes back
        ):
            text = f"{node_id} is in sync and holds {held} of {offset}: {partition}"
            self.violate("IsrHoldsCommitted", key, text)

    # -- leaders

    def _on_leading(self, partition: Any) -> None:
        """A leader has everything that was ever committed."""
        host = self.host_here()
        key = (partition.topic_id, partition.topic_partition.partition)
        shadow = self.shadow_here(partition.log)
        if shadow is None or partition.closed is not None:
            return
        shadow.look_at_log()
        self._begin_anew(key, partition)
        true_log = self.true_log(key)
        if not true_log.judges(partition.leader_epoch):
            return
        if not true_log.ends:
            # Begun anew with it: what it leads with is all that is known to be kept.
            true_log.commit(partition.leader_epoch, shadow, partition.high_watermark)
        if not true_log.heads:
            return
        # One that was deposed before it began to lead does not know what later ones have committed.
        end = true_log.end_for(partition.leader_epoch)
        self._compare(host, key, shadow, end)
        self._ask_for_end(host, key, partition, end)
        if shadow.agreed < end and shadow.end < end and shadow.log.log_start_offset < end:
            text = f"{host.name} leads epoch {partition.leader_epoch} up to {shadow.end} of {end}"
            self.violate("CommittedNeverLost", key, text)

    def _ask_for_end(self, host: Any, key: LogId, partition: Any, end: int) -> None:
        """A new leader tells nobody of an end before it knows that it is not an old one."""
        try:
            partition.check_watermark()
        except OffsetNotAvailableError:
            return
        if partition.high_watermark < end:
            text = f"{host.name} would tell {partition.high_watermark} after {end}"
            self.violate("MonotonicHighWatermark", key, text)

    def on_image(self, old: ClusterImage, new: ClusterImage) -> None:
        """An image was applied for the first time: note epochs, and what may be lost by it."""
        changes = delta.between(old, new)
        now_ns = self.now_ns()
        changed: list[tuple[LogId, PartitionImage]] = []
        for change in changes.topics_changed:
            for number, partition in enumerate(change.new.partitions):
                if number >= len(change.old.partitions):
                    continue
                key = (change.new.topic_id, number)
                if partition.leader_epoch != change.old.partitions[number].leader_epoch:
                    self._history.epochs_ns.setdefault(key, []).append(now_ns)
                if number in change.partitions_changed:
                    changed.append((key, partition))
        self.excuses.on_image(changes)
        for key, partition in changed:
            self._look_at_members(key, partition, self.committed_end(key))

    def on_read(self, client: str, log: Any, offset: int) -> None:
        """A client was given a record: by then a leader's watermark was beyond it (H18)."""
        key = (log.topic_id, log.partition)
        true_log = self.true_log(key)
        end = true_log.told_end(self.now_ns())
        if key in self._names and not true_log.is_loose and offset >= end:
            text = f"{client} was given {offset}, committed is {end}"
            self.violate("ReadBelowHighWatermark", key, text)

    # -- what others look at

    def all_shadows(self) -> Iterable[tuple[LogId, dict[int, Shadow]]]:
        """Return the shadows of all logs."""
        return self._shadows.items()

    def shadows(self, key: LogId) -> dict[int, Shadow]:
        """Return the shadows of a partition's logs, by node."""
        return self._shadows.get(key, {})

    def forget_node(self, node_id: int) -> None:
        """A node that held no replica any more has new disks."""
        for shadows in self._shadows.values():
            shadows.pop(node_id, None)
        self.excuses.forget_node(node_id)

    def true_log(self, key: LogId) -> TrueLog:
        """Return what is committed of a partition."""
        return self._true_logs.setdefault(key, TrueLog())

    def is_loose(self, key: LogId) -> bool:
        """Whether a fault may ever have cost a copy anything, whatever has become of it."""
        return self.excuses.was_touched(key)

    def partition(self, key: LogId) -> PartitionImage | None:
        """Return a partition as the newest image has it."""
        topic = self._registry.newest.topics_by_id.get(key[0])
        found = key[1] < len(topic.partitions) if topic is not None else False
        return topic.partitions[key[1]] if topic is not None and found else None

    def isr(self, key: LogId) -> tuple[int, ...]:
        """Return the ISR of the newest image."""
        partition = self.partition(key)
        return () if partition is None else partition.isr

    def committed_end(self, key: LogId) -> int:
        """Return up to where a partition is committed, for all that was seen."""
        return self.true_log(key).end


def _has(slot: Any, owner: Any) -> bool:
    try:
        slot.__get__(owner)
    except AttributeError:
        return False
    return True


def _copy_before(host: Any, log: PartitionLog, newest: Shadow | None) -> Shadow | None:
    """Return the shadow of the copy that a log was recovered from, the newest if nobody knows.

    When a directory fails a new copy is made in another one. The older copy is passed over as long
    as the newer is there; when that is deleted by order of the controller, and a crash comes
    before the node has noted so, the older one, which works again, is opened (seed 192133).
    """
    shadow = newest
    while shadow is not None and shadow.log.directory.path != log.directory.path:
        folder = f"{shadow.log.directory.path}/"
        disks = host.machine.disks.values()
        paths = (path for disk in disks for path, _ in disk.root.files(disk.mount.rstrip("/")))
        if any(path.startswith(folder) for path in paths):
            return newest
        shadow = shadow.older
    return shadow or newest
