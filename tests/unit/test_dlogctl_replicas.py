"""What `dlogctl` makes of replicas: who is behind, what moves, what may be repaired. Pure parts."""

from typing import Any
from uuid import UUID

import pytest

from dlog.client.views import ClusterView, PartitionView, TopicView
from dlogctl.commands.partition_repair import refusal
from dlogctl.lags import lags_of, worst_of
from dlogctl.moves import bytes_to_go, throttled_replicas

KEY = ("t", 0)


def status(*followers: tuple[int, int, int], worst: Any = ()) -> dict[str, Any]:
    rows = [
        {"node": node, "lag_records": records, "lag_bytes": records * 10, "lag_ms": late}
        for node, records, late in followers
    ]
    return {"replication": {"followers": rows, "worst": list(worst)}}


def test_lags_over_all_leaders() -> None:
    told = [status((2, 5, 100), (3, 0, 0)), status((2, 1, 900)), None, {"replication": None}, {}]
    assert lags_of(told) == {
        2: {"records": 6, "bytes": 60, "ms": 900},
        3: {"records": 0, "bytes": 0, "ms": 0},
    }
    late = [
        {"partition": f"t-{n}", "node": n, "lag_records": n, "lag_ms": n * 10} for n in range(4)
    ]
    found = worst_of([status(worst=late), status(worst=late)])
    assert [each["lag_ms"] for each in found] == [30, 30, 20, 20, 10]


def test_what_is_to_fetch_yet() -> None:
    sizes = {1: {KEY: 1000}, 2: {KEY: 300}, 3: None, 4: {}, 5: {KEY: 2000}}
    found = bytes_to_go(KEY, 1, [2, 3, 4, 5, 6], [1, 6], sizes)
    assert found == {2: 700, 3: None, 4: 1000, 5: 0, 6: 0}
    assert bytes_to_go(KEY, 3, [2], [], sizes) == {2: None}


def partition(replicas: list[int], isr: list[int], leader: int) -> PartitionView:
    return PartitionView(
        partition=0,
        leader=leader,
        leader_epoch=0,
        replicas=tuple(replicas),
        isr=tuple(isr),
        offline=(),
    )


def test_who_is_throttled_in_a_move() -> None:
    one = partition([1, 2], [1, 2], 1)
    topic = TopicView(name="t", topic_id=UUID(int=1), is_internal=False, partitions=(one,))
    view = ClusterView(cluster_id=None, controller_id=1, nodes={}, topics={"t": topic})
    assert throttled_replicas(view, {KEY: [2, 3]}) == {
        "t": {
            "leader.replication.throttled.replicas": "0:1,0:2",
            "follower.replication.throttled.replicas": "0:3",
        }
    }
    assert throttled_replicas(view, {KEY: [2, 1]}) == {}, "nothing is fetched"


@pytest.mark.parametrize(
    ("state", "node", "min_isr", "why"),
    [
        (partition([1, 2, 3], [1, 2, 3], 1), 2, 2, None),
        (partition([1, 2, 3], [1, 3], 1), 2, 2, None),
        (partition([1, 2, 3], [1, 2], 1), 2, 1, None),
        (partition([1, 2, 3], [1, 2], 1), 2, 2, "only 1 replicas of t-0 are in sync"),
        (partition([1, 2, 3], [1, 2, 3], 1), 1, 1, "let another one lead first"),
        (partition([1, 2, 3], [1, 2, 3], 1), 4, 1, "has no replica on node 4"),
        (partition([1, 2, 3], [], -1), 2, 1, "nobody leads"),
    ],
)
def test_what_may_be_repaired(
    state: PartitionView, node: int, min_isr: int, why: str | None
) -> None:
    found = refusal(KEY, state, node, min_isr)
    assert found is None if why is None else why in (found or "")
