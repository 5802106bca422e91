"""The moves that even out replicas and leaders: few, allowed, and always the same."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from dlogctl.cluster.rebalance import Racks, Rebalance, Replicas


def topic(*replicas: tuple[int, ...]) -> Replicas:
    return {("t", number): nodes for number, nodes in enumerate(replicas)}


def moved(present: Replicas, plan: Replicas) -> int:
    return sum(len(set(nodes) - set(present[key])) for key, nodes in plan.items())


def test_a_new_node_gets_its_share_and_nothing_else_moves() -> None:
    present = topic(*[(1, 2, 3), (2, 3, 1), (3, 1, 2), (1, 2, 3)] * 2)
    rebalance = Rebalance(present, {}, (1, 2, 3, 4), only_to=(4,))
    plan = rebalance.plan()
    assert moved(present, plan) == 6
    assert {node: count for node, (count, _) in rebalance.counts().items()} == dict.fromkeys(
        (1, 2, 3, 4), 6
    )
    assert all(set(nodes) - set(present[key]) <= {4} for key, nodes in plan.items())


def test_what_is_even_stays() -> None:
    present = topic((1, 2), (2, 3), (3, 1))
    assert Rebalance(present, {1: "a", 2: "b", 3: "c"}, (1, 2, 3)).plan() == {}
    assert Rebalance(topic((1, 2), (2, 1), (1, 2)), {}, (1, 2)).plan() == {}


def test_leaders_are_evened_out_by_order_alone() -> None:
    present = topic(*[(1, 2, 3)] * 6)
    rebalance = Rebalance(present, {}, (1, 2, 3))
    plan = rebalance.plan()
    assert moved(present, plan) == 0
    assert [leads for _, leads in rebalance.counts().values()] == [2, 2, 2]


def test_no_partition_loses_a_rack() -> None:
    racks = {1: "a", 2: "b", 3: "b"}
    present = topic(*[(1, 2)] * 6)
    plan = Rebalance(present, racks, (1, 2, 3)).plan()
    # Node 1 is alone in its rack and keeps everything; node 3 takes from node 2 only.
    assert all(1 in nodes for nodes in plan.values()) and moved(present, plan) == 3


def test_a_partition_within_one_rack_is_spread_first() -> None:
    racks = {1: "a", 2: "a", 3: "b"}
    present = topic((1, 2), (1, 3), (2, 1), (1, 3))
    plan = Rebalance(present, racks, (1, 2, 3)).plan()
    assert plan[("t", 2)] == (2, 3)


def test_replicas_on_nodes_that_take_nothing_stay() -> None:
    present = topic((4, 1), (4, 1), (4, 2))
    plan = Rebalance(present, {}, (1, 2, 3)).plan()
    assert all(4 in nodes for nodes in plan.values())


@st.composite
def clusters(draw: st.DrawFn) -> tuple[Replicas, Racks, list[int], list[int]]:
    nodes = draw(st.lists(st.integers(1, 9), min_size=2, max_size=6, unique=True))
    racks = {node: draw(st.sampled_from([None, "a", "b", "c"])) for node in nodes}
    one = st.lists(st.sampled_from(nodes), min_size=1, max_size=min(3, len(nodes)), unique=True)
    present = topic(*map(tuple, draw(st.lists(one, max_size=25))))
    takers = draw(st.lists(st.sampled_from(nodes), min_size=1, unique=True))
    only_to = draw(st.lists(st.sampled_from(takers), unique=True))
    return present, racks, takers, only_to


def _racks_of(nodes: tuple[int, ...], racks: Racks) -> int:
    return len({racks[node] or f"node {node}" for node in nodes})


@given(clusters())
def test_every_plan_keeps_the_rules(
    cluster: tuple[Replicas, Racks, list[int], list[int]],
) -> None:
    present, racks, takers, only_to = cluster
    rebalance = Rebalance(present, racks, takers, only_to)
    plan = rebalance.plan()
    assert plan == Rebalance(present, racks, takers, only_to).plan()
    new: Counter[int] = Counter()
    for key, nodes in plan.items():
        assert len(set(nodes)) == len(nodes) == len(present[key])
        assert _racks_of(nodes, racks) >= _racks_of(present[key], racks)
        added, gone = set(nodes) - set(present[key]), set(present[key]) - set(nodes)
        assert gone <= set(takers) and added <= set(only_to or takers)
        new.update(added)
    before = Counter(node for nodes in present.values() for node in nodes if node in takers)
    after = {node: count for node, (count, _) in rebalance.counts().items()}
    # Nobody gets above the fullest before, and nobody who got something is fuller than a giver.
    assert max(after.values()) <= max(before.values(), default=0)
    for node in new:
        assert after[node] <= min(
            [after[giver] + 1 for giver in takers if after[giver] < before[giver]], default=0
        )
    # What is done is done: a second plan finds nothing.
    again = {**present, **plan}
    assert Rebalance(again, racks, takers, only_to).plan() == {}
