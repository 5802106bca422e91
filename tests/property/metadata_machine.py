"""State machine of the metadata beside its plain model and a small world of data.

In the world each replica has a length. The leader commits under the rules: all of the ISR has it,
and the ISR is large enough. What is committed must be on every later leader that came into office
cleanly. Nodes crash, lose what they did not flush, are wiped, come back.
"""

from typing import Any
from uuid import UUID

from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, precondition, rule

from dlog.types import LeaderEpoch, NodeId, PartitionEpoch
from dlogd.metadata.commands import codec as c
from dlogd.metadata.machine import apply
from dlogd.metadata.machine.election import rules_of
from dlogd.metadata.state import snapshot
from dlogd.metadata.state.image import ClusterImage, Drain
from tests.fakes.modelled_cluster import ModelledCluster, check_partition

NODES = 4
nodes = st.integers(1, NODES).map(NodeId)
picks = st.integers(0, 999)
replica_lists = st.permutations(range(1, NODES + 1)).flatmap(
    lambda order: st.integers(1, 3).map(lambda count: tuple(map(NodeId, order[:count])))
)
tokens = st.sampled_from([UUID(int=1), UUID(int=2)])
permits = st.none() | st.builds(c.Permit, token=st.none() | tokens, now_ms=st.integers(0, 9))
min_isrs = st.sampled_from([None, "1", "2", "2", "3"])


class MetadataMachine(ModelledCluster):
    """Rules that change the cluster and its world, and what must hold after each."""

    def has_topics(self) -> bool:
        return bool(self.image.topics)

    # -- lives of nodes

    @initialize()
    def start(self) -> None:
        for number in range(1, NODES + 1):
            self.start_node(NodeId(number), c.Proof.NONE, 0, 0, False)
            self.do(
                c.UnfenceNode(
                    command_id=self.new_id(),
                    node_id=NodeId(number),
                    node_epoch=self.epoch(number),
                )
            )
        self.new_topic(1, [(NodeId(1), NodeId(2), NodeId(3))], "2")

    @rule(node_id=nodes, lossy=st.booleans())
    def crash(self, node_id: NodeId, lossy: bool) -> None:
        self.alive.pop(node_id, None)
        if lossy:
            self.lossy.add(node_id)

    @rule(
        node_id=nodes,
        proof=st.sampled_from(c.Proof),
        stale=st.sampled_from([0, 0, 0, 1]),
        exceptions=st.integers(0, 7),
        other_disk=st.sampled_from([False, False, False, True]),
    )
    def start_node(
        self, node_id: NodeId, proof: c.Proof, stale: int, exceptions: int, other_disk: bool
    ) -> None:
        """A node starts; it tells the truth about its replicas."""
        known = self.image.nodes.get(node_id)
        previous = -1 if known is None else known.node_epoch - stale
        if node_id in self.lossy:
            # Nothing proves what is not there: the marker is missing, or a list names the replica.
            proof = c.Proof.NONE if exceptions < 4 else c.Proof.FLUSHED
        sets: list[list[tuple[UUID, tuple[int, ...]]]] = [[], [], []]
        for topic in self.image.topics.values():
            for number, partition in enumerate(topic.partitions):
                if node_id not in partition.replicas:
                    continue
                always = rules_flush(self.image, topic)
                if node_id in self.lossy and (proof is c.Proof.NONE or always):
                    which = exceptions % 3
                    sets[which].append((topic.topic_id, (number,)))
                    self.data[topic.topic_id, number].lengths[node_id] = 0
                elif node_id in self.lossy:
                    self.data[topic.topic_id, number].lengths[node_id] = 0
                elif exceptions == 1:
                    sets[1].append((topic.topic_id, (number,)))
        self.lossy.discard(node_id)
        directory = UUID(int=node_id + 900 if other_disk else node_id)
        value = self.do(
            c.RegisterNode(
                command_id=self.new_id(),
                cluster_id="c",
                node_id=node_id,
                directory_ids=(directory,),
                addresses=(),
                rack=None,
                version="1",
                proof=proof,
                previous_epoch=previous,
                unproven=tuple(sets[0]),
                offline=tuple(sets[1]),
                missing=tuple(sets[2]),
            )
        )
        assert value is not None
        self.alive[node_id] = value

    @rule(node_id=nodes, proof=st.sampled_from([c.Proof.CLEAN, c.Proof.FLUSHED]))
    def restart(self, node_id: NodeId, proof: c.Proof) -> None:
        """A node starts with all that it had, and can prove it."""
        if node_id not in self.lossy:
            self.start_node(node_id, proof, 0, 0, False)

    @precondition(has_topics)
    @rule(number=picks, lower=st.booleans())
    def weaken(self, number: int, lower: bool) -> None:
        change = ("min.insync.replicas", "1") if lower else ("flush.policy", "interval")
        self.configure(number, False, change)

    @rule(chosen=st.sets(nodes, min_size=1, max_size=3), stale=st.sampled_from([0, 0, 0, 1]))
    def fence(self, chosen: set[NodeId], stale: int) -> None:
        named = tuple((node_id, self.epoch(node_id) - stale) for node_id in sorted(chosen))
        self.do(c.FenceNodes(command_id=self.new_id(), nodes=named))

    @rule(node_id=nodes)
    def unfence(self, node_id: NodeId) -> None:
        if self.alive.get(node_id) == self.epoch(node_id):
            self.do(
                c.UnfenceNode(
                    command_id=self.new_id(), node_id=node_id, node_epoch=self.epoch(node_id)
                )
            )

    @rule(node_id=nodes)
    def shut_down(self, node_id: NodeId) -> None:
        command = c.ShutDownNode(
            command_id=self.new_id(), node_id=node_id, node_epoch=self.epoch(node_id)
        )
        self.do(command)

    @rule(node_id=nodes, drain=st.sampled_from(Drain), permit=permits)
    def drain(self, node_id: NodeId, drain: Drain, permit: c.Permit | None) -> None:
        command = c.DrainNode(command_id=self.new_id(), node_id=node_id, drain=drain, permit=permit)
        self.do(command)

    @rule(node_id=nodes, permit=permits)
    def remove(self, node_id: NodeId, permit: c.Permit | None) -> None:
        command = c.RemoveNode(
            command_id=self.new_id(),
            node_id=node_id,
            node_epoch=self.epoch(node_id),
            permit=permit,
        )
        if self.do(command) is not None:
            self.alive.pop(node_id, None)

    @precondition(has_topics)
    @rule(node_id=nodes, number=picks, fails=st.booleans())
    def report(self, node_id: NodeId, number: int, fails: bool) -> None:
        topic, index, partition = self.pick(number)
        named = ((topic.topic_id, (index, 77)), (UUID(int=5), (0,)))
        if fails and node_id in partition.replicas:
            self.data[topic.topic_id, index].lengths[node_id] = 0
        self.do(
            c.ReportReplicas(
                command_id=self.new_id(),
                node_id=node_id,
                node_epoch=self.epoch(node_id),
                failed_directory_ids=(),
                offline=named if fails else (),
                online=() if fails else named,
            )
        )

    # -- topics

    @rule(name=st.integers(1, 2), replicas=st.lists(replica_lists, max_size=2), min_isr=min_isrs)
    def new_topic(self, name: int, replicas: list[tuple[NodeId, ...]], min_isr: str | None) -> None:
        if replicas:
            configs = {"min.insync.replicas": min_isr} if min_isr else {}
            self.do(
                c.CreateTopic(
                    command_id=self.new_id(),
                    name=f"t{name}",
                    topic_id=self.new_id(),
                    assignments=tuple(replicas),
                    configs=configs,
                )
            )

    @precondition(lambda self: len(self.image.topics) > 1)
    @rule(number=picks)
    def delete_topic(self, number: int) -> None:
        topic, _, _ = self.pick(number)
        self.do(c.DeleteTopic(command_id=self.new_id(), topic_id=topic.topic_id))

    @precondition(lambda self: len(self.image.topics) > 1)
    @rule(numbers=st.lists(picks, max_size=3), knows=st.sampled_from([True, True, True, False]))
    def delete_topics(self, numbers: list[int], knows: bool) -> None:
        chosen = [self.pick(number)[0].topic_id for number in numbers]
        if not knows:
            chosen.append(self.new_id())
        self.do(c.DeleteTopics(command_id=self.new_id(), topic_ids=tuple(chosen)))

    @precondition(has_topics)
    @rule(
        number=picks,
        whole=st.booleans(),
        change=st.one_of(
            st.tuples(st.just("min.insync.replicas"), min_isrs),
            st.tuples(st.just("unclean.leader.election.enable"), st.sampled_from(["true", None])),
            st.tuples(st.just("flush.policy"), st.sampled_from(["interval", "always", None])),
        ),
    )
    def configure(self, number: int, whole: bool, change: tuple[str, str | None]) -> None:
        topic, _, _ = self.pick(number)
        changes = (c.ConfigChange(key=change[0], value=change[1]),)
        topic_id = None if whole else topic.topic_id
        self.do(c.AlterConfigs(command_id=self.new_id(), topic_id=topic_id, changes=changes))

    # -- leaders

    @precondition(has_topics)
    @rule(number=picks)
    def produce(self, number: int) -> None:
        """A leader appends; what all of a large enough ISR has is acknowledged."""
        topic, index, partition = self.pick(number)
        leader = partition.leader
        if not partition.has_leader or self.alive.get(leader) != self.epoch(leader):
            return
        data = self.data[topic.topic_id, index]
        length = data.lengths.get(leader, 0) + 1
        data.lengths[leader] = length
        in_sync = [n for n in partition.isr if self.alive.get(n) == self.epoch(n)]
        if len(in_sync) < len(partition.isr):
            return
        for node_id in in_sync:
            data.lengths[node_id] = length
        if len(in_sync) >= rules_of(self.image, topic).min_isr_of(partition):
            data.committed = length

    @precondition(has_topics)
    @rule(
        number=picks,
        members=st.sets(nodes),
        stale=st.sampled_from([0] * 8 + [1, 2, 3]),
        all_live=st.booleans(),
    )
    def alter_partition(
        self, number: int, members: set[NodeId], stale: int, all_live: bool
    ) -> None:
        topic, index, partition = self.pick(number)
        leader = partition.leader
        if self.alive.get(leader) != self.epoch(leader):
            return
        if all_live:
            members = {n for n in partition.replicas if n in self.alive}
        members = members | {leader} if stale < 3 else members
        data = self.data[topic.topic_id, index]
        for node_id in members - set(partition.isr):
            # The leader asks for those that have fetched all it has.
            if self.alive.get(node_id) == self.epoch(node_id):
                data.lengths[node_id] = data.lengths.get(leader, 0)
        self.do(
            c.AlterPartition(
                command_id=self.new_id(),
                topic_id=topic.topic_id,
                partition=index,
                node_id=leader,
                node_epoch=self.epoch(leader),
                leader_epoch=LeaderEpoch(partition.leader_epoch - (stale == 1)),
                partition_epoch=PartitionEpoch(partition.partition_epoch - (stale == 2)),
                isr=tuple((n, self.alive.get(n, -1)) for n in sorted(members)),
            )
        )

    @precondition(has_topics)
    @rule(number=picks, kind=st.sampled_from(c.ElectionKind))
    def elect(self, number: int, kind: c.ElectionKind) -> None:
        topic, index, _ = self.pick(number)
        named = ((topic.topic_id, (index, 99)),)
        self.do(c.ElectLeaders(command_id=self.new_id(), election=kind, partitions=named))

    @precondition(has_topics)
    @rule(number=picks, replicas=st.none() | replica_lists)
    def reassign(self, number: int, replicas: tuple[NodeId, ...] | None) -> None:
        topic, index, _ = self.pick(number)
        wanted = c.Reassignment(topic_id=topic.topic_id, partition=index, replicas=replicas)
        self.do(c.AlterAssignments(command_id=self.new_id(), reassignments=(wanted,)))

    # -- the cluster

    @rule(
        token=tokens,
        now_ms=st.integers(0, 9),
        lifetime_ms=st.sampled_from([1, 3, 3_600_001]),
        owner=st.sampled_from(["a", "b", ""]),
    )
    def hold(self, token: UUID, now_ms: int, lifetime_ms: int, owner: str) -> None:
        command = c.HoldMaintenance(
            command_id=self.new_id(),
            owner=owner,
            token=token,
            node_id=NodeId(1),
            now_ms=now_ms,
            lifetime_ms=lifetime_ms,
        )
        self.do(command)

    @rule(token=st.none() | tokens)
    def release(self, token: UUID | None) -> None:
        self.do(c.ReleaseMaintenance(command_id=self.new_id(), token=token))

    @rule(node_id=nodes, stale=st.sampled_from([0, 0, 1]))
    def claim(self, node_id: NodeId, stale: int) -> None:
        epoch = self.image.controller.epoch
        command = c.ClaimController(
            command_id=self.new_id(),
            node_id=node_id,
            node_epoch=self.epoch(node_id),
            controller_epoch=epoch - stale,
        )
        self.do(command)
        late = c.DrainNode(command_id=self.new_id(), node_id=node_id, drain=Drain.NONE)
        self.do(apply.guarded(self.image, late, controller_epoch=epoch))
        version_max = self.image.version - 1 + stale
        slow = c.DrainNode(command_id=self.new_id(), node_id=node_id, drain=Drain.NONE)
        self.do(c.Guarded(version_max=version_max + 1, controller_epoch=-1, command=slow))

    @invariant()
    def holds_together(self) -> None:
        image = self.image
        for topic in image.topics.values():
            rules = rules_of(image, topic)
            for partition in topic.partitions:
                check_partition(image, partition, rules.min_isr_of(partition))

    def teardown(self) -> None:
        again = snapshot.decode(snapshot.encode(self.image))
        assert again == self.image
        assert snapshot.encode(again) == snapshot.encode(self.image)
        super().teardown()


def rules_flush(image: ClusterImage, topic: Any) -> bool:
    policy = topic.configs.get("flush.policy", image.configs.get("flush.policy", "always"))
    return bool(policy == "always")
