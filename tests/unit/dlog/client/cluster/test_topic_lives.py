"""Which life of a topic a client believes in, when nodes lag and ids have no order."""

from uuid import UUID

import pytest

from dlog.client.cluster.metadata_cache import MetadataCache
from dlog.client.cluster.topic_incarnations import FORMER_S, TopicIncarnations
from dlog.client.views import ClusterView, NodeView, PartitionView, TopicView
from dlog.transport import Address

OLD, NEW = UUID(int=9), UUID(int=1)
A, B, C = (Address("h", port) for port in (1, 2, 3))


def told(topic_id: UUID, leader: int, leader_epoch: int) -> ClusterView:
    row = PartitionView(
        partition=0, leader=leader, leader_epoch=leader_epoch, replicas=(), isr=(), offline=()
    )
    topic = TopicView(name="t", topic_id=topic_id, is_internal=False, partitions=(row,))
    return answer(topic)


def gone() -> ClusterView:
    topic = TopicView(
        name="t", topic_id=UUID(int=0), is_internal=False, partitions=(), error_code=3
    )
    return answer(topic)


def answer(topic: TopicView) -> ClusterView:
    nodes = {n: NodeView(node_id=n, address=Address("h", n), rack=None) for n in (1, 2, 3)}
    return ClusterView(cluster_id="c", controller_id=1, nodes=nodes, topics={"t": topic})


def known(cache: MetadataCache) -> tuple[UUID, int, int]:
    view = cache.topic("t")
    assert view is not None
    return view.topic_id, view.partitions[0].leader, view.partitions[0].leader_epoch


@pytest.mark.parametrize("is_forgotten", [False, True])
def test_a_node_that_lags_brings_no_old_topic_back(is_forgotten: bool) -> None:
    cache = MetadataCache()
    cache.learn(told(OLD, 1, 7), 0.0, A)
    if is_forgotten:
        cache.learn(gone(), 1.0, B)
    cache.learn(told(NEW, 2, 0), 2.0, B)
    if is_forgotten:
        cache.learn(gone(), 3.0, C)
        cache.learn(told(OLD, 1, 7), 4.0, A)
        assert cache.topic("t") is None
        cache.learn(told(NEW, 2, 0), 5.0, B)
    cache.doubt_topic("t")
    assert cache.learn(told(OLD, 1, 8), 6.0, C) == 0
    assert known(cache) == (NEW, 2, 0)
    assert cache.stale_topics() == ["t"]  # it is asked for again
    assert cache.learn(told(NEW, 3, 1), 7.0, C) == 1
    assert known(cache) == (NEW, 3, 1)
    assert not cache.stale_topics()


def test_who_met_a_node_that_lags_last_learns_better_when_it_has_caught_up() -> None:
    cache = MetadataCache()
    cache.learn(told(NEW, 2, 0), 0.0, A)
    cache.learn(told(OLD, 1, 7), 1.0, B)
    assert known(cache)[0] == OLD  # a new id: of a topic made anew, for all that is known
    cache.learn(told(NEW, 2, 0), 2.0, C)
    assert known(cache)[0] == OLD
    cache.learn(told(NEW, 2, 0), 3.0, B)
    assert known(cache) == (NEW, 2, 0)
    cache.learn(told(OLD, 1, 7), 4.0, C)
    assert known(cache) == (NEW, 2, 0)


def test_an_id_is_refused_for_a_while_only() -> None:
    cache = MetadataCache()
    cache.learn(told(NEW, 2, 0), 0.0, A)
    cache.learn(told(OLD, 1, 7), 1.0, B)
    cache.learn(told(NEW, 2, 0), FORMER_S, C)
    assert known(cache)[0] == OLD
    cache.learn(told(NEW, 2, 0), FORMER_S + 1, C)
    assert known(cache) == (NEW, 2, 0)


def test_new_lives_and_clusters_that_tell_no_ids_are_always_believed() -> None:
    cache = MetadataCache()
    for number in range(1, 6):
        cache.learn(told(UUID(int=number), number % 3 + 1, 0), 0.0, A)
        assert known(cache)[0] == UUID(int=number)
    cache.learn(told(UUID(int=0), 2, 0), 0.0, B)
    assert known(cache) == (UUID(int=0), 2, 0)


def test_topics_that_are_gone_are_not_remembered_for_ever() -> None:
    lives = TopicIncarnations()
    for number in range(50):
        lives.accept(f"t{number}", OLD, A, number)
        lives.on_gone(f"t{number}", number)
    lives.on_gone("t49", 200)
    assert not lives._lives
    assert not lives._gone
    lives.accept("t", OLD, A, 300)
    lives.on_gone("t", 300)
    lives.accept("t", NEW, A, 310)
    lives.on_gone("other", 500)
    assert not lives.accept("t", OLD, B, 310)
