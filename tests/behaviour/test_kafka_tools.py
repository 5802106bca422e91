"""Kafka's own command-line tools against a cluster of dlog: what an operator is used to works."""

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from uuid import UUID

import pytest

from bench.peers.kafka import KafkaServer
from bench.peers.server import CACHE, StartError
from dlog.client.blocking_admin import BlockingAdmin
from dlog.client.blocking_producer import BlockingProducer
from tests.behaviour.clusters import DlogdCluster, TestedCluster

VERSION = "4.3.1"
TOOLS = "org.apache.kafka.tools"
JVM = ("-Xmx128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestedCluster]:
    """Three nodes of dlog, and the jars of Kafka."""
    folder = tmp_path_factory.mktemp("tools")
    try:
        KafkaServer(folder / "jars").install()
    except StartError as error:
        pytest.skip(str(error))
    except subprocess.CalledProcessError as error:
        pytest.skip(f"the jars of Kafka are not in .cache, and cannot be fetched: {error}")
    tested = DlogdCluster(folder)
    try:
        tested.start()
        yield tested
    finally:
        tested.close()


@pytest.fixture(autouse=True)
def last_words(cluster: TestedCluster) -> Iterator[None]:
    """Show what the nodes said beside a failure."""
    yield
    print(cluster.last_words)


class Tools:
    """Kafka's tools by name."""

    def __init__(self, cluster: TestedCluster) -> None:
        self._bootstrap = cluster.bootstrap

    def __call__(self, tool: str, *arguments: str) -> str:
        """Run a tool; return what it wrote."""
        where = ("--bootstrap-server", self._bootstrap)
        # One of them has its options behind the name of the command.
        words = (*arguments, *where) if tool.endswith("ClusterTool") else (*where, *arguments)
        return self.offline(tool, *words)

    def offline(self, tool: str, *words: str) -> str:
        """Run a tool with these words alone; return what the tool wrote."""
        java = shutil.which("java")
        assert java is not None
        done = subprocess.run(
            [
                *(java, *JVM),
                *("-cp", f"{CACHE / 'kafka' / VERSION}/*", tool, *words),
            ],
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        return done.stdout + done.stderr


@pytest.fixture
def tools(cluster: TestedCluster) -> Tools:
    """The tools."""
    return Tools(cluster)


def leaders_of(tools: Tools, topic: str) -> list[int]:
    """Return the leaders of the partitions, as kafka-topics.sh tells them."""
    told = tools(f"{TOOLS}.TopicCommand", "--describe", "--topic", topic)
    return [int(each) for each in re.findall(r"Leader: (-?\d+)", told)]


def configure(tools: Tools, *arguments: str) -> str:
    """Run kafka-configs.sh on nodes."""
    return tools("kafka.admin.ConfigCommand", "--entity-type", "brokers", *arguments)


def test_replicas_move_and_leaders_are_elected(tools: Tools, tmp_path: Path) -> None:
    created = tools(
        f"{TOOLS}.TopicCommand", "--create", "--topic", "moved", "--replica-assignment", "1:2,2:3"
    )
    assert "Created topic moved." in created
    assert leaders_of(tools, "moved") == [1, 2]
    plan = tmp_path / "plan.json"
    moves = [{"topic": "moved", "partition": 0, "replicas": [2, 1]}]
    plan.write_text(json.dumps({"version": 1, "partitions": moves}))
    reassign = (f"{TOOLS}.reassign.ReassignPartitionsCommand", "--reassignment-json-file")
    begun = tools(*reassign, str(plan), "--execute")
    assert "Successfully started partition reassignment for moved-0" in begun
    verified = tools(*reassign, str(plan), "--verify")
    assert "Reassignment of partition moved-0 is completed." in verified
    assert "Error" not in verified
    elected = tools(
        f"{TOOLS}.LeaderElectionCommand", "--election-type", "preferred", "--all-topic-partitions"
    )
    assert "Successfully completed leader election (PREFERRED)" in elected
    assert leaders_of(tools, "moved") == [2, 2]


def test_a_node_is_drained(tools: Tools) -> None:
    tools(
        f"{TOOLS}.TopicCommand", "--create", "--topic", "drained", "--replica-assignment", "3:1,3:2"
    )
    drain = ("--alter", "--entity-name", "3", "--add-config", "node.drain=leaders")
    assert "Completed updating config for broker 3" in configure(tools, *drain)
    assert "node.drain=leaders" in configure(tools, "--describe", "--entity-name", "3")
    for _ in range(20):  # each look takes a second
        if leaders_of(tools, "drained") == [1, 2]:
            break
    else:
        pytest.fail("node 3 still leads")
    back = ("--alter", "--entity-name", "3", "--delete-config", "node.drain")
    assert "Completed updating config for broker 3" in configure(tools, *back)


def test_the_maintenance_lock_holds_tools_back_and_is_ended_by_them(
    tools: Tools, cluster: TestedCluster
) -> None:
    with BlockingAdmin(cluster.bootstrap) as admin:
        admin.hold_maintenance("upgrade by ann", UUID(int=1), 2)
        drain = ("--alter", "--entity-name", "3", "--add-config", "node.drain=leaders")
        assert "held for maintenance by upgrade by ann (node 2)" in configure(tools, *drain)
        assert '"owner": "upgrade by ann"' in configure(tools, "--describe", "--entity-default")
        back = ("--alter", "--entity-default", "--delete-config", "maintenance.lock")
        assert "Completed updating default config" in configure(tools, *back)
        assert admin.describe_maintenance() is None


def test_the_quorum_is_described_and_its_leader_replaced(tools: Tools) -> None:
    quorum = f"{TOOLS}.MetadataQuorumCommand"
    told = tools(quorum, "describe", "--status")
    leader = int(re.findall(r"LeaderId: +(\d+)", told)[0])
    assert told.count('"id": ') == 3
    target = leader % 3 + 1
    wanted = f"controller.node={target}"
    changed = configure(tools, "--alter", "--entity-default", "--add-config", wanted)
    assert "Completed updating default config" in changed
    told = tools(quorum, "describe", "--replication")
    assert re.findall(r"^(\d+).*Leader\b", told, re.MULTILINE) == [str(target)]
    nobody = ("--controller-id", "9", "--controller-directory-id", "AAAAAAAAAAAAAAAAAAAABQ")
    assert "VoterNotFoundException" in tools(quorum, "remove-controller", *nobody)
    listed = tools(f"{TOOLS}.ClusterTool", "list-endpoints", "--include-fenced-brokers")
    assert listed.count("unfenced") == 3


def test_a_broker_is_described_by_the_names_of_kafka(tools: Tools, cluster: TestedCluster) -> None:
    told = configure(tools, "--describe", "--all", "--entity-name", "1")
    address = cluster.bootstrap.split(",")[0]
    assert f"advertised.listeners=PLAINTEXT://{address} sensitive=false" in told
    for line in ("num.partitions=1 ", "default.replication.factor=", "delete.topic.enable=true "):
        assert f"  {line}" in told
    assert "Error" not in told


def test_topics_with_the_usual_configs_of_connectors_are_created(tools: Tools) -> None:
    configs = ("compression.type=lz4", "flush.messages=1", "flush.ms=1000")
    configs += ("file.delete.delay.ms=1000", "segment.jitter.ms=60000")
    wanted = [word for config in configs for word in ("--config", config)]
    topic = ("--create", "--topic", "connected", *wanted)
    assert "Created topic connected." in tools(f"{TOOLS}.TopicCommand", *topic)
    told = tools(f"{TOOLS}.TopicCommand", "--describe", "--topic", "connected")
    assert all(config in told for config in configs)


def test_there_are_no_acls(tools: Tools) -> None:
    acls = "org.apache.kafka.tools.AclCommand"
    told = tools(acls, "--list")
    assert "SecurityDisabledException" in told
    assert "no authorizer" in told
    added = tools(acls, "--add", "--allow-principal", "User:x", "--topic", "t", "--producer")
    assert "SecurityDisabledException" in added


def test_a_replica_stays_in_its_directory(tools: Tools, tmp_path: Path) -> None:
    created = ("--create", "--topic", "kept", "--replica-assignment", "1:2")
    assert "Created topic kept." in tools(f"{TOOLS}.TopicCommand", *created)
    told = tools(f"{TOOLS}.LogDirsCommand", "--describe", "--topic-list", "kept")
    brokers = json.loads(told.splitlines()[-1])["brokers"]
    directories = {each["broker"]: each["logDirs"][0]["logDir"] for each in brokers}
    plan = tmp_path / "plan.json"
    reassign = (f"{TOOLS}.reassign.ReassignPartitionsCommand", "--reassignment-json-file")
    for path, expected in (
        (
            directories[1],
            f"moving log directory to {directories[1]} for replica kept-0 with broker 1",
        ),
        ("/somewhere/else", "LogDirNotFoundException"),
    ):
        move = {"topic": "kept", "partition": 0, "replicas": [1, 2], "log_dirs": [path, "any"]}
        plan.write_text(json.dumps({"version": 1, "partitions": [move]}))
        # The tool tries again for so long.
        assert expected in tools(*reassign, str(plan), "--execute", "--timeout", "3000")


def test_segments_are_printed(tools: Tools, cluster: TestedCluster) -> None:
    created = ("--create", "--topic", "dumped", "--config", "segment.bytes=1048576")
    assert "Created topic dumped." in tools(f"{TOOLS}.TopicCommand", *created)
    with BlockingProducer(cluster.bootstrap, linger_ms=0) as producer:
        for _ in range(10):
            producer.send("dumped", bytes(300_000))
            producer.flush()
    closed, *_, active = min(
        sorted(each.glob("*.log")) for each in cluster.folder.glob("**/topics/dumped-0.*")
    )
    told = tools.offline(f"{TOOLS}.DumpLogSegments", "--deep-iteration", "--files", str(closed))
    assert "baseOffset: 0 lastOffset: 0 count: 1" in told
    assert "Exception" not in told
    # The tool reads the zeros behind the last batch as the next one.
    told = tools.offline(f"{TOOLS}.DumpLogSegments", "--deep-iteration", "--files", str(active))
    assert "baseOffset: 9 lastOffset: 9 count: 1" in told
    assert "Found record size 0" in told


def test_there_are_no_client_metrics(tools: Tools) -> None:
    assert tools(f"{TOOLS}.ClientMetricsCommand", "--list").strip() == ""
