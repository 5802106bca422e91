"""Commands about nodes, controllers and partitions, against the handlers of a node in memory."""

import asyncio
import json
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast
from uuid import UUID

import click
import pytest

from dlog.client.admin_views import Drain, NodeState, QuorumReplica, QuorumView
from dlog.client.views import ClusterView, PartitionView, TopicView
from dlog.errors import InvalidRequestError, UnknownTopicOrPartitionError
from dlog.transport import Address
from dlog.types import ZERO_TOPIC_ID, NodeId
from dlog.wire import frame
from dlog.wire.apis import ApiKey
from dlog.wire.frame import FrameSplitter
from dlogctl.__main__ import main
from dlogctl.cluster import Cluster
from dlogctl.health import gossip_notes, partition_counts, reasons_against
from dlogctl.partition_names import named, one, parse_nodes
from dlogctl.risks import risks_of
from dlogd.metadata.commands import AlterPartition, ClaimController
from dlogd.metadata.image import Refused
from dlogd.metadata.raft.membership import Operation
from dlogd.server.exchange import Peer
from tests.fakes.server import FakeNode, FakeQuorum, new_topic, replica_state

# Pure parts


def partition(
    number: int, replicas: Sequence[int], isr: Sequence[int], leader: int | None = None
) -> PartitionView:
    return PartitionView(
        partition=number,
        leader=isr[0] if leader is None else leader,
        leader_epoch=0,
        replicas=tuple(replicas),
        isr=tuple(isr),
        offline=(),
    )


def cluster_of(
    *partitions: PartitionView,
    fenced: Sequence[int] = (),
    drained: Sequence[int] = (),
    voters: Sequence[int] = (1, 2, 3),
) -> Cluster:
    address = Address("h", 1)
    topic = TopicView(name="t", topic_id=ZERO_TOPIC_ID, is_internal=False, partitions=partitions)
    quorum = QuorumView(
        leader_id=voters[0],
        term=1,
        high_watermark=10,
        voters=tuple(QuorumReplica(n, ZERO_TOPIC_ID, 10, 100, 100, address) for n in voters),
        observers=(),
    )
    return Cluster(
        view=ClusterView(cluster_id="c", controller_id=1, nodes={}, topics={"t": topic}),
        nodes={
            n: NodeState(
                n, address, None, n in fenced, Drain.LEADERS if n in drained else Drain.NONE
            )
            for n in (1, 2, 3)
        },
        quorum=quorum,
    )


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
        (replace(cluster_of(fine), quorum=None, quorum_problem="lost"), "nobody leads"),
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
        with pytest.raises(ValueError, match="no list of node ids"):
            parse_nodes(text)


# Commands


class World:
    """A node in memory, asked over a real socket; it stands for all nodes of its cluster."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever)
        self.quorum = FakeQuorum()
        self.node = cast(FakeNode, None)
        self._answering: set[asyncio.Task[None]] = set()

    def __enter__(self) -> "World":
        self.thread.start()
        self.do(self._start())
        return self

    def __exit__(self, *_: object) -> None:
        self.do(self._stop())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join()
        self.loop.close()

    def do(self, work: Any) -> Any:
        """Run something on the loop of the node."""
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(10)

    async def _start(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port: int = self._server.sockets[0].getsockname()[1]
        self.node = FakeNode(quorum=self.quorum, port=self.port)
        for node_id in (2, 3, 4):
            self.node.register(node_id, rack=f"r{node_id}")
        self.claim(1)
        topics = [
            new_topic("t", assignments=[(0, [1, 2, 3]), (1, [2, 3, 1]), (2, [1, 2, 3])]),
            new_topic("single", assignments=[(0, [2])]),
        ]
        for each in topics:
            await self.node.ask(ApiKey.CREATE_TOPICS, 7, topics=[each], timeout=1000)

    async def _stop(self) -> None:
        self._server.close()
        for task in self._answering:
            task.cancel()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._answering.add(task)
        splitter = FrameSplitter()
        while data := await reader.read(1 << 16):
            for each in splitter.feed(memoryview(data)):
                header = frame.parse_request_header(each, 0, len(each))
                answer = self.node.dispatcher.respond(header, each, len(each), Peer())
                writer.write(answer if isinstance(answer, bytes) else await answer)
        writer.close()

    def claim(self, node_id: int) -> None:
        """Let a node be the controller."""
        image = self.node.image
        self.node.apply(
            ClaimController(
                command_id=self.node.context.new_id(),
                node_id=NodeId(node_id),
                node_epoch=image.nodes[NodeId(node_id)].node_epoch,
                controller_epoch=image.controller.epoch,
            )
        )
        self.quorum.state = replace(self.quorum.state, leader_id=node_id)

    def lead_by_first(self, topic: str, number: int, isr: Sequence[int]) -> None:
        """Shrink an ISR as its leader does."""
        image = self.node.image
        found = image.topics[topic].partitions[number]
        self.node.apply(
            AlterPartition(
                command_id=self.node.context.new_id(),
                topic_id=image.topics[topic].topic_id,
                partition=number,
                node_id=found.leader,
                node_epoch=image.nodes[found.leader].node_epoch,
                leader_epoch=found.leader_epoch,
                partition_epoch=found.partition_epoch,
                isr=tuple((NodeId(n), image.nodes[NodeId(n)].node_epoch) for n in isr),
            )
        )


@dataclass(frozen=True)
class Result:
    code: int
    out: str
    err: str


Ctl = Callable[..., Result]


@pytest.fixture
def world() -> Iterator[World]:
    with World() as made:
        yield made


@pytest.fixture
def ctl(world: World, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Ctl:
    def run(line: str) -> Result:
        monkeypatch.setenv("DLOG_BOOTSTRAP", f"127.0.0.1:{world.port}")
        monkeypatch.setenv("XDG_CONFIG_HOME", "/no/contexts/here")
        code = main(["--timeout", "2", *line.split()])
        captured = capsys.readouterr()
        assert "Traceback" not in captured.err
        return Result(code, captured.out, captured.err)

    return run


def test_nodes_are_listed(ctl: Ctl, world: World) -> None:
    world.node.fence(3)
    shown = ctl("node list")
    assert shown.code == 0
    rows = [line.split() for line in shown.out.splitlines()[1:]]
    assert [row[0] for row in rows] == ["1", "2", "3", "4"]
    assert [row[3] for row in rows] == ["active", "active", "fenced", "active"]
    assert [row[4] for row in rows] == ["controller", "voter", "voter", "observer"]
    assert [row[5:] for row in rows] == [
        ["2", "3", "0"],
        ["2", "4", "0"],
        ["0", "3", "3"],
        ["0"] * 3,
    ]
    assert "REPLICAS" in ctl("node list --explain").err
    found = json.loads(ctl("node describe 2 -o json").out)
    assert (found["rack"], found["leads"], len(found["partitions"])) == ("r2", 2, 4)
    assert "only what the metadata knows" in ctl("node describe 3").err
    missing = ctl("node describe 9")
    assert missing.code == 1
    assert "has no node 9; there are: 1, 2, 3, 4; see: dlogctl node list" in missing.err


def test_draining(ctl: Ctl, world: World) -> None:
    dry = ctl("node drain 2 --dry-run")
    assert dry.out == ("node 2: 1 leader would move\nnode 2: nobody else can lead single-0\n")
    assert ctl("node drain 1 2 3 4").code == 1, "somebody must be left"
    # Nobody moves anything here: no controller acts.
    stuck = ctl("node drain 2 --patience 100ms")
    assert stuck.code == 10
    assert "nothing has moved for 0.1 s, 1 left: t-1" in stuck.err
    assert json.loads(ctl("node list -o json").out)[1]["state"] == "draining"
    world.do(elect_all(world))
    left = ctl("node drain 2")
    assert left.code == 10
    assert "still leads 1 partition that no other node in sync can lead: single-0" in left.err
    assert ctl("node drain 4 --replicas").out == "node 4 holds nothing\n"
    assert json.loads(ctl("node list -o json").out)[3]["state"] == "drained"
    assert ctl("node drain 3 --no-wait").out == "node 3 is draining\n"
    rows = json.loads(ctl("node undrain 2 3 4 -o json").out)
    assert [row["result"] for row in rows] == ["undrained"] * 3
    assert ctl("node drain 9").code == 1
    assert ctl("node undrain 9").code == 1


def test_replicas_that_nobody_can_take_are_told_at_once(ctl: Ctl) -> None:
    """All other nodes that are up have a replica of them: waiting helps nobody."""
    assert ctl("node drain 4 --no-wait").code == 0
    dry = ctl("node drain 3 --replicas --dry-run")
    assert dry.out == "node 3: 0 replicas would move\nnode 3: nobody else can take t-0, t-1, t-2\n"
    left = ctl("node drain 3 --replicas")
    assert left.code == 10
    assert left.err == (
        "node 3 keeps 3 replicas that no other node can take, for all that are up and not drained"
        " have one already: t-0, t-1, t-2; they move when there is another node, or go with:"
        " dlogctl topic alter TOPIC --replication-factor N\n"
    )
    moving = ctl("node drain 2 --replicas --patience 100ms")
    assert "nothing has moved for 0.1 s, 1 left: single-0" in moving.err


async def elect_all(world: World) -> None:
    await world.node.ask(
        ApiKey.ELECT_LEADERS, 2, election_type=0, topic_partitions=None, timeout=1000
    )


def test_the_controller_is_drained_of_its_office(ctl: Ctl, world: World) -> None:
    world.quorum.on_change = lambda: world.claim(world.quorum.changes[-1][1])
    world.do(configure(world, "2", "leaders"))
    world.do(elect_all(world))
    result = ctl("node drain 1 --patience 100ms")
    assert "node 3 is the controller now" in result.err, "node 2 is drained"
    world.claim(1)
    assert "controller" not in ctl("node drain 1 --keep-controller --no-wait").err


async def configure(world: World, name: str, drain: str) -> None:
    configs = [{"name": "node.drain", "config_operation": 0, "value": drain}]
    resource = {"resource_type": 4, "resource_name": name, "configs": configs}
    await world.node.ask(ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, resources=[resource])


def test_removing_a_node(ctl: Ctl, world: World) -> None:
    assert "votes on the metadata: remove it there first" in ctl("node remove 2 --yes").err
    assert "is running: stop it first" in ctl("node remove 4 --yes").err
    world.node.fence(4)
    assert ctl("node remove 4 --dry-run").out == "node 4 would be forgotten\n"
    assert ctl("node remove 4").code == 1, "it asks"
    assert ctl("node remove 4 --yes").out == "node 4 is forgotten\n"
    assert ctl("node remove 4 --yes").code == 1
    voters = tuple(each for each in world.quorum.state.voters if each.node_id != 3)
    world.quorum.state = replace(world.quorum.state, voters=voters)
    assert "holds 3 replicas (t-0, t-1, t-2)" in ctl("node remove 3 --yes").err


def test_before_a_restart(ctl: Ctl, world: World) -> None:
    fine = ctl("node pre-restart 1")
    assert fine.code == 0
    assert fine.out.startswith("node 1 may be restarted\n")
    found = json.loads(ctl("node pre-restart 2 -o json").out)
    assert found["replication_factor_1"] == found["would_go_offline"] == ["single-0"]
    world.lead_by_first("t", 0, [1])
    blocked = ctl("node pre-restart 1")
    assert blocked.code == 10
    assert "t-0 would have fewer replicas in sync" in blocked.out
    assert "would go offline: 1\n" in blocked.out
    assert "may_restart\tno\n" in ctl("node pre-restart 1 -o tsv").out
    assert ctl("node pre-restart 9").code == 1


def test_controllers_are_listed(ctl: Ctl) -> None:
    shown = ctl("controller list --explain")
    assert shown.code == 0
    assert "healthy voters:      3 of 2 needed\n" in shown.out
    assert [line.split()[1] for line in shown.out.splitlines()[5:]] == [
        *("controller", "voter", "voter", "observer"),
    ]
    found = json.loads(ctl("controller list -o json").out)
    assert [each["lag"] for each in found["nodes"]] == [0, 2, 0, 3]
    assert found["failures_tolerated"] == 1


def test_voters_come_and_go(ctl: Ctl, world: World) -> None:
    assert ctl("controller add 4 --address n4:9093 --dry-run").out == (
        "node 4 would vote, at n4:9093: 4 voters, of which 1 may fail\n"
    )
    assert not world.quorum.changes
    assert ctl("controller add 4 --address n4:9093").code == 0
    assert world.quorum.changes.pop() == (Operation.ADD, 4, "n4", 9093)
    assert "has no metadata.listener of its own" in ctl("controller add 4").err
    assert ctl("controller add 4 --address nonsense").code == 64
    assert "does not follow the metadata; those that do are 4" in ctl("controller add 9").err
    world.quorum.outcome = Refused(code=InvalidRequestError.code, message="Not yet.")
    refused = ctl("controller add 4 --address n4:9093")
    assert refused.err == "dlogctl: Not yet; see: dlogctl controller list\n"
    assert ctl("controller remove 3 --yes").code == 1
    world.quorum.changes.clear()
    state = world.quorum.state
    silent = replace(replica_state(2), last_fetch_ms=-1)
    world.quorum.state = replace(state, voters=(state.voters[0], silent, state.voters[2]))
    lost = ctl("controller remove 3 --yes")
    assert "only 1 of 2 voters would be healthy, and 2 are needed" in lost.err
    assert ctl("controller remove 2 --dry-run").code == 0, "a silent one may go"
    world.quorum.state = replace(state, voters=state.voters[:1])
    assert "is the only voter" in ctl("controller remove 1 --yes").err
    assert not world.quorum.changes


def test_a_voter_with_a_new_disk_is_removed_first(ctl: Ctl, world: World) -> None:
    assert ctl("controller add 2").err == (
        "dlogctl: node 2 votes already; see: dlogctl controller list\n"
    )
    state = world.quorum.state
    new_disk = replace(replica_state(2), directory_id=UUID(int=77))
    world.quorum.state = replace(state, observers=(*state.observers, new_disk))
    refused = ctl("controller add 2")
    assert refused.code == 1
    assert "a new disk" in refused.err
    assert refused.err.endswith(
        "first: dlogctl controller remove 2, then: dlogctl controller add 2\n"
    )
    assert ctl("controller remove 2 --yes").code == 0


def test_a_lost_quorum_is_told(ctl: Ctl, world: World) -> None:
    world.quorum.state = replace(world.quorum.state, leader_id=None)
    lost = ctl("controller list")
    assert lost.code == 1
    assert "who keeps the metadata is not known" in lost.err
    assert "bring controllers back" in lost.err
    sick = ctl("status")
    assert sick.code == 10
    assert "nobody leads the metadata: " in sick.out
    document = json.loads(ctl("status -o json").out)
    assert document["controller"] is None
    assert {each["role"] for each in document["nodes"]} == {None}, "nobody knows"


def test_partitions_are_listed(ctl: Ctl, world: World) -> None:
    world.lead_by_first("t", 0, [1, 2])

    def names(line: str) -> list[tuple[str, int]]:
        found = json.loads(ctl(f"partition list {line} -o json").out)
        return [(each["topic"], each["partition"]) for each in found]

    assert names("") == [("single", 0), ("t", 0), ("t", 1), ("t", 2)]
    assert names("t-1 single") == [("t", 1), ("single", 0)]
    assert names("--under-replicated") == [("t", 0)]
    assert names("--node 3") == [("t", 0), ("t", 1), ("t", 2)]
    assert names("--leaderless") == names("--not-preferred") == []
    world.node.fence(2)
    assert names("--leaderless") == [("single", 0)]
    assert names("t --not-preferred") == [("t", 1)]


def test_moving_and_electing(ctl: Ctl, world: World, tmp_path: Path) -> None:
    begun = ctl("partition reassign t-0=4,1 t-1=9")
    assert begun.code == 1
    assert begun.out == "begun to move: 1 partition\n"
    assert begun.err.startswith("t-1: INVALID_REPLICA_ASSIGNMENT: ")
    (row,) = json.loads(ctl("partition reassignments -o json").out)
    assert (row["topic"], row["partition"], row["adding"]) == ("t", 0, [4])
    assert (row["removing"], row["in_sync"]) == ([2, 3], [])
    assert ctl("partition reassignments single").err == "nothing moves\n"
    world.lead_by_first("t", 0, [1, 2, 3, 4])
    assert json.loads(ctl("partition reassignments -o json").out) == []
    assert ctl("partition elect").out == "new leaders: 1 partition\n"
    assert ctl("partition elect t").out == "new leaders: 0 partitions\n"
    ctl("partition reassign t-1=4")
    assert "moves that have begun go on: t-1; end them" in ctl("node undrain 2").err
    assert ctl("node undrain 4").err == ""
    assert ctl("partition reassign --cancel t").out == "cancelled: 1 partition\n"
    nothing = ctl("partition reassign --cancel t-1 -o json")
    assert nothing.code == 1
    assert json.loads(nothing.out)[0]["error"] == "NO_REASSIGNMENT_IN_PROGRESS"
    for line in ("", "t-0", "t-0=x", "--cancel --wait t", "--file /etc/hosts --cancel"):
        assert ctl(f"partition reassign {line}").code == 64
    plan = tmp_path / "plan.json"
    plan.write_text("{}")
    assert 'looks like {"version": 1' in ctl(f"partition reassign --file {plan}").err
    assert ctl("partition elect --unclean").code == 64
    assert ctl("partition elect t --unclean").code == 1, "it asks"
    world.node.fence(2)
    code = ctl("partition elect single --unclean --yes")
    assert code.code == 1
    assert "ELIGIBLE_LEADERS_NOT_AVAILABLE" in code.err


def test_a_topic_is_created_on_chosen_nodes(ctl: Ctl, world: World) -> None:
    assert ctl("topic create chosen --assign 3,1 --assign 1,4").code == 0
    replicas = [each.replicas for each in world.node.image.topics["chosen"].partitions]
    assert replicas == [(3, 1), (1, 4)]
    assert ctl("topic create other --assign 3,1 -p 2").code == 64
    assert ctl("topic create other --assign x").code == 64


def test_status_names_nodes_that_are_down(ctl: Ctl, world: World) -> None:
    world.node.fence(3)
    document = json.loads(ctl("status -o json").out)
    assert not document["healthy"]
    assert "node 3 is fenced: it is down, or cannot be reached" in document["reasons"]
    assert [each["state"] for each in document["nodes"]][2] == "fenced"
    assert [each["role"] for each in document["nodes"]] == [
        *("controller", "voter", "voter", "observer"),
    ]
    assert document["metadata"]["voters"][1]["lag"] == 2
    assert "lag of voters:         1:0,2:2,3:0\n" in ctl("status").out


def test_a_node_that_was_just_fenced_is_not_asked(ctl: Ctl, world: World) -> None:
    """Clients hear of it for a moment more; nothing can be asked of it."""
    before, context = world.node.image, world.node.context
    world.node.fence(3)
    context.lingering.on_image(before, world.node.image, context.clock.now_ms())
    document = json.loads(ctl("status -o json").out)
    assert [each["state"] for each in document["nodes"]][2] == "fenced"
    assert [each for each in document["notes"] if "node 3" in each] == []
