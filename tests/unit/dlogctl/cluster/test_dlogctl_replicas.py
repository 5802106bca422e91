"""What `dlogctl` makes of replicas: who is behind, what moves, what may be repaired. Pure parts."""

import asyncio
from contextlib import nullcontext
from typing import Any
from uuid import UUID

import click
import pytest

from dlog.client.admin import Resource
from dlog.client.views import ClusterView, PartitionView, TopicView
from dlog.errors import InvalidConfigError
from dlogctl.__main__ import main
from dlogctl.cluster.digests import Finding
from dlogctl.cluster.lags import lags_of, worst_of
from dlogctl.cluster.moves import bytes_to_go, merged, throttled_replicas
from dlogctl.cluster.partition_names import one, parse_nodes
from dlogctl.cluster.replica_comparison import Comparison
from dlogctl.cluster.resources import Target
from dlogctl.commands import partition_verify
from dlogctl.commands.config_change import Change, refused
from dlogctl.commands.partition_repair import refusal

KEY = ("t", 0)


def status(*followers: tuple[int, int, int], worst: Any = ()) -> dict[str, Any]:
    rows = [
        {"node": node, "lag_records": records, "lag_bytes": records * 10, "lag_ms": late}
        for node, records, late in followers
    ]
    return {"replication": {"followers": rows, "worst": list(worst)}}


def test_lags_over_all_leaders() -> None:
    nothing: list[dict[str, Any] | None] = [None, {"replication": None}, {}]
    told = [status((2, 5, 100), (3, 0, 0)), status((2, 1, 900)), status((2, 3, 50)), *nothing]
    assert lags_of(told) == {
        2: {"records": 9, "bytes": 90, "ms": 900},
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


def test_throttled_replicas_of_others_stay_in_the_list() -> None:
    assert merged("", "0:1,0:2") == "0:1,0:2"
    assert merged("*", "0:1") == "*"
    assert merged("0:1, 5:3", "0:1,0:2") == "0:1,5:3,0:2"


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
        (partition([1, 2, 3], [], -1), 2, 1, "no node leads"),
    ],
)
def test_what_may_be_repaired(
    state: PartitionView, node: int, min_isr: int, why: str | None
) -> None:
    found = refusal(KEY, state, node, min_isr)
    assert found is None if why is None else why in (found or "")


def view_of(**topics: int) -> ClusterView:
    """Return a cluster with topics of so many partitions."""
    views = {
        name: TopicView(
            name=name,
            topic_id=UUID(int=1),
            is_internal=False,
            partitions=tuple(partition([1], [1], 1) for _ in range(count)),
        )
        for name, count in topics.items()
    }
    return ClusterView(cluster_id=None, controller_id=1, nodes={}, topics=views)


@pytest.mark.parametrize("text", ["", "1,,2", "-1", "1 2", "1=2", "x", "4294967296", "9" * 5000])
def test_what_names_no_nodes(text: str) -> None:
    assert parse_nodes("2, 1,2147483647") == [2, 1, 2147483647]
    with pytest.raises(
        ValueError, match=r"not a list of node ids|is not a node id; the largest is"
    ):
        parse_nodes(text)


def test_who_names_a_topic_instead_of_a_partition_is_told_its_partitions() -> None:
    view = view_of(ev=2, single=1, **{"t-1": 1})
    assert one(view, "ev-1") == ("ev", 1) and one(view, "t-1-0") == ("t-1", 0)
    assert one(view, "ev-" + "0" * 5000) == ("ev", 0)
    for name, message in (
        ("ev", "ev is a topic: name one of its partitions, ev-0 to ev-1"),
        ("t-1", "t-1 is a topic: name one of its partitions, t-1-0"),
        ("ev-2", "topic ev has no partition 2"),
        ("ev-" + "9" * 5000, f"topic ev has no partition {'9' * 20}...;"),
        ("ev-" + "0" * 5000 + "7", f"topic ev has no partition {'0' * 20}...;"),
    ):
        with pytest.raises(click.ClickException) as found:
            one(view, name)
        assert found.value.message.startswith(message)


@pytest.mark.parametrize(
    ("target", "key", "said"),
    [
        ("1", "retention.ms", "set log.retention.ms for the whole cluster, without --node, or:"),
        ("1", "replication.factor", "topic.replication.default stands in the file of each node"),
        ("1", "leader.replication.throttled.rate", "see: dlogctl config explain leader.repl"),
        ("", "leader.replication.throttled.rate", "see: dlogctl config explain leader.repl"),
        ("", "node.id", "belongs into the file of each node"),
        ("topic", "leader.replication.throttled.rate", "--node instead of --topic"),
        ("topic", "retention.ms", "see: dlogctl config explain retention.ms"),
        ("topic", "retention.msx", "did you mean retention.ms? see all"),
    ],
)
def test_a_refused_config_says_where_it_belongs(target: str, key: str, said: str) -> None:
    resource = Resource.TOPIC if target == "topic" else Resource.BROKER
    change = Change(set_values={key: "-1"})
    error = refused(InvalidConfigError(f"Not {key}."), Target(resource, target), change)
    assert said in str(error)


@pytest.mark.parametrize(
    "line",
    [
        "topic create x -p 99999999999",
        "topic create x -r 99999999999",
        "topic create x --assign 99999999999",
        "topic alter x -p 99999999999",
        "partition verify x --from 5 --to 5",
        "partition reassign --cancel x-0=1",
    ],
)
def test_numbers_that_cannot_be_are_wrong_usage(
    line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(line.split()) == 64
    assert capsys.readouterr().err.count("\n") == 1


class _Client:
    """A client of a cluster with the topics a and b, of one partition each."""

    def __init__(self) -> None:
        self.admin = self

    async def describe_topics(self) -> ClusterView:
        return view_of(a=1, b=1)

    def run(self, call: Any) -> Any:
        return asyncio.run(call())


@pytest.mark.parametrize(
    ("names", "code", "said"),
    [
        ("a", 0, "1 partition, 7 offsets compared: no differences\n"),
        ("b", 2, "not compared, for deleted meanwhile: b-0\n"),
        (
            "a b",
            2,
            "not compared, for deleted meanwhile: b-0\n"
            "1 partition, 7 offsets compared: no differences\n",
        ),
    ],
)
def test_what_is_deleted_while_it_is_verified_is_not_called_compared(
    names: str,
    code: int,
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    async def run(self: Comparison, *_: int | None) -> list[Finding]:
        topic, _ = self._ask.args[0]  # type: ignore[attr-defined]
        self.is_gone, self.compared = topic == "b", 7
        return []

    monkeypatch.setattr(partition_verify, "connected", lambda _: nullcontext(_Client()))
    monkeypatch.setattr(Comparison, "run", run)
    assert main(["partition", "verify", *names.split()]) == code
    assert capsys.readouterr().err.endswith(said)
