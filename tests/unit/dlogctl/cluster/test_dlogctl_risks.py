"""What speaks against a restart, which partitions are at their minimum, names of partitions."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import click
import pytest

from dlog.errors import UnknownTopicOrPartitionError
from dlogctl.cluster.health import gossip_notes, partition_counts, reasons_against
from dlogctl.cluster.partition_names import named, one, parse_nodes
from dlogctl.cluster.risks import risks_of
from tests.fakes.cluster_views import cluster_of, partition


@pytest.mark.parametrize(
    ("replicas", "isr", "min_isr", "blocked", "lists"),
    [
        ((1, 2, 3), (1, 2, 3), 2, False, "lose"),
        ((1, 2, 3), (1, 2, 3), 3, False, "refuse lose"),  # factor 3 of min 3: nothing can be done
        ((1, 2, 3), (1, 2), 2, True, "refuse lose"),
        ((1, 2, 3), (2, 3), 2, False, ""),  # it is not in sync, and two are
        ((1, 2, 3), (2,), 2, True, "refuse"),
        ((1, 2), (1,), 1, True, "offline refuse lose"),
        ((1, 2), (1, 2), 1, False, "lose"),
        ((1,), (1,), 1, False, "offline refuse single"),
        ((2, 3), (2, 3), 2, False, None),  # not here at all
    ],
)
def test_what_a_restart_would_do(
    replicas: Sequence[int], isr: Sequence[int], min_isr: int, blocked: bool, lists: str | None
) -> None:
    found = risks_of(replace(cluster_of(partition(0, replicas, isr)), min_isr={"t": min_isr}), 1)
    assert found.may_restart is not blocked
    names = lists.split() if lists else []
    assert bool(found.would_go_offline) == ("offline" in names)
    assert bool(found.would_refuse_ack_all) == ("refuse" in names)
    assert bool(found.could_lose_ack_leader) == ("lose" in names)
    assert bool(found.replication_factor_1) == ("single" in names)


def test_what_forbids_a_restart_apart_from_the_node() -> None:
    fine = partition(0, (1, 2, 3), (1, 2, 3))
    assert risks_of(cluster_of(fine), 1).may_restart
    for cluster, reason in (
        (cluster_of(fine, fenced=(2,)), "node 2 is fenced"),
        (cluster_of(partition(0, (2, 3), (), leader=-1)), "t-0 have no leader"),
        (cluster_of(fine, voters=(1, 2)), "no quorum: of its voters only [2]"),
        (replace(cluster_of(fine), reassigning=[("t", 0)]), "t-0 are being reassigned"),
        (replace(cluster_of(fine), quorum=None, quorum_problem="lost"), "no controller leads"),
    ):
        found = risks_of(cluster, 1)
        assert not found.may_restart
        assert reason in " ".join(found.reasons)
    # The only voter may be restarted: there is no other way.
    assert risks_of(cluster_of(fine, voters=(1,)), 1).may_restart
    # Nor does it matter to the metadata when an observer is.
    assert risks_of(cluster_of(fine, voters=(2, 3)), 1).may_restart


def test_silent_voters_are_told() -> None:
    cluster = cluster_of(partition(0, (1, 2, 3), (1, 2, 3)))
    assert cluster.quorum is not None
    silent = cluster.quorum.voters[1]._replace(last_fetch_ms=-1)
    late = cluster.quorum.voters[2]._replace(last_fetch_ms=100_000)
    voters = (cluster.quorum.voters[0], silent, late)
    cluster = replace(cluster, quorum=replace(cluster.quorum, leader_id=3, voters=voters))
    reasons = risks_of(cluster, 3).reasons
    assert reasons == ["voter 1 of the metadata is silent", "voter 2 of the metadata is silent"]


def test_partitions_at_and_under_their_minimum() -> None:
    parts = [
        partition(number, (1, 2, 3), isr) for number, isr in enumerate([(1, 2, 3), (1, 2), (1,)])
    ]
    cluster = replace(cluster_of(*parts), min_isr={"t": 2})
    counts = partition_counts(cluster)
    assert counts["at_min_isr"] == [("t", 1)]
    assert counts["under_min_isr"] == [("t", 2)]
    assert "1 partitions have fewer replicas in sync" in " ".join(reasons_against(cluster, {}))
    # Where all must be in sync, and are, nothing is wrong.
    counts = partition_counts(replace(cluster, min_isr={"t": 3}))
    assert counts["at_min_isr"] == []
    assert counts["under_min_isr"] == [("t", 1), ("t", 2)]


def test_where_gossip_and_metadata_disagree_is_told_once() -> None:
    lost = "node 3: active, but gossip calls it failed"
    statuses: dict[int, dict[str, Any] | None] = {
        1: {"membership": {"disagreements": [lost]}},
        2: {"membership": {"disagreements": [lost]}},
        3: {"membership": None},
        4: None,
    }
    assert gossip_notes(statuses) == [f"{lost} (says 1, 2)"]


def test_names_of_partitions() -> None:
    parts = (partition(0, (1,), (1,)), partition(1, (1,), (1,)))
    view = cluster_of(*parts).view
    dashed = replace(view.topics["t"], name="t-1", partitions=parts[:1])
    view = replace(view, topics={**view.topics, "t-1": dashed})
    assert named(view, ["t"]) == [("t", 0), ("t", 1)]
    assert named(view, ["t-0", "t-0"]) == [("t", 0)]
    assert named(view, ["t-1"]) == [("t-1", 0)], "a topic of that name counts more"
    assert one(view, "t-1-0") == ("t-1", 0)
    for name in ("x", "x-0", "t-", "-0", "t-x"):
        with pytest.raises(UnknownTopicOrPartitionError, match="there is no topic"):
            named(view, [name])
    with pytest.raises(click.ClickException, match="has no partition 7"):
        named(view, ["t-7"])
    assert parse_nodes(" 1, 2") == [1, 2]
    for text in ("", "1,", "x", "-1"):
        with pytest.raises(ValueError, match="not a list of node ids"):
            parse_nodes(text)
