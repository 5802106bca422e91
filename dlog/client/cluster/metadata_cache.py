"""Cache of metadata: nodes, leaders, topics, and which of them are stale.

Pure: no I/O, time is passed in. `dlog.client.cluster.cluster` fills it with answers, hints and
errors. What is stale is kept: old addresses are still better than none to ask for fresh ones.

Leaders are ordered by leader epoch within one life of a topic: what a node that lags says never
replaces something newer (KIP-320). A partition stays stale then, so that it is asked for again.
Which life is the present one, `dlog.client.cluster.topic_incarnations` knows.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from dlog.client.cluster.topic_incarnations import TopicIncarnations
from dlog.client.views import ClusterView, NodeView, PartitionLeader, PartitionView, TopicView
from dlog.errors import (
    NONE,
    BrokerNotAvailableError,
    LeaderNotAvailableError,
    UnknownTopicOrPartitionError,
    error_for,
)
from dlog.transport import Address
from dlog.wire.leaders import NodeEndpoint


@dataclass(slots=True)
class _CachedTopic:
    """One topic as it was told last, with newer leaders from hints put in."""

    view: TopicView
    learned_s: float
    stale: set[int] = field(default_factory=set)
    """Partitions whose leader is in doubt."""


class MetadataCache:
    """Nodes and leaders of one cluster. Owner: the thread of the cluster's loop.

    Invariant: the leader epoch of a partition never goes back while the topic's id is the same.
    """

    def __init__(self) -> None:
        self.nodes: dict[int, NodeView] = {}
        self.controller_id = -1
        self.cluster_id: str | None = None
        self.nodes_are_stale = True
        self._topics: dict[str, _CachedTopic] = {}
        self._lives = TopicIncarnations()

    @property
    def topic_names(self) -> list[str]:
        """Topics that were asked for and exist."""
        return list(self._topics)

    def topic(self, name: str) -> TopicView | None:
        """Return the topic as last known, stale or not."""
        cached = self._topics.get(name)
        return None if cached is None else cached.view

    def is_fresh(self, name: str, now_s: float, age_s_max: float) -> bool:
        """Return whether the topic needs no look-up: known, of no doubtful leader, young enough."""
        cached = self._topics.get(name)
        return (
            cached is not None
            and not cached.stale
            and not self.nodes_are_stale
            and now_s - cached.learned_s < age_s_max
        )

    def is_stale(self, name: str, partition: int) -> bool:
        """Return whether the leader of a partition has to be looked up before it is used."""
        cached = self._topics.get(name)
        return cached is None or partition in cached.stale

    def leader_of(self, name: str, partition: int) -> PartitionLeader:
        """Return the leader of a partition as known.

        Raises UnknownTopicOrPartitionError, LeaderNotAvailableError (nobody leads it, or who does
        is in doubt), BrokerNotAvailableError (the leader's address is not known). What cannot be
        told is in doubt from then on, so that the next look-up asks for it.
        """
        cached = self._topics.get(name)
        view = None if cached is None else _find(cached.view, partition)
        if cached is None or view is None:
            self.doubt_topic(name)
            raise UnknownTopicOrPartitionError(f"{name}-{partition} is not known yet")
        if partition in cached.stale:
            raise LeaderNotAvailableError(f"the leader of {name}-{partition} is not known now")
        node = self.nodes.get(view.leader)
        if node is None:
            cached.stale.add(partition)
            if view.leader < 0:
                raise LeaderNotAvailableError(f"{name}-{partition} has no leader")
            raise BrokerNotAvailableError(f"the cluster has no node {view.leader}")
        return PartitionLeader(
            node_id=view.leader, address=node.address, leader_epoch=view.leader_epoch
        )

    def led_by(self, node_id: int) -> dict[tuple[str, int], int]:
        """Return the leader epochs of the partitions that a node leads, as known."""
        return {
            (name, each.partition): each.leader_epoch
            for name, cached in self._topics.items()
            for each in cached.view.partitions
            if each.leader == node_id
        }

    def epoch_of(self, name: str, partition: int) -> int:
        """Return the leader epoch of a partition as known, -1 when it is not."""
        cached = self._topics.get(name)
        view = None if cached is None else _find(cached.view, partition)
        return -1 if view is None else view.leader_epoch

    # What was learned

    def learn(self, view: ClusterView, now_s: float, via: Address | None = None) -> int:
        """Take in an answer of `via`; return how many known partitions have another leader now.

        Or another epoch. Topics with an error are forgotten, unless the error is only that a leader
        is missing.
        """
        self.nodes = dict(view.nodes)
        self.controller_id = view.controller_id
        self.cluster_id = view.cluster_id or self.cluster_id
        self.nodes_are_stale = False
        return sum(self._learn_topic(topic, now_s, via) for topic in view.topics.values())

    def _learn_topic(self, told: TopicView, now_s: float, via: Address | None) -> int:
        if told.error_code != NONE and not told.partitions:
            self._topics.pop(told.name, None)
            self._lives.on_gone(told.name, now_s)
            return 0
        if not self._lives.accept(told.name, told.topic_id, via, now_s):
            return 0  # of a life that is over: what is in doubt stays so, and is asked for again
        before = self._topics.get(told.name)
        if before is None or before.view.topic_id != told.topic_id:
            self._topics[told.name] = _CachedTopic(told, now_s)
            return 0 if before is None else len(told.partitions)
        changes = 0
        stale: set[int] = set()
        partitions: list[PartitionView] = []
        for each in told.partitions:
            known = _find(before.view, each.partition)
            if known is None or _leader(known) == _leader(each):
                partitions.append(each)
            elif 0 <= each.leader_epoch < known.leader_epoch:
                stale.add(each.partition)
                leader, leader_epoch = _leader(known)
                partitions.append(replace(each, leader=leader, leader_epoch=leader_epoch))
            else:
                changes += 1
                partitions.append(each)
        view = replace(told, partitions=tuple(partitions))
        self._topics[told.name] = _CachedTopic(view, now_s, stale)
        return changes

    def learn_leader(
        self,
        name: str,
        partition: int,
        leader: tuple[int, int],
        endpoints: Iterable[NodeEndpoint] = (),
    ) -> bool:
        """Take in a hint (KIP-951): (node id, leader epoch), and where that node is.

        Returns whether it was news: a newer epoch, of a node whose address is known.
        """
        for node_id, host, port, rack in endpoints:
            address = Address(host, port)
            self.nodes[node_id] = NodeView(node_id=node_id, address=address, rack=rack)
        node_id, leader_epoch = leader
        cached = self._topics.get(name)
        known = None if cached is None else _find(cached.view, partition)
        if cached is None or known is None or node_id not in self.nodes:
            return False
        if leader_epoch <= known.leader_epoch:
            return False
        news = replace(known, leader=node_id, leader_epoch=leader_epoch)
        partitions = tuple(news if each is known else each for each in cached.view.partitions)
        cached.view = replace(cached.view, partitions=partitions)
        cached.stale.discard(partition)
        return True

    # What is in doubt

    def doubt_leader(self, name: str, partition: int) -> bool:
        """Look the leader up before it is used again; return whether it was not in doubt yet."""
        cached = self._topics.get(name)
        if cached is None or partition in cached.stale or _find(cached.view, partition) is None:
            return False
        cached.stale.add(partition)
        return True

    def doubt_topic(self, name: str) -> None:
        """Look all leaders of a topic up before they are used again."""
        cached = self._topics.get(name)
        if cached is not None:
            cached.stale.update(each.partition for each in cached.view.partitions)

    def doubt_node(self, node_id: int) -> int:
        """Look up everything that a node led, and the nodes; return the number of partitions."""
        self.nodes_are_stale = True
        count = 0
        for cached in self._topics.values():
            for each in cached.view.partitions:
                if each.leader == node_id:
                    count += each.partition not in cached.stale
                    cached.stale.add(each.partition)
        return count

    def doubt_everything(self) -> None:
        """Look everything up before it is used again."""
        self.nodes_are_stale = True
        for name in self._topics:
            self.doubt_topic(name)

    def forget_topic(self, name: str) -> None:
        """Hold nothing about a topic any more."""
        self._topics.pop(name, None)

    def stale_topics(self) -> list[str]:
        """Topics with leaders that are in doubt."""
        return [name for name, cached in self._topics.items() if cached.stale]


def _find(view: TopicView, partition: int) -> PartitionView | None:
    """Return a partition of a topic; they are in order and nearly always without holes."""
    partitions = view.partitions
    if 0 <= partition < len(partitions) and partitions[partition].partition == partition:
        return partitions[partition]
    return next((each for each in partitions if each.partition == partition), None)


def _leader(view: PartitionView) -> tuple[int, int]:
    return view.leader, view.leader_epoch


def candidates(
    connected: Sequence[Address],
    nodes: Mapping[int, NodeView],
    bootstrap: Sequence[Address],
    suspects: Sequence[Address] = (),
) -> list[Address]:
    """Return whom to ask, in order, each once: connected, known, bootstrap; suspects last."""
    known = [each.address for each in nodes.values()]
    order = dict.fromkeys([*connected, *known, *bootstrap])
    return [each for each in order if each not in suspects] + [
        each for each in order if each in suspects
    ]


def error_of(view: TopicView) -> Exception | None:
    """Return the error that a topic was told with."""
    return None if view.error_code == NONE else error_for(view.error_code, view.name)
