"""What a cluster of three nodes refuses, and with which errors: dlog as Apache Kafka."""

import asyncio
import json
import shutil
import subprocess
from collections.abc import Awaitable, Callable, Iterator, Sequence
from datetime import timedelta
from typing import Any

import pytest

from bench.peers.server import StartError
from dlog.client.admin import Admin, NewTopic
from dlog.client.admin_views import Election
from dlog.client.node import NodeClient
from dlog.client.views import PartitionView
from dlog.errors import (
    ERRORS,
    BrokerIdNotRegisteredError,
    DlogError,
    ElectionNotNeededError,
    EligibleLeadersNotAvailableError,
    InvalidConfigError,
    InvalidPartitionsError,
    InvalidReplicaAssignmentError,
    InvalidReplicationFactorError,
    InvalidRequestError,
    InvalidTopicError,
    LeaderNotAvailableError,
    NoReassignmentInProgressError,
    PreferredLeaderNotAvailableError,
    RequestTimedOutError,
    TopicAlreadyExistsError,
    UnknownTopicOrPartitionError,
    WireError,
)
from dlog.wire.apis import ApiKey
from dlogctl.__main__ import main
from tests.behaviour.clusters import CLUSTERS, NODES, TestedCluster
from tests.behaviour.scene import play

KNOWN, DOTTED = "known", "with.dot"
Found = type[WireError] | None
Ask = Callable[[Admin], Awaitable[Found]]


@pytest.fixture(scope="module", params=list(CLUSTERS))
def cluster(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[TestedCluster]:
    """Three nodes with two topics."""
    tested = CLUSTERS[request.param](tmp_path_factory.mktemp(request.param))
    try:
        try:
            tested.start()
        except StartError as error:
            if shutil.which("java") and shutil.which("mvn"):
                raise
            pytest.skip(str(error))
        except subprocess.CalledProcessError as error:
            pytest.skip(f"the jars of Kafka are not in .cache, and cannot be fetched: {error}")
        asyncio.run(prepare(tested))
        yield tested
    finally:
        tested.close()


@pytest.fixture(autouse=True)
def last_words(cluster: TestedCluster) -> Iterator[None]:
    """Show what the nodes said beside a failure."""
    yield
    print(cluster.last_words)


async def prepare(cluster: TestedCluster) -> None:
    """Create what the requests are about, once all nodes are there; wait until all know it."""
    async with Admin(cluster.bootstrap) as admin, asyncio.timeout(60):
        while len((await admin.describe_cluster()).nodes) < len(NODES):
            await asyncio.sleep(0.05)
        await admin.create_topic(KNOWN, assignments=[(1, 2, 3), (2, 3, 1)])
        await admin.create_topic(DOTTED, partitions=1, replication_factor=1)
    for address in cluster.bootstrap.split(","):
        async with Admin(address) as admin, asyncio.timeout(60):
            while DOTTED not in (await admin.describe_topics()).topics:
                await asyncio.sleep(0.05)


def found(error: DlogError | None) -> Found:
    """Return the kind of an error."""
    assert error is None or isinstance(error, WireError), error
    return None if error is None else type(error)


def create(name: str = "new", **fields: Any) -> Ask:
    """Create one topic."""

    async def ask(admin: Admin) -> Found:
        (result,) = (await admin.create_topics([NewTopic(name=name, **fields)])).values()
        return found(result) if isinstance(result, WireError) else None

    return ask


def grow(count: int, assignments: Sequence[Sequence[int]] | None = None, topic: str = KNOWN) -> Ask:
    """Add partitions."""

    async def ask(admin: Admin) -> Found:
        try:
            await admin.create_partitions(topic, count, assignments=assignments)
        except WireError as error:
            return found(error)
        return None

    return ask


def reassign(partition: int, nodes: Sequence[int] | None, topic: str = KNOWN) -> Ask:
    """Move the replicas of one partition, or cancel that."""

    async def ask(admin: Admin) -> Found:
        ((_, error),) = (await admin.alter_reassignments({(topic, partition): nodes})).items()
        return found(error)

    return ask


def elect(partition: int, topic: str = KNOWN, election: Election = Election.PREFERRED) -> Ask:
    """Elect a leader of one partition."""

    async def ask(admin: Admin) -> Found:
        ((_, error),) = (await admin.elect_leaders([(topic, partition)], election)).items()
        return found(error)

    return ask


def unregister(node: int) -> Ask:
    """Forget a node."""

    async def ask(admin: Admin) -> Found:
        try:
            await admin.remove_node(node)
        except WireError as error:
            return found(error)
        return None

    return ask


async def send(admin: Admin, node_id: int, api: ApiKey, build: Callable[[Any], Any]) -> Any:
    """Ask one node."""

    async def operation(node: NodeClient) -> Any:
        return await node.call(api, build)

    return await admin._cluster.run(lambda: admin._cluster.node(node_id), operation)


def raw(api: ApiKey, build: Callable[[Any], Any], code_of: Callable[[Any], int]) -> Ask:
    """Send what the library would not; every node must answer the same."""

    async def ask(admin: Admin) -> Found:
        codes = set()
        for node_id in (await admin.describe_cluster()).nodes:
            response = await send(admin, node_id, api, build)
            codes.add(int(code_of(response)))
        (code,) = codes
        return None if code == 0 else ERRORS[code]

    return ask


def topics(
    *wanted: tuple[str, Sequence[tuple[int, Sequence[int]]]], timeout_ms: int = 10_000
) -> Ask:
    """Create topics with whatever assignments."""

    def build(module: Any) -> Any:
        return module.CreateTopicsRequest(
            topics=tuple(
                module.CreatableTopic(
                    name=name,
                    num_partitions=-1,
                    replication_factor=-1,
                    assignments=tuple(
                        module.CreatableReplicaAssignment(
                            partition_index=index, broker_ids=tuple(nodes)
                        )
                        for index, nodes in assignments
                    ),
                    configs=(),
                )
                for name, assignments in wanted
            ),
            timeout=timedelta(milliseconds=timeout_ms),
            validate_only=False,
        )

    return raw(ApiKey.CREATE_TOPICS, build, lambda response: response.topics[0].error_code)


def election_of_type(number: int) -> Ask:
    """Ask for an election that there is not."""

    def build(module: Any) -> Any:
        partitions = module.TopicPartitions(topic=KNOWN, partitions=(0,))
        return module.ElectLeadersRequest(
            election_type=number, topic_partitions=(partitions,), timeout=timedelta(seconds=10)
        )

    return raw(ApiKey.ELECT_LEADERS, build, lambda response: response.error_code)


BAD: dict[str, tuple[Ask, Found]] = {
    "factor 0": (create(partitions=1, replication_factor=0), InvalidReplicationFactorError),
    "factor -2": (create(partitions=1, replication_factor=-2), InvalidReplicationFactorError),
    "factor above nodes": (
        create(partitions=1, replication_factor=4),
        InvalidReplicationFactorError,
    ),
    "no partition": (create(partitions=0, replication_factor=1), InvalidPartitionsError),
    "partitions -2": (create(partitions=-2, replication_factor=1), InvalidPartitionsError),
    "factor before partitions": (
        create(partitions=0, replication_factor=0),
        InvalidReplicationFactorError,
    ),
    "unknown node": (create(assignments=[(1, 9)]), InvalidReplicaAssignmentError),
    "negative node": (create(assignments=[(1, -1)]), InvalidReplicaAssignmentError),
    "node twice": (create(assignments=[(1, 1)]), InvalidReplicaAssignmentError),
    "uneven": (create(assignments=[(1, 2), (1,)]), InvalidReplicaAssignmentError),
    "no node": (create(assignments=[()]), InvalidReplicaAssignmentError),
    "hole": (topics(("new", [(0, [1]), (2, [1])])), InvalidReplicaAssignmentError),
    "partition twice": (topics(("new", [(0, [1]), (0, [2])])), InvalidReplicaAssignmentError),
    "assignment and partitions": (create(assignments=[(1, 2)], partitions=1), InvalidRequestError),
    "assignment and factor": (
        create(assignments=[(1, 2)], replication_factor=2),
        InvalidRequestError,
    ),
    "existing": (create(KNOWN, partitions=1), TopicAlreadyExistsError),
    "existing before partitions": (create(KNOWN, partitions=0), TopicAlreadyExistsError),
    "bad name": (create("a b", partitions=1), InvalidTopicError),
    "name before partitions": (create("a b", partitions=0), InvalidTopicError),
    "colliding name": (create("with_dot", partitions=1), InvalidTopicError),
    "unknown config": (create(partitions=1, configs={"no.such": "1"}), InvalidConfigError),
    "config no number": (create(partitions=1, configs={"retention.ms": "x"}), InvalidConfigError),
    "min isr 0": (create(partitions=1, configs={"min.insync.replicas": "0"}), InvalidConfigError),
    "config before factor": (
        create(partitions=1, replication_factor=4, configs={"no.such": "1"}),
        InvalidConfigError,
    ),
    "topic twice": (topics(("new", ()), ("new", ())), InvalidRequestError),
    "time-out 0": (topics(("new", ()), timeout_ms=0), RequestTimedOutError),
    "time-out -1": (topics(("new", ()), timeout_ms=-1), RequestTimedOutError),
    "fewer partitions": (grow(1), InvalidPartitionsError),
    "as many partitions": (grow(2), InvalidPartitionsError),
    "partitions -1": (grow(-1), InvalidPartitionsError),
    "more of an unknown topic": (grow(3, topic="gone"), UnknownTopicOrPartitionError),
    "more with too few nodes": (grow(3, [(1, 2)]), InvalidReplicaAssignmentError),
    "more with an unknown node": (grow(3, [(1, 2, 9)]), InvalidReplicaAssignmentError),
    "more with a node twice": (grow(3, [(1, 1, 2)]), InvalidReplicaAssignmentError),
    "more with no assignment": (grow(3, []), InvalidReplicaAssignmentError),
    "more with two assignments": (grow(3, [(1, 2, 3)] * 2), InvalidReplicaAssignmentError),
    "move an unknown topic": (reassign(0, [1], topic="gone"), UnknownTopicOrPartitionError),
    "move an unknown partition": (reassign(9, [1]), UnknownTopicOrPartitionError),
    "move partition -1": (reassign(-1, [1]), UnknownTopicOrPartitionError),
    "move to nobody": (reassign(0, []), InvalidReplicaAssignmentError),
    "move to an unknown node": (reassign(0, [1, 9]), InvalidReplicaAssignmentError),
    "move to a node twice": (reassign(0, [1, 1]), InvalidReplicaAssignmentError),
    "move to a negative node": (reassign(0, [-5]), InvalidReplicaAssignmentError),
    "move nowhere": (reassign(0, [1, 2, 3]), None),
    "cancel nothing": (reassign(0, None), NoReassignmentInProgressError),
    "cancel an unknown topic": (reassign(0, None, topic="gone"), UnknownTopicOrPartitionError),
    "elect in an unknown topic": (elect(0, topic="gone"), UnknownTopicOrPartitionError),
    "elect an unknown partition": (elect(9), UnknownTopicOrPartitionError),
    "elect partition -1": (elect(-1), UnknownTopicOrPartitionError),
    "elect again": (elect(1), ElectionNotNeededError),
    "unclean with a leader": (elect(1, election=Election.UNCLEAN), ElectionNotNeededError),
    "election of type 7": (election_of_type(7), InvalidRequestError),
    "election of type -1": (election_of_type(-1), InvalidRequestError),
    "forget an unknown node": (unregister(9), BrokerIdNotRegisteredError),
    "forget node -1": (unregister(-1), BrokerIdNotRegisteredError),
}


@pytest.mark.parametrize("bad", BAD)
def test_bad_requests(cluster: TestedCluster, bad: str) -> None:
    ask, expected = BAD[bad]

    async def work() -> None:
        async with Admin(cluster.bootstrap) as admin:
            before = await admin.describe_topics()
            assert await ask(admin) is expected
            assert (await admin.describe_topics()).topics == before.topics

    play(work)


def test_replicas_get_another_order_and_the_first_one_leads(cluster: TestedCluster) -> None:
    async def work() -> None:
        async with Admin(cluster.bootstrap) as admin, asyncio.timeout(30):
            await admin.create_topic("ordered", assignments=[(1, 2), (2, 3)])
            key = ("ordered", 0)

            async def until(replicas: tuple[int, ...], leader: int) -> None:
                while True:
                    view = (await admin.describe_topics(["ordered"])).topics["ordered"]
                    states = [(each.replicas, each.leader) for each in view.partitions]
                    if states[:1] == [(replicas, leader)]:
                        return
                    await asyncio.sleep(0.02)

            await until((1, 2), 1)
            assert await elect(0, "ordered")(admin) is ElectionNotNeededError
            assert await admin.alter_reassignments({key: (2, 1)}) == {key: None}
            await until((2, 1), 1)
            assert await admin.list_reassignments() == []
            assert await admin.elect_leaders() == {key: None}
            await until((2, 1), 2)
            assert await admin.elect_leaders() == {}
            await admin.delete_topic("ordered")

    play(work)


def test_many_topics_in_one_request(cluster: TestedCluster) -> None:
    async def work() -> None:
        async with Admin(cluster.bootstrap) as admin, asyncio.timeout(30):
            names = [f"many-{n}" for n in range(20)]
            wanted = [NewTopic(name=n, partitions=3, replication_factor=3) for n in names]
            wanted.append(NewTopic(name=KNOWN, partitions=1))
            results = await admin.create_topics(wanted)
            refused = {n: e for n, e in results.items() if isinstance(e, WireError)}
            assert {n: type(e) for n, e in refused.items()} == {KNOWN: TopicAlreadyExistsError}
            while True:
                views = (await admin.describe_topics(names)).topics.values()
                if all(len(view.partitions) == 3 for view in views):
                    break
                await asyncio.sleep(0.02)
            for view in views:
                for each in view.partitions:
                    assert sorted(each.replicas) == sorted(each.isr) == list(NODES)
                    assert each.leader in NODES
            leaders = [each.leader for view in views for each in view.partitions]
            assert all(15 <= leaders.count(node) <= 25 for node in NODES)
            for name in names:
                await admin.delete_topic(name)

    play(work)


def test_the_quorum_and_the_nodes_are_described_by_any_node(cluster: TestedCluster) -> None:
    async def work() -> None:
        leaders = set()
        for address in cluster.bootstrap.split(","):
            async with Admin(address) as admin:
                quorum = await admin.describe_quorum()
                leaders.add(quorum.leader_id)
                assert [each.node_id for each in quorum.voters] == list(NODES)
                assert all(each.log_end_offset > 0 for each in quorum.voters)
                assert quorum.high_watermark > 0
                nodes = await admin.describe_nodes()
                assert list(nodes) == list(NODES)
                assert not any(each.is_fenced for each in nodes.values())
                assert await admin.list_reassignments([("gone", 0), (KNOWN, 9)]) == []
        assert len(leaders) == 1

    play(work)


@pytest.mark.parametrize(
    "line",
    [
        "status",
        "node list",
        "node pre-restart 2",
        "controller list",
        "partition list --under-replicated",
        "partition reassignments",
        "topic describe known",
    ],
)
def test_the_command_line_shows_it(
    cluster: TestedCluster,
    line: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("DLOG_BOOTSTRAP", cluster.bootstrap)
    monkeypatch.setenv("XDG_CONFIG_HOME", "/no/contexts/here")
    assert main([*line.split(), "-o", "json", "--timeout", "20"]) == 0
    document = json.loads(capsys.readouterr().out)
    if line == "status":
        assert document["healthy"]
        assert [each["node"] for each in document["nodes"]] == list(NODES)
    elif line == "node list":
        assert [each["state"] for each in document] == ["active"] * 3
        assert sum(each["metadata"] == "controller" for each in document) == 1
    elif line == "controller list":
        assert document["failures_tolerated"] == 1
    elif line.startswith("node pre-restart"):
        assert document["may_restart"]


async def view_of(admin: Admin, topic: str) -> PartitionView:
    """Return the first partition of a topic, as soon as somebody knows it."""
    while True:
        view = (await admin.describe_topics([topic])).topics[topic]
        if view.partitions:
            return view.partitions[0]
        await asyncio.sleep(0.02)


def test_a_node_is_down(cluster: TestedCluster) -> None:
    """The last test of a cluster: the node does not come back."""

    async def work() -> None:
        async with Admin(cluster.bootstrap) as admin, asyncio.timeout(50):
            victim = (await admin.describe_quorum()).leader_id % 3 + 1
            first, second = (node for node in NODES if node != victim)
            await admin.create_topic("pair", assignments=[(victim, first)])
            await admin.create_topic("alone", assignments=[(victim,)])
            while (await view_of(admin, "alone")).leader != victim:
                await asyncio.sleep(0.02)
            cluster.kill(victim)
            while not (await admin.describe_nodes())[victim].is_fenced:
                await asyncio.sleep(0.05)
            for topic, leader, isr in (("pair", first, {first}), ("alone", -1, set())):
                while (found := await view_of(admin, topic)).leader != leader:
                    await asyncio.sleep(0.05)
                assert found.offline == (victim,)
                assert not isr or set(found.isr) == isr
            assert found.error_code == LeaderNotAvailableError.code

            # It gets replicas where there are too few others, never as the leader and not in sync.
            # (Where nodes have racks, Apache Kafka may name it second; dlogd always names it last.)
            assert await create("three", partitions=1, replication_factor=3)(admin) is None
            three = await view_of(admin, "three")
            assert victim in three.replicas[1:]
            assert set(three.isr) == {first, second}
            too_many = create("four", partitions=1, replication_factor=4)
            assert await too_many(admin) is InvalidReplicationFactorError
            assert await create("hand", assignments=[(victim, second)])(admin) is None
            by_hand = await view_of(admin, "hand")
            assert (by_hand.leader, by_hand.isr) == (second, (second,))
            nobody = create("nobody", assignments=[(victim,)])
            assert await nobody(admin) is InvalidReplicaAssignmentError

            assert await elect(0, "pair")(admin) is PreferredLeaderNotAvailableError
            unclean = Election.UNCLEAN
            assert await elect(0, "pair", unclean)(admin) is ElectionNotNeededError
            assert await elect(0, "alone", unclean)(admin) is EligibleLeadersNotAvailableError

            # Nobody who would be left is in sync: it waits until it is cancelled.
            assert await reassign(0, [victim], "pair")(admin) is None
            (moving,) = await admin.list_reassignments()
            assert (moving.topic, moving.adding, moving.removing) == ("pair", (), (first,))
            assert await reassign(0, None, "pair")(admin) is None
            assert await admin.list_reassignments() == []
            assert await reassign(0, None, "pair")(admin) is NoReassignmentInProgressError

    play(work)
