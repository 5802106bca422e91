"""What real nodes prove when they start, after every kind of end, and what follows from it."""

import asyncio
import re
import shutil
from pathlib import Path
from typing import Any

from tests.cluster.nodes import Cluster, Node, cluster_of
from tests.cluster.running import make_topics, run

REGISTERED = re.compile(
    r"Registered node=\d+ node_epoch=(\d+) proof=(\w+) previous_epoch=(-?\d+) unproven=(\d+)"
    r" offline=(\d+)"
)


def proofs(node: Node) -> list[tuple[str, bool, int]]:
    """Return, of each life: its proof, whether it follows the one before, how much is unproven."""
    found = REGISTERED.findall(node.log)
    epochs = [-1, *(int(each[0]) for each in found)]
    return [
        (proof, int(previous) == before, int(unproven))
        for (_, proof, previous, unproven, _), before in zip(found, epochs, strict=False)
    ]


def replicas_open(status: dict[str, Any]) -> int:
    """Return how many replicas a node leads or follows."""
    followed = sum(each["partitions"] for each in status["replication"]["leaders"])
    return int(status["partitions"]["led"] + followed)


def apart(cluster: Cluster, node: Node) -> Path:
    """Let a node keep its metadata outside of its data directory; return where."""
    path = node.layout.folder / "meta"
    node.write_config({**cluster.overrides_of(node), "metadata.directory": str(path)})
    return path


def test_orderly_stops_and_kills(tmp_path: Path) -> None:
    async def work() -> None:
        async with cluster_of(tmp_path) as cluster:
            await make_topics(cluster, "t")
            node = cluster.node(2)
            # A log that is being made when the node stops is in no marker, and proves nothing.
            await cluster.until(lambda found: replicas_open(found[0]) == 3, [node])
            assert await node.stop() == 0
            await cluster.start([node])
            await node.kill()
            await cluster.start([node])
            assert proofs(node) == [("NONE", True, 0), ("CLEAN", True, 0), ("FLUSHED", True, 0)]
            cluster.expect_no_complaints()

    run(work)


def test_all_killed_at_once_keep_their_places(tmp_path: Path) -> None:
    async def work() -> None:
        async with cluster_of(tmp_path) as cluster:
            await make_topics(cluster, "t")
            await asyncio.gather(*(each.kill() for each in cluster.nodes))
            await cluster.start()
            found = await cluster.until(
                lambda all_: all(
                    each["cluster_partitions"]["leaderless"] == 0
                    and each["cluster_partitions"]["under_replicated"] == 0
                    for each in all_
                )
            )
            assert all(each["unclean_elections"] == 0 for each in found)
            assert all(proofs(each)[-1] == ("FLUSHED", True, 0) for each in cluster.nodes)

    run(work)


def test_a_wiped_directory_and_an_old_copy_prove_nothing(tmp_path: Path) -> None:
    async def work() -> None:
        async with cluster_of(tmp_path, start=False) as cluster:
            for each in cluster.nodes:
                apart(cluster, each)
            await cluster.start()
            await make_topics(cluster, "t")
            node = cluster.node(3)
            assert await node.stop() == 0
            copy = tmp_path / "copy"
            shutil.copytree(node.data, copy)
            await cluster.start([node])
            assert await node.stop() == 0
            shutil.rmtree(node.data)
            shutil.move(copy, node.data)
            await cluster.start([node])
            assert proofs(node)[-1][:2] == ("NONE", False)
            await node.kill()
            shutil.rmtree(node.data)
            node.data.mkdir()
            await cluster.start([node])
            assert proofs(node)[-1][:2] == ("NONE", False)
            found = await cluster.until(
                lambda all_: all(
                    each["cluster_partitions"]["offline_replicas"] == 0
                    and each["cluster_partitions"]["leaderless"] == 0
                    # Its replicas began anew, out of every ISR, and came back with the records.
                    and each["cluster_partitions"]["under_replicated"] == 0
                    for each in all_
                )
            )
            assert all(each["unclean_elections"] == 0 for each in found)
            cluster.expect_no_complaints()

    run(work)
