"""Nodes that are not what the others take them for: they harm nobody, and their logs say why."""

import asyncio
import json
import os
import secrets
import shutil
from pathlib import Path

import pytest

from dlogctl.sandbox.layout import HOST, NodeLayout
from tests.cluster.chaos import topics_at
from tests.cluster.nodes import PORTS_PER_NODE, Cluster, Node, cluster_of
from tests.cluster.ports import claim_ports
from tests.cluster.running import make_topics, run

LINES_MAX = 12
"""What a node may say of a peer that is refused again and again, while a test looks."""


async def expect_untouched(cluster: Cluster, nodes: list[Node], name: str) -> None:
    """Fail unless some nodes go on as if nothing were: topics are made, nobody lost a lease."""
    await cluster.until_well(nodes)
    await make_topics(cluster, name, nodes=nodes)
    cluster.expect_no_complaints()


async def waits(node: Node) -> dict[str, object]:
    """Return the status of a node that is refused, when it has waited for a while."""
    await says(node, "Waiting for the metadata quorum")
    status = await node.status()
    assert status is not None
    assert status["state"] == "starting"
    assert not status["healthy"]
    return status


async def says(node: Node, what: str) -> None:
    """Wait until a node's log has something."""
    async with asyncio.timeout(30):
        while what not in node.log:
            assert node.runs, node.tail()
            await asyncio.sleep(0.05)


def twin_of(cluster: Cluster, node: Node) -> Node:
    """Return another node with the same id: ports and directory of its own."""
    ports = claim_ports(PORTS_PER_NODE)
    folder = cluster.directory / f"twin-{node.node_id}"
    raft_ports = cluster.nodes[0].layout.raft_ports
    layout = NodeLayout(node=node.node_id, folder=folder, port=ports[0], raft_ports=raft_ports)
    return Node(layout, ports, {**cluster.overrides, "metadata.listener": f"{HOST}:{ports[2]}"})


def test_a_second_node_with_the_same_id_does_not_get_in(tmp_path: Path) -> None:
    async def work() -> None:
        async with cluster_of(tmp_path) as cluster:
            await make_topics(cluster, "before")
            marks = [len(each.log) for each in cluster.nodes]
            twin = twin_of(cluster, cluster.node(3))
            await twin.start()
            try:
                await waits(twin)
                await says(twin, "it may know another node with this node.id")
                await expect_untouched(cluster, cluster.nodes, "during")
                for node, mark in zip(cluster.nodes, marks, strict=True):
                    said = [each for each in node.log[mark:].splitlines() if " DEBUG " not in each]
                    assert len(said) < LINES_MAX, said
                assert cluster.node(1).said("(a node with this node.id and another directory)")
            finally:
                await twin.kill()
            await cluster.until_well()
            await cluster.until_equal()

    run(work)


def test_swapped_data_directories_are_refused(tmp_path: Path) -> None:
    async def work() -> None:
        async with cluster_of(tmp_path) as cluster:
            await make_topics(cluster, "t")
            one, two = cluster.node(1), cluster.node(2)
            assert [await one.stop(), await two.stop()] == [0, 0]
            swap(one.data, two.data)
            for node, other in ((one, two), (two, one)):
                await node.start()
                assert await node.ended() == os.EX_CONFIG
                assert f"is the log of node {other.node_id}, this is {node.node_id}" in node.log
            swap(one.data, two.data)
            await cluster.start([one, two])
            await cluster.until_equal()
            cluster.expect_no_complaints()

    run(work)


def swap(one: Path, other: Path) -> None:
    """Let two directories change their names."""
    aside = one.with_name("aside")
    one.rename(aside)
    other.rename(one)
    aside.rename(other)


OF_CLUSTERS = ("controllers", "metadata.listener", "internal.listener")


def write_config_alone(cluster: Cluster, node: Node) -> None:
    """Let a node be alone with its next start."""
    node.write_config(cluster.overrides_of(node))
    path = node.layout.config_path
    lines = path.read_text().splitlines()
    path.write_text("\n".join(line for line in lines if not line.startswith(OF_CLUSTERS)) + "\n")


def logs_of(node: Node) -> list[str]:
    """Return the logs in the data directory that are not set aside."""
    return sorted(each.name for each in (node.data / "topics").iterdir())


def test_a_node_of_a_cluster_is_not_started_alone(tmp_path: Path) -> None:
    async def work() -> None:
        async with cluster_of(tmp_path) as cluster:
            one = cluster.node(1)
            assert await one.stop() == 0
            write_config_alone(cluster, one)
            await one.start()
            assert await one.ended() == os.EX_CONFIG
            assert "set `controllers`" in one.log
            one.write_config(cluster.overrides_of(one))
            await cluster.start([one])
            await cluster.until_equal()

    run(work)


def test_a_node_that_was_alone_does_not_become_one_of_a_cluster(tmp_path: Path) -> None:
    async def work() -> None:
        async with cluster_of(tmp_path, start=False) as cluster:
            one, *others = cluster.nodes
            write_config_alone(cluster, one)
            await one.start()
            while not one.said(r"(Ready) node"):
                assert one.runs, one.tail()
                await asyncio.sleep(0.05)
            await make_topics(cluster, "t", nodes=[one])
            assert await one.stop() == 0
            held = logs_of(one)
            assert len(held) == 3
            one.write_config(cluster.overrides_of(one))
            await asyncio.gather(*(each.start() for each in others))
            await cluster.until_well(others)
            for _ in range(2):
                await one.start()
                assert await one.ended() == os.EX_CONFIG
            assert "remove `controllers`" in one.log
            assert logs_of(one) == held
            write_config_alone(cluster, one)
            await one.start()
            while len(one.said(r"(Ready) node")) < 2:
                assert one.runs, one.tail()
                await asyncio.sleep(0.05)
            assert list(await topics_at(one)) == ["t"]

    run(work)


@pytest.mark.parametrize("what", ["secret", "cluster"])
def test_a_stranger_is_refused_and_told_of_once(tmp_path: Path, what: str) -> None:
    async def work() -> None:
        async with cluster_of(tmp_path) as cluster:
            await make_topics(cluster, "before")
            stranger = cluster.node(2)
            assert await stranger.stop() == 0
            others = [each for each in cluster.nodes if each is not stranger]
            marks = [len(each.log) for each in others]
            (tmp_path / "other-secret").touch(mode=0o600)
            (tmp_path / "other-secret").write_text(secrets.token_hex(32))
            wrong = {
                "secret": {"cluster.secret.file": str(tmp_path / "other-secret")},
                "cluster": {"cluster.id": "another"},
            }[what]
            stranger.write_config({**cluster.overrides_of(stranger), **wrong})
            await stranger.start()
            status = await waits(stranger)
            reason = {"secret": "does not know the secret", "cluster": "it is of cluster"}[what]
            assert reason in stranger.log
            # A node that refuses a dialler does not say which cluster it is of.
            told = str(status["problems"]).replace("it is of another cluster", reason)
            assert reason in told, status
            for node, mark in zip(others, marks, strict=True):
                said = [each for each in node.log[mark:].splitlines() if reason in each]
                assert 0 < len([each for each in said if " DEBUG " not in each]) <= 4, said
            await expect_untouched(cluster, others, "during")
            # SIGTERM during the wait ends it at once.
            assert await stranger.stop(patience_s=5) == 0
            stranger.write_config(cluster.overrides_of(stranger))
            await cluster.start([stranger])
            await cluster.until_equal()

    run(work)


def test_a_voter_whose_metadata_is_wiped_learns_it_again(tmp_path: Path) -> None:
    async def work() -> None:
        async with cluster_of(tmp_path) as cluster:
            await make_topics(cluster, "t")
            wiped = cluster.node(2)
            assert await wiped.stop() == 0
            shutil.rmtree(wiped.data / "meta")
            await cluster.start([wiped])
            await cluster.until_equal()
            assert set(await topics_at(wiped)) == {"t"}
            # It forgot what it had promised, so it votes no more: with one more down, no quorum.
            assert await cluster.node(1).stop() == 0
            await cluster.until(
                lambda statuses: not any(each["lease"]["valid"] for each in statuses),
                [cluster.node(2), cluster.node(3)],
            )
            await cluster.start([cluster.node(1)])
            cluster.expect_no_complaints()

    run(work)


def test_one_wrong_address_in_the_list_of_controllers(tmp_path: Path) -> None:
    async def work() -> None:
        async with cluster_of(tmp_path, start=False) as cluster:
            for wrong, node in enumerate(cluster.nodes):
                named = [f"{each.node_id}@{HOST}:{each.raft_port}" for each in cluster.nodes]
                wrong_id = (wrong + 1) % 3 + 1  # each knows another one wrongly
                named[wrong_id - 1] = f"{wrong_id}@{HOST}:1"
                overrides = cluster.overrides_of(node)
                node.write_config({**overrides, "controllers": json.dumps(named)})
            await cluster.start()
            await make_topics(cluster, "t")
            await cluster.until_equal()
            await asyncio.gather(*(each.kill() for each in cluster.nodes))
            for node in cluster.nodes:
                node.write_config(cluster.overrides_of(node))
            await cluster.start()
            cluster.expect_no_complaints()

    run(work)


def test_a_cluster_whose_hosts_all_got_other_addresses(tmp_path: Path) -> None:
    async def work() -> None:
        async with cluster_of(tmp_path) as cluster:
            await make_topics(cluster, "t")
            assert await asyncio.gather(*(each.stop() for each in cluster.nodes)) == [0, 0, 0]
            fresh = claim_ports(len(cluster.nodes))
            named = [f"{number}@{HOST}:{port}" for number, port in enumerate(fresh, 1)]
            for node, port in zip(cluster.nodes, fresh, strict=True):
                overrides = cluster.overrides_of(node)
                overrides |= {
                    "controllers": json.dumps(named),
                    "metadata.listener": f"{HOST}:{port}",
                }
                node.write_config(overrides)
            await cluster.start()
            await make_topics(cluster, "u")
            await cluster.until_equal()
            assert set(await topics_at(cluster.node(1))) == {"t", "u"}
            cluster.expect_no_complaints()

    run(work)
