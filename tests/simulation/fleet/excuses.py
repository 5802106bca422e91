"""Which losses the rules allow: each excuses what one log held until then, and nothing after it.

An unclean election that the cluster counts; a disk that is lost with the last copy; and under a
weak flush policy a power cut, once min.insync.replicas of those in sync, or all of them, have lost
something since they were in sync: fewer have to be survived whatever the policy (README.md).
"""

from typing import Any

from dlog.types import NO_NODE
from dlogd.metadata.machine.election import rules_of
from dlogd.metadata.state.delta import ImageDelta
from dlogd.metadata.state.image import PartitionImage
from tests.simulation.fleet.data_history import FleetHistory
from tests.simulation.fleet.shadows import LogId

UNCLEAN = "unclean elections of data"


class _Damage:
    """A replica that may lack what it has promised, from a fault until it is in sync again."""

    def __init__(self, incarnation: int) -> None:
        self.incarnation = incarnation  # the life of its node that the fault ended
        self.counts = False  # whether it was in sync, or eligible, at any time since


class Excuses:
    """Notes damages, and loosens true logs. `data` has the logs and their shadows."""

    def __init__(self, registry: Any, history: FleetHistory, data: Any) -> None:
        self._registry = registry
        self._history = history
        self._data = data
        self._damages: dict[LogId, dict[int, _Damage]] = {}
        self._touched: set[LogId] = set()

    # -- what is known

    def is_damaged(self, key: LogId, node_id: int) -> bool:
        """Whether a replica may lack what it promised, and has not come back since."""
        damage = self._damages.get(key, {}).get(node_id)
        return damage is not None and not self._is_mended(key, node_id, damage)

    def was_touched(self, key: LogId) -> bool:
        """Whether a fault may ever have cost a copy anything: rot leaves its log alone."""
        return key in self._touched

    def _is_mended(self, key: LogId, node_id: int, damage: _Damage) -> bool:
        """Whether it is in sync in a later life: who cannot prove itself is let out before that."""
        host = self._registry.host_of(node_id)
        if host.incarnation <= damage.incarnation:
            return False
        broker = host.broker
        node = self._registry.newest.nodes.get(node_id)
        if broker is None or broker.clustering is None or node is None:
            return False
        partition = self._data.partition(key)
        is_registered = broker.clustering.lease.node_epoch == node.node_epoch
        return is_registered and partition is not None and node_id in partition.isr

    def _look(self, key: LogId, partition: PartitionImage) -> dict[int, _Damage]:
        """Forget damages that are over; return those that are left."""
        damages = self._damages.get(key, {})
        for node_id, damage in list(damages.items()):
            if node_id not in partition.replicas or self._is_mended(key, node_id, damage):
                del damages[node_id]
            elif node_id in (*partition.isr, *partition.elr, partition.last_leader):
                damage.counts = True
        return damages

    # -- images

    def on_image(self, changes: ImageDelta) -> None:
        """Excuse what an unclean election may have cost; see who is in sync again.

        One that the cluster does not count as unclean excuses nothing.
        """
        if changes.unclean_elections:
            for change in changes.topics_changed:
                unclean = {*change.unclean, *self._led_alone(change)}
                for number in sorted(unclean):
                    epoch = change.new.partitions[number].leader_epoch
                    self.excuse((change.new.topic_id, number), UNCLEAN, epoch)

    def _led_alone(self, change: Any) -> list[int]:
        """The last leader came back alone, without being eligible: counted as unclean."""
        found = []
        for number in change.partitions_changed:
            old, new = change.old.partitions[number], change.new.partitions[number]
            if (not old.isr and not old.elr and new.leader != NO_NODE) or (
                new.isr == (new.leader,) and old.isr == new.isr and not old.has_leader
            ):
                found.append(number)
        return found

    def look(self) -> None:
        """Once the newest image is known: who is in sync again, and what was not lost at all."""
        for key in [*self._damages]:
            partition = self._data.partition(key)
            if partition is None:
                del self._damages[key]
                continue
            damages = self._look(key, partition)
            log = self._data.true_log(key)
            if damages or not log.is_loose or partition.leader_epoch >= log.since_epoch:
                continue
            # Who led at the fault leads on, and all have what it has.
            if partition.has_leader and set(partition.isr) == set(partition.replicas):
                log.go_on(partition.leader_epoch)
                self._registry.count("excused logs that lost nothing")

    def excuse(self, key: LogId, why: str, since_epoch: int) -> None:
        """Let leaders from an epoch on have less than what is committed until now."""
        self._touched.add(key)
        times = self._history.losses_ns.setdefault(key, [])
        times.append(self._data.now_ns())
        log = self._data.true_log(key)
        if not log.is_loose and self._data.shadows(key):
            self._registry.count(why)
        log.loosen(since_epoch)

    def _excuse_next(self, key: LogId, why: str, partition: PartitionImage | None) -> None:
        epoch = 0 if partition is None else partition.leader_epoch + 1
        self.excuse(key, why, epoch)

    # -- faults

    def on_power_cut(self, node_id: int) -> None:
        """A power cut may take the end of a log whose flush policy is weak."""
        for log_key, facts in self._history.facts.items():
            if facts.flush_policy == "always":
                continue
            key = (log_key.topic_id, log_key.partition)
            self._touched.add(key)
            partition = self._data.partition(key)
            if partition is None or node_id not in partition.replicas:
                continue
            self._damage(key, node_id)
            damages = self._look(key, partition)
            if damages[node_id].counts and self._may_lose(key, partition, damages):
                self._excuse_next(key, "weak logs cut", partition)

    def _may_lose(self, key: LogId, partition: PartitionImage, damages: dict[int, _Damage]) -> bool:
        """Whether so many have lost power or disks that what is committed may be nowhere else."""
        topic = self._registry.newest.topics_by_id[key[0]]
        wanted = rules_of(self._registry.newest, topic).min_isr_of(partition)
        lost = [each for each, damage in damages.items() if damage.counts]
        return len(lost) >= wanted or set(damages).issuperset(partition.holders)

    def _damage(self, key: LogId, node_id: int) -> None:
        damages = self._damages.setdefault(key, {})
        counts = node_id in damages and damages[node_id].counts
        damages[node_id] = _Damage(self._registry.host_of(node_id).incarnation)
        damages[node_id].counts = counts

    def on_wipe(self, node_id: int, mount: str) -> None:
        """A disk is lost: with it what no other replica that may lead has."""
        for key, shadows in self._data.all_shadows():
            shadow = shadows.get(node_id)
            directory: Any = None if shadow is None else shadow.log.directory
            if shadow is None or not directory.path.startswith(mount):
                continue
            shadow.is_lost = True
            partition = self._data.partition(key)
            if partition is None:
                continue
            self._damage(key, node_id)
            self._look(key, partition)
            if not self._others_hold(key, node_id, partition):
                self._excuse_next(key, "last copies wiped", partition)

    def _others_hold(self, key: LogId, node_id: int, partition: PartitionImage) -> bool:
        end = self._data.committed_end(key)
        for other in (*partition.isr, *partition.elr):
            shadow = self._data.shadows(key).get(other)
            if other == node_id or shadow is None or shadow.is_lost:
                continue
            if shadow.end >= end and not self.is_damaged(key, other):
                return True
        return False

    def forget_node(self, node_id: int) -> None:
        """A node that held no replica any more has new disks."""
        for damages in self._damages.values():
            damages.pop(node_id, None)
