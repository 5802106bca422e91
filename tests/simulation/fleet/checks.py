"""What must hold in every run of a cluster, beside what `raft_checks` sees of the log itself.

Looked at when an entry is applied for the first time anywhere, when a lease is given or taken, and
some hundred times in each second.
"""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

from dlog.types import NO_NODE
from dlogd.controller.leases import LeaseTable, NoLease
from dlogd.controller.own_lease import OwnLease
from dlogd.metadata.commands import codec
from dlogd.metadata.commands.codec import FenceNodes, Guarded, UnfenceNode
from dlogd.metadata.raft import entries as wire
from dlogd.metadata.raft.entries import What
from dlogd.metadata.raft.membership import Operation
from dlogd.metadata.raft.store import RaftStore
from dlogd.metadata.state import delta
from dlogd.metadata.state.image import EMPTY_IMAGE, Applied, ClusterImage, Outcome, PartitionImage
from dlogd.metadata.state.limits import LEVEL_EPOCH_FLOOR
from tests.simulation.fleet import data_throttles, read_watch
from tests.simulation.fleet.ack_watch import AckWatch
from tests.simulation.fleet.data_history import FleetHistory
from tests.simulation.fleet.data_watch import DataWatch
from tests.simulation.loop import SimLoop
from tests.simulation.raft_checks import Call, Registry

OnSettled = Callable[[Outcome], None]

MS = 1_000_000
DRIFT = 1.002  # two clocks, each off by 1,000 ppm


class FleetRegistry(Registry):
    """Everything that was ever seen in a run; `hosts` by address is set by the run."""

    def __init__(self) -> None:
        super().__init__()
        self.hosts: dict[str, Any] = {}
        self.power_cuts_ns: list[int] = []
        self.newest: ClusterImage = EMPTY_IMAGE
        self.counts: dict[str, int] = {}
        # (topic id, partition, leader epoch): since when the newest image has a later one.
        self.deposed_ns: dict[tuple[Any, int, int], int] = {}
        # The last leader epoch of each deleted partition, by the name of its topic.
        self._epochs_given: dict[tuple[str, int], int] = {}
        self._granted_ns: dict[tuple[int, int, int], int] = {}
        self._led: dict[int, tuple[ClusterImage, dict[tuple[Any, int], int]]] = {}
        self.all_calls: list[Call] = []
        self.stale_max_ns = 0
        self.acknowledged = 0  # the highest version that a proposer was told
        self.voters: set[int] = set()
        self.voters_asked: set[tuple[str, int]] = set()
        self._versions: dict[tuple[int, int], int] = {}
        self.history = FleetHistory()
        self.data = DataWatch(self, self.history)

    def count(self, what: str, many: int = 1) -> None:
        """Count something that happened."""
        self.counts[what] = self.counts.get(what, 0) + many

    def host_of(self, node_id: int) -> Any:
        """Return the host of a node."""
        return next(each for each in self.hosts.values() if each.node_id == node_id)

    # -- hooks

    @contextmanager
    def watching(self) -> Iterator[None]:
        """See all stores that are opened, all proposals, and all leases, for a while."""
        opened, submit, barrier = RaftStore.open, RaftStore.submit, RaftStore.submit_barrier
        beat, grant = LeaseTable.on_beat, OwnLease.on_grant
        registry = self

        async def watched_open(*arguments: Any, **options: Any) -> RaftStore:
            store = await opened(*arguments, **options)
            registry._on_opened(store)
            return store

        def watched_submit(store: Any, command: Any, deadline_ms: int, told: OnSettled) -> Any:
            return submit(store, command, deadline_ms, registry._proposed(store, command, told))

        def watched_barrier(store: Any, deadline_ms: int, told: OnSettled) -> Any:
            return barrier(store, deadline_ms, registry._barrier(store, told))

        def watched_beat(table: LeaseTable, *arguments: Any) -> Any:
            found = beat(table, *arguments)
            if not isinstance(found, NoLease):
                registry._on_granted(table, arguments[0])
            return found

        def watched_grant(lease: OwnLease, given: Any) -> bool:
            longer = grant(lease, given)
            if longer:
                registry._on_taken(lease, given)
            return longer

        with ExitStack() as stack:
            stack.enter_context(self.data.watching())
            stack.enter_context(AckWatch(self).watching())
            stack.enter_context(data_throttles.watching(self))
            stack.enter_context(read_watch.watching(self))
            for owner, name, replacement in (
                (RaftStore, "open", watched_open),
                (RaftStore, "submit", watched_submit),
                (RaftStore, "submit_barrier", watched_barrier),
                (LeaseTable, "on_beat", watched_beat),
                (OwnLease, "on_grant", watched_grant),
            ):
                stack.enter_context(mock.patch.object(owner, name, replacement))
            yield

    def _host(self) -> Any:
        loop = asyncio.events._get_running_loop()
        assert isinstance(loop, SimLoop)
        return self.hosts[loop.address]

    def _on_opened(self, store: RaftStore) -> None:
        host = self._host()
        host.store = store
        self.watch(host.node_id, host.incarnation, store)

    def _proposed(self, store: Any, command: Any, told: OnSettled) -> OnSettled:
        host = self._host()
        key = command.command_id.bytes
        call = Call(len(self.all_calls), key, host.node_id, host.world.now_ns, store)
        self.all_calls.append(call)

        def settled(outcome: Outcome) -> None:
            call.outcome, call.ended_ns = outcome, host.world.now_ns
            if isinstance(outcome, Applied):
                self.acknowledged = max(self.acknowledged, outcome.version)
                if store.image.version < outcome.version:
                    self.violate(f"call {call.number}: the proposer's image is older than that")
            told(outcome)

        return settled

    def _barrier(self, store: Any, told: OnSettled) -> OnSettled:
        """What was acknowledged before a barrier was asked for is in the image after it."""
        before = self.acknowledged

        def settled(outcome: Outcome) -> None:
            self.count("barriers")
            if isinstance(outcome, Applied) and store.image.version < before:
                self.violate(f"barrier: the image is of {store.image.version}, not {before}")
            told(outcome)

        return settled

    # -- leases

    def _on_granted(self, table: LeaseTable, beat: Any) -> None:
        key = (beat.node_id, beat.node_epoch, table.controller_epoch)
        self._granted_ns[key] = self._host().world.now_ns
        self.count("lease grants")

    def _on_taken(self, lease: OwnLease, given: Any) -> None:
        host = self._host()
        now_ns = host.world.now_ns
        key = (host.node_id, lease.node_epoch, given.controller_epoch)
        granted_ns = self._granted_ns.get(key)
        if granted_ns is None:
            self.violate(f"lease: node {host.node_id} took one that nobody gave: {given}")
            return
        left_ms = lease.valid_until_ms - host.clock.now_ms()
        until_ns = now_ns + int(left_ms * DRIFT * MS)
        if until_ns > granted_ns + int(given.lease_ms * DRIFT * MS) + 2 * MS:
            self.violate(f"lease: node {host.node_id} holds one for longer than it was given")

    def look_at_leases(self, now_ns: int) -> None:
        """No two nodes lead a partition in one epoch, and a deposed one ends in time."""
        leaders: dict[tuple[Any, int, int], int] = {}
        for host in self.hosts.values():
            self._look_at_image(host)
            if host.state == "down" or not host.holds_lease():
                continue
            for (topic_id, number), epoch in self._led_by(host).items():
                key = (topic_id, number, epoch)
                other = leaders.setdefault(key, host.node_id)
                if other != host.node_id:
                    self.violate(f"lease: {other} and {host.node_id} both lead {key}")
                since_ns = self.deposed_ns.get(key)
                if since_ns is not None and now_ns - since_ns > self.stale_max_ns:
                    self.violate(
                        f"lease: node {host.node_id} leads {number} of {topic_id} in epoch {epoch},"
                        f" {(now_ns - since_ns) // MS} ms after it was deposed"
                    )

    def _look_at_image(self, host: Any) -> None:
        """What a node shows to its own parts never goes back."""
        if host.broker is None or host.broker.store is None:
            return
        life, version = (host.node_id, host.incarnation), host.broker.store.image.version
        if version < self._versions.get(life, 0):
            self.violate(f"image: {host.name} went back to {version} from {self._versions[life]}")
        self._versions[life] = version

    def _led_by(self, host: Any) -> dict[tuple[Any, int], int]:
        """Return what a node believes that it leads, by its image, with the epochs."""
        image = host.broker.store.image
        known = self._led.get(host.node_id)
        if known is not None and known[0] is image:
            return known[1]
        led = {
            (topic.topic_id, number): partition.leader_epoch
            for topic in image.topics.values()
            for number, partition in enumerate(topic.partitions)
            if partition.leader == host.node_id
        }
        self._led[host.node_id] = (image, led)
        return led

    # -- the image

    def _on_applied(self, node_id: int, store: Any, index: int, term: int, entry: bytes) -> None:
        first_time = index not in self.applied
        super()._on_applied(node_id, store, index, term, entry)
        if first_time:
            image = store.state.image
            if entry[0] == wire.COMMANDS:
                self._look_at_commands(entry, image)
            elif entry[0] == wire.VOTERS:
                self._look_at_voters(entry)
            self._look_at_step(self.newest, image)
            self.data.on_image(self.newest, image)
            self.newest = image
            self.data.excuses.look()

    def _look_at_voters(self, entry: bytes) -> None:
        """Voters come and go at an operator's word only (hole H20)."""
        voters = wire.decode_voters(entry)[1]
        present = set(voters.node_ids)
        for node_id in sorted(present ^ self.voters):
            asked = (Operation.ADD if node_id in present else Operation.REMOVE, node_id)
            if asked not in self.voters_asked:
                self.violate(f"voters: {asked} was done, and nobody asked for it")
        self.voters = present

    def _look_at_commands(self, entry: bytes, image: ClusterImage) -> None:
        for item in wire.decode_items(entry):
            if item.what is not What.COMMAND:
                continue
            command = codec.decode(item.data)
            outcome = image.outcomes.get(command.command_id)
            kind = type(command.command if isinstance(command, Guarded) else command).__name__
            done = isinstance(outcome, Applied)
            self.count(f"{kind} {'applied' if done else 'refused'}")
            if done and isinstance(command, Guarded):
                self._look_at_controller(command, image)
            elif isinstance(command, FenceNodes | UnfenceNode):
                self.violate(f"controller: {kind} without a guard")

    def _look_at_controller(self, command: Guarded, image: ClusterImage) -> None:
        """Only the controller of this moment acts, and it fences nobody who holds a lease."""
        if command.controller_epoch >= 0:
            # A claim may stand in the same entry, before or after the command.
            span = range(self.newest.controller.epoch, image.controller.epoch + 1)
            if command.controller_epoch not in span:
                self.violate(
                    f"controller: {command.controller_epoch} acts, but {list(span)} is controller"
                )
        if not isinstance(command.command, FenceNodes):
            return
        for node_id, node_epoch in command.command.nodes:
            for host in self.hosts.values():
                broker = host.broker
                if host.node_id != node_id or broker is None or broker.clustering is None:
                    continue
                if broker.clustering.lease.node_epoch == node_epoch and host.holds_lease():
                    self.violate(f"lease: node {node_id} was fenced and holds a lease")

    def _look_at_step(self, old: ClusterImage, new: ClusterImage) -> None:
        """Epochs only grow, and what a leader or an ISR may be."""
        changes = delta.between(old, new)
        for node in (*changes.nodes_changed, *changes.nodes_added):
            before = old.nodes.get(node.node_id)
            if before is not None and node.node_epoch < before.node_epoch:
                self.violate(f"epochs: that of node {node.node_id} fell to {node.node_epoch}")
        if new.controller.epoch < old.controller.epoch:
            self.violate(f"epochs: that of the controller fell to {new.controller.epoch}")
        self._look_at_topics(changes, new)

    def _look_at_topics(self, changes: delta.ImageDelta, new: ClusterImage) -> None:
        for topic in changes.topics_created:
            for number, partition in enumerate(topic.partitions):
                self._look_at_partition(f"{topic.name}-{number}", partition, new)
                self._look_at_name(topic.name, number, partition, new)
        for change in changes.topics_changed:
            for number, partition in enumerate(change.new.partitions):
                name = f"{change.new.name}-{number}"
                self._look_at_partition(name, partition, new)
                if number < len(change.old.partitions):
                    key = (change.new.topic_id, number)
                    self._look_at_epochs(name, key, change.old.partitions[number], partition)
                else:
                    self._look_at_name(change.new.name, number, partition, new)
        for topic in changes.topics_deleted:
            for number, partition in enumerate(topic.partitions):
                self._depose(topic.topic_id, number, partition.leader_epoch)
                self._epochs_given[topic.name, number] = partition.leader_epoch

    def _look_at_name(
        self, topic: str, number: int, partition: PartitionImage, image: ClusterImage
    ) -> None:
        """A topic that is made again does not look older than the one before it."""
        given = self._epochs_given.get((topic, number), -1)
        if partition.leader_epoch <= given and image.feature_level >= LEVEL_EPOCH_FLOOR:
            self.violate(
                f"MonotonicLeaderEpoch: {topic}-{number} had {given} before it was made again with"
                f" {partition.leader_epoch}"
            )

    def _look_at_epochs(
        self, name: str, key: tuple[Any, int], old: PartitionImage, new: PartitionImage
    ) -> None:
        if new.leader_epoch < old.leader_epoch:
            self.violate(f"MonotonicLeaderEpoch: that of {name} fell: {old} to {new}")
        if new.partition_epoch < old.partition_epoch:
            self.violate(f"epochs: that of {name} fell: {old} to {new}")
        if new != old and new.partition_epoch == old.partition_epoch:
            self.violate(f"epochs: {name} changed without one: {old} to {new}")
        if new.leader != old.leader and new.leader_epoch == old.leader_epoch:
            self.violate(f"epochs: {name} has another leader in the same epoch")
        if new.leader_epoch > old.leader_epoch:
            self._depose(*key, old.leader_epoch)

    def _depose(self, topic_id: Any, number: int, epoch: int) -> None:
        now_ns = next(iter(self.hosts.values())).world.now_ns
        self.deposed_ns.setdefault((topic_id, number, epoch), now_ns)

    def _look_at_partition(self, name: str, part: PartitionImage, image: ClusterImage) -> None:
        replicas = set(part.replicas)
        if not replicas.issuperset((*part.isr, *part.elr, *part.adding, *part.removing)):
            self.violate(f"IsrSubsetOfReplicas: {name} has members that are none: {part}")
        if len(replicas) != len(part.replicas) or set(part.isr) & set(part.elr):
            self.violate(f"ISR: {name} has a node twice: {part}")
        if part.leader == NO_NODE:
            return
        node = image.nodes.get(part.leader)
        if part.leader not in part.isr:
            self.violate(f"ISR: the leader of {name} is not in it: {part}")
        if node is None or not node.active:
            self.violate(f"leader: {name} is led by a node that is fenced or gone: {part}")

    # -- in the end

    def judge(self) -> None:
        """Compare what proposers were told with what was applied."""
        self._judge_order()
        order: dict[bytes, list[int]] = {}
        for index in sorted(self.applied):
            entry = self.applied[index][1]
            if entry[0] == wire.COMMANDS:
                for item in wire.decode_items(entry):
                    if item.what is What.COMMAND:
                        order.setdefault(item.key, []).append(index)
        calls: dict[bytes, list[Call]] = {}
        for call in self.all_calls:
            calls.setdefault(call.key, []).append(call)
        for key, same in calls.items():
            indexes = order.get(key, [])
            if len(indexes) > len(same):
                self.violate(f"a command is in the log {len(indexes)} times: {indexes}")
            for call in same:
                if isinstance(call.outcome, Applied) and not indexes:
                    self.violate(f"call {call.number} was acknowledged and is not in the log")
