"""Whether a node is back after a restart, and whether what it lacks shrinks."""

from dataclasses import replace
from typing import Any

import pytest

from dlogctl.cluster.cluster_view import Cluster
from dlogctl.cluster.returns import Left, Progress, epoch_of, left_of
from tests.fakes.cluster_views import cluster_of, partition

WHOLE = partition(0, (1, 2, 3), (1, 2, 3))


def status(state: str = "active", *problems: str, lag: int = 0, **epochs: int) -> dict[str, Any]:
    """Return what a node says of itself, of its followers' lag (node 2), and of all epochs."""
    followers = [{"node": 2, "lag_records": lag, "lag_bytes": lag, "lag_ms": lag}] if lag else []
    return {
        "state": state,
        "problems": list(problems),
        "nodes": [{"node_id": int(n[1:]), "node_epoch": each} for n, each in epochs.items()],
        "replication": {"followers": followers, "worst": []},
    }


def left(cluster: Cluster, since: int | None = None, **statuses: Any) -> Left:
    told = {int(name[1:]): each for name, each in statuses.items()}
    return left_of(cluster, 2, {1: status(), 2: status(), 3: status(), **told}, [], since)


def test_a_node_that_has_everything_is_back() -> None:
    found = left(cluster_of(WHOLE), since=7, n1=status(n2=8))
    assert (found.is_back, found.reasons, found.elsewhere) == (True, [], [])


@pytest.mark.parametrize(
    ("cluster", "statuses", "words"),
    [
        (cluster_of(WHOLE, fenced=[2]), {}, "it is fenced"),
        (cluster_of(partition(0, (1, 2, 3), (1, 3))), {}, "ISR of 1 of 1 partitions: t-0"),
        (
            cluster_of(WHOLE),
            {"n2": status("recovering", "not serving: 3 of 9")},
            "it is recovering: not serving: 3 of 9",
        ),
    ],
)
def test_what_it_lacks_is_named(cluster: Cluster, statuses: dict[str, Any], words: str) -> None:
    found = left(cluster, **statuses)
    assert not found.is_back and words in "; ".join(found.reasons)


def test_a_failed_disk_is_named() -> None:
    found = left_of(cluster_of(WHOLE), 2, {2: status()}, ["/data/2 is out of service"], None)
    assert found.reasons == ["data directory /data/2 is out of service"]


@pytest.mark.parametrize(
    ("statuses", "words"),
    [
        ({"n1": status(n2=7)}, "since epoch 7: its epoch is 7"),
        ({}, "since epoch 7: no node tells its epoch"),
    ],
)
def test_the_life_before_does_not_count(statuses: dict[str, Any], words: str) -> None:
    found = left(cluster_of(WHOLE), since=7, **statuses)
    assert not found.is_back and words in found.reasons[0]


def test_the_newest_epoch_that_anybody_knows_counts() -> None:
    statuses = {1: status(n2=7), 2: None, 3: status(n2=9, n1=20)}
    assert (epoch_of(2, statuses), epoch_of(4, statuses)) == (9, -1)


def test_metadata_count_only_when_it_has_been_behind_for_a_while() -> None:
    cluster = cluster_of(WHOLE)
    assert cluster.quorum is not None
    first, own, third = cluster.quorum.voters
    for lacks, since_ms, is_back in ((0, 0, True), (3, 100, True), (3, 2_000, False)):
        leader = replace_of(first, log_end_offset=10, last_fetch_ms=50_000)
        behind = replace_of(
            own,
            log_end_offset=10 - lacks,
            last_fetch_ms=50_000,
            last_caught_up_ms=50_000 - since_ms,
        )
        quorum = replace(cluster.quorum, voters=(leader, behind, third))
        found = left(replace(cluster, quorum=quorum))
        assert found.is_back is is_back, found.reasons
    assert "it lacks 3 entries of the metadata" in found.reasons[0]


def replace_of(each: Any, **fields: int) -> Any:
    return each._replace(**fields)


def test_faults_elsewhere_are_named_and_do_not_count() -> None:
    cluster = cluster_of(
        WHOLE, partition(1, (1, 3), (1,)), partition(2, (3,), (3,), -1), fenced=[3]
    )
    found = left(cluster, n3=None)
    assert found.is_back
    assert found.elsewhere == [
        "node 3 is fenced",
        "t-2 have no leader",
        "t-1 lack replicas on other nodes",
    ]


def amounts(*numbers: int, words: str = "active") -> Left:
    return Left(reasons=["x"], amounts=numbers, words=words)


def test_progress_is_what_shrinks_or_was_never_said_before() -> None:
    progress = Progress()
    looks = [
        (amounts(0, 1, 5, 900), True),  # the first look
        (amounts(0, 1, 5, 900), False),
        (amounts(0, 1, 5, 800), True),
        (amounts(0, 1, 5, 850), False),  # load goes on
        (amounts(0, 1, 5, 820), False),  # up and down again
        (amounts(0, 0, 9, 999), True),  # it is no longer fenced
        (amounts(0, 0, 9, 999, words="recovering 3 of 9"), True),
        (amounts(0, 0, 9, 999, words="recovering 4 of 9"), True),
        (amounts(0, 0, 9, 999, words="recovering 3 of 9"), False),  # it has started over
        (amounts(0, 0, 9, 999, words="recovering 4 of 9"), False),
    ]
    assert [progress.note(look) for look, _ in looks] == [moved for _, moved in looks]


def test_lag_of_the_node_over_all_leaders_is_counted() -> None:
    found = left(cluster_of(WHOLE), n1=status(lag=300), n3=status(lag=30))
    assert 330 in found.amounts and found.is_back
