"""What a node of several nodes is made of: keys, their bounds, the secret, the registration."""

from pathlib import Path
from uuid import UUID

import pytest

from dlog.errors import ConfigError, InvalidRequestError
from dlog.types import NodeId, TopicId
from dlogctl.sandbox.layout import known_raft_ports, plan_nodes, save_raft_ports
from dlogd.config.load import load_config
from dlogd.controller import leases
from dlogd.controller.driver import node_liveness
from dlogd.controller.leases import Condemned
from dlogd.controller.planner import PlannerSettings
from dlogd.metadata.commands.codec import Proof, RegisterNode, encode
from dlogd.metadata.state.image import ClusterImage
from dlogd.node import cluster_settings, cluster_timings, secret_files
from dlogd.node.registration import NodeFacts, registration
from dlogd.node.replica_proof import ReplicaProof
from dlogd.storage.io.posix import open_directory

CLUSTER = """
cluster.id: c
cluster.secret.file: /nowhere/secret
controllers: ["1@10.0.0.1:9193", "2@10.0.0.2:9193", "3@10.0.0.3:9193"]
"""
SECRET = b"5Ou0zTq1mVbYJp8wC3xKQg=="


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ('controllers: ["1@h:1"]', "cluster.id: must be set"),
        ('controllers: ["1@h:1"]', "cluster.secret.file: must be set"),
        ('controllers: ["1@h:1", "2@h:2"]', "2 nodes are listed, wanted are 1, 3 or 5"),
        ('controllers: ["1@h:1", "1@h:2", "3@h:3"]', "node 1 is listed twice"),
        ('controllers: ["1@h:1", "2@h:1", "3@h:3"]', "address h:1 is listed twice"),
        ('controllers: ["h:1"]', "wanted id@host:port"),
        ('controllers: ["1@0.0.0.0:1"]', "not an address that other nodes can connect to"),
        (CLUSTER + "node.id: 4", "node 4 is none of the controllers"),
        (CLUSTER + "internal.listener: 0.0.0.0:9192", "set advertised.address"),
    ],
)
def test_keys_that_do_not_go_together(text: str, found: str) -> None:
    with pytest.raises(ConfigError) as raised:
        load_config(text)
    assert any(found in each for each in raised.value.problems), raised.value.problems


def test_a_node_of_a_cluster() -> None:
    config = load_config(CLUSTER + "node.id: 2")
    assert cluster_timings.problems(config) == []
    made = cluster_settings.raft_config(config, SECRET)
    assert (made.node_id, made.host, made.port) == (2, "10.0.0.2", 9193)
    assert made.controllers.node_ids == (1, 2, 3)
    observer = load_config(CLUSTER + "node.id: 4\nmetadata.listener: 10.0.0.4:7")
    assert cluster_settings.raft_config(observer, SECRET).port == 7


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("raft.heartbeat: 300ms", "three heartbeats"),
        ("raft.election.max: 400ms", "longest election time-out"),
        ("lease.duration: 1s", "lease.duration must be at least 5 times lease.heartbeat"),
        ("raft.election.max: 2s", "lease.duration must be at least twice raft.election.max"),
        ("lease.authority: 4s", "lease.authority must be at least 3 times lease.heartbeat below"),
        ("election.preferred.after: 1s", "election.preferred.after: 1s must be at least 3s, as"),
        ("election.unclean.after: 2s", "election.unclean.after: 2s must be at least 3s, as long"),
        ("refill.after: 29s", "refill.after: 29s must be at least 30s, as long as election.pref"),
        (
            "election.preferred.after: 5s\nrefill.after: 4s",
            "must be at least 5s, as long as election.preferred.after: a node that is only"
            " restarted would lose its replicas; raise refill.after",
        ),
    ],
)
def test_timings_that_do_not_go_together(text: str, found: str) -> None:
    config = load_config(CLUSTER + text)
    with pytest.raises(ConfigError) as raised:
        cluster_settings.raft_config(config, SECRET)
    assert any(found in each for each in raised.value.problems), raised.value.problems
    assert cluster_timings.problems(load_config(text)) == []  # a node alone has no use for them


def test_what_the_controller_does_without_haste() -> None:
    assert cluster_timings.planner_settings(load_config(CLUSTER)) == PlannerSettings()
    text = """
election.preferred.after: 1min
election.unclean.after: 5s
refill.after: 2h
refill.reassignments.max: 3
"""
    config = load_config(CLUSTER + text)
    assert cluster_timings.problems(config) == []
    made = cluster_timings.planner_settings(config)
    assert (made.settled_ms, made.unclean_after_ms) == (60_000, 5_000)
    assert (made.refill_after_ms, made.reassignments_max) == (7_200_000, 3)
    never = load_config(CLUSTER + "refill.after: -1")
    assert cluster_timings.problems(never) == []
    assert cluster_timings.planner_settings(never).refill_after_ms > 1 << 50


def test_the_secret(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    with pytest.raises(ConfigError, match="cannot be read"):
        secret_files.read_secret(str(path), open_directory)
    path.touch(mode=0o600)
    path.write_bytes(b"short\n")
    with pytest.raises(ConfigError, match=r"can be guessed.*head -c 32"):
        secret_files.read_secret(str(path), open_directory)
    path.write_bytes(SECRET + b"\n")
    assert secret_files.read_secret(str(path), open_directory) == SECRET


@pytest.mark.parametrize("mode", [0o600, 0o400, 0o640])
def test_a_secret_that_its_group_may_read(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, mode: int
) -> None:
    path = tmp_path / "secret"
    path.write_bytes(SECRET)
    path.chmod(mode)
    link = tmp_path / "link"
    link.symlink_to(path)
    for each in (path, link):
        caplog.clear()
        assert secret_files.read_secret(str(each), open_directory) == SECRET
        found = [line for line in caplog.messages if "open to the file's group" in line]
        assert len(found) == (mode & 0o077 != 0)
        for line in found:
            assert f"key=cluster.secret.file path={each} mode={mode:04o}" in line
            assert f"chmod 600 {each}" in line
    caplog.clear()
    assert secret_files.read_key(str(path), open_directory, "serf.key.file") == SECRET
    assert ("key=serf.key.file" in caplog.text) == (mode & 0o077 != 0)


def test_a_registration_in_a_cluster_names_what_is_out_of_service() -> None:
    topic = TopicId(int=7)
    proof = ReplicaProof(proof=Proof.CLEAN, previous_epoch=5, offline=((topic, 3), (topic, 0)))
    facts = NodeFacts(cluster_id="c", present=(UUID(int=2),), addresses=())
    alone, one_of_several = (
        registration(load_config(text), ClusterImage(), facts, UUID(int=1), found)
        for text, found in (("", None), (CLUSTER, proof))
    )
    assert (alone.body_version, alone.offline) == (1, ())
    assert (one_of_several.body_version, one_of_several.proof) == (2, Proof.CLEAN)
    assert one_of_several.previous_epoch == 5
    assert one_of_several.offline == ((topic, (0, 3)),)


def test_a_registration_that_is_too_large_gives_its_proof_up(
    caplog: pytest.LogCaptureFixture,
) -> None:
    config = load_config(CLUSTER)
    facts = NodeFacts(cluster_id="c", present=(UUID(int=2),), addresses=())
    many = tuple((TopicId(int=number), 0) for number in range(180_000))

    def registered(found: ReplicaProof) -> RegisterNode:
        return registration(config, ClusterImage(), facts, UUID(int=1), found)

    few = ReplicaProof(proof=Proof.CLEAN, previous_epoch=5, unproven=many[:50_000])
    assert registered(few).proof is Proof.CLEAN
    assert "without a proof" not in caplog.text
    found = ReplicaProof(
        proof=Proof.CLEAN, previous_epoch=5, unproven=many, offline=many[:9], missing=many[9:11]
    )
    command = registered(found)
    assert (command.proof, command.unproven) == (Proof.NONE, ())
    assert (len(command.offline), len(command.missing)) == (9, 2)
    assert len(encode(command)) < 1000
    assert "Registering without a proof" in caplog.text
    with pytest.raises(
        InvalidRequestError, match="180000 replicas of this node are out of service"
    ):
        registered(ReplicaProof(offline=many))


def test_what_the_planner_hears_of_leases() -> None:
    def known(*, condemned: Condemned | None, caught_up: bool) -> leases.Liveness:
        return leases.Liveness(
            node_epoch=9,
            condemned=condemned,
            heard_ms=5,
            caught_up=caught_up,
            wants_shutdown=False,
            suspected=False,
        )

    found = node_liveness(
        {
            NodeId(1): known(condemned=None, caught_up=True),
            NodeId(2): known(condemned=Condemned.REFUSED, caught_up=False),
        },
        100,
    )
    assert found[NodeId(1)].is_leased(100)
    assert found[NodeId(1)].ready
    assert found[NodeId(1)].image_version >= 9
    assert not found[NodeId(2)].is_leased(100)
    assert not found[NodeId(2)].ready


def test_nodes_of_a_sandbox_are_one_cluster(tmp_path: Path) -> None:
    ports = known_raft_ports(tmp_path, 3)
    save_raft_ports(tmp_path, ports)
    assert known_raft_ports(tmp_path, 3) == ports
    secrets = set()
    for layout in plan_nodes(tmp_path, [1, 2, 3], ports):
        config = load_config(layout.write_config({}))
        assert cluster_timings.problems(config) == []
        assert [each.node_id for each in config.controllers or ()] == [1, 2, 3]
        assert config.metadata.listener is not None
        assert config.metadata.listener.port == ports[layout.node - 1]
        secrets.add(secret_files.read_secret(config.cluster.secret_file or "", open_directory))
    assert len(secrets) == 1
    assert "controllers" not in plan_nodes(tmp_path, [1])[0].config_text({})


@pytest.mark.parametrize(("nodes", "voters"), [(2, 1), (3, 3), (4, 3), (5, 5)])
def test_an_odd_number_of_nodes_votes(tmp_path: Path, nodes: int, voters: int) -> None:
    for layout in plan_nodes(tmp_path, range(1, nodes + 1), range(101, 101 + nodes)):
        assert len(load_config(layout.config_text({})).controllers or ()) == voters
