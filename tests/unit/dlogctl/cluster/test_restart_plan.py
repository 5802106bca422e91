"""Who has to be restarted, in which order, and why."""

from dataclasses import replace
from typing import Any

import pytest

from dlogctl.cluster.cluster_view import Cluster
from dlogctl.cluster.restart_plan import Target, plan_of
from tests.fakes.cluster_views import cluster_of


def status(version: str = "1.0", digest: str = "a" * 16, *waiting: str, at: int = 5) -> Any:
    return {
        "version": version,
        "config": {"digest": digest, "waiting_keys": list(waiting)},
        "started_at_ms": at,
    }


def racked(**racks: str | None) -> Cluster:
    """Return three nodes; node 1 is the controller."""
    cluster = cluster_of()
    nodes = {n: each._replace(rack=racks.get(f"n{n}")) for n, each in cluster.nodes.items()}
    return replace(cluster, nodes=nodes)


ALL = {1: status(), 2: status(), 3: status()}


@pytest.mark.parametrize(
    ("target", "due"),
    [
        (Target(), []),
        (Target(version="1.0"), []),
        (Target(version="2.0"), [2, 3, 1]),
        (Target(digests={-1: "a" * 16}), []),
        (Target(digests={-1: "b" * 16}), [2, 3, 1]),
        (Target(digests={-1: "a" * 16, 3: "b" * 16}), [3]),
        (Target(digests={3: "b" * 16}), [3]),
        (Target(started_after_ms=4), []),
        (Target(started_after_ms=5), [2, 3, 1]),
    ],
)
def test_who_differs_from_the_target_is_due(target: Target, due: list[int]) -> None:
    plan = plan_of(racked(), ALL, target)
    assert [each.node_id for each in plan.due] == due and plan.unknown == []


def test_the_order_is_by_rack_then_id_with_the_controller_last() -> None:
    target = Target(version="2.0")
    by_rack = plan_of(racked(n1="a", n2="c", n3="b"), ALL, target)
    assert [(each.node_id, each.is_controller) for each in by_rack.due] == [
        (3, False),
        (2, False),
        (1, True),
    ]
    done = plan_of(racked(n2="b"), {**ALL, 3: status("2.0")}, target)
    assert [each.node_id for each in done.due] == [2, 1]


def test_each_reason_is_named() -> None:
    statuses = {**ALL, 2: status("0.9", "c" * 16, "node.rack", "listeners")}
    target = Target(version="1.0", digests={2: "a" * 16}, started_after_ms=9)
    plan = plan_of(racked(), statuses, target)
    assert plan.due[0].reasons == (
        "version 0.9, not 1.0",
        "configuration cccccccccccccccc, not aaaaaaaaaaaaaaaa",
        "keys wait for a restart: node.rack, listeners",
        "it has not been restarted yet",
    )


def test_who_does_not_tell_is_unknown() -> None:
    plan = plan_of(racked(), {1: None, 2: status(), 3: None}, Target(version="2.0"))
    assert ([each.node_id for each in plan.due], plan.unknown) == ([2], [1, 3])


def test_an_older_node_that_tells_less_is_due_when_it_is_asked_for_more() -> None:
    older = {1: {"version": "0.1"}, 2: status(), 3: status()}
    plan = plan_of(racked(), older, Target(digests={1: "a" * 16}, started_after_ms=3))
    assert [each.node_id for each in plan.due] == [1]
    assert plan.due[0].reasons[0] == "configuration None, not aaaaaaaaaaaaaaaa"
