"""Upgrades from the version before, with its real software, node by node under load.

The old software comes from the history of this repository; the test is skipped without it.
"""

import asyncio
import random
from pathlib import Path

import pytest

from dlog.client.admin import Admin, Resource
from dlog.errors import DlogError
from dlogd.metadata.state.limits import LEVEL_NEWEST
from tests.cluster.load import Load, LoadSummary
from tests.cluster.nodes import Cluster, Node, cluster_of
from tests.cluster.old_software import extract

BEFORE = "3531d9f6"
"""The last commit before Raft handshake 2, feature level 4, snapshot format 3 and node reads."""
LEVEL_BEFORE, LEVEL = 3, LEVEL_NEWEST
NEW_KEYS = ("connections.per_ip.rate", "connections.rate")


@pytest.fixture(scope="session")
def old_tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the packages of the version before."""
    return extract(BEFORE, tmp_path_factory.mktemp("before"))


def use_old_config(node: Node) -> None:
    """Leave out the keys that only this version has; both versions run with the rest."""
    path = node.layout.config_path
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(line for line in lines if not line.startswith(NEW_KEYS)))


async def level_of(admin: Admin) -> int:
    entries = await admin.describe_configs(Resource.BROKER, "")
    (value,) = [each.value for each in entries if each.name == "feature.level"]
    return int(value or 0)


async def raise_level(admin: Admin) -> None:
    values = {"feature.level": str(LEVEL)}
    await admin.alter_configs(Resource.BROKER, "", set_values=values)


async def replace_software(
    cluster: Cluster, load: Load, order: list[Node], tree: Path | None
) -> None:
    """Restart nodes one by one with other software; each log is written to in between."""
    for node in order:
        load.note_strike(f"node {node.node_id} runs {tree or 'this version'}")
        assert await node.stop() == 0
        node.tree = tree
        await node.start()
        await cluster.until_well()
        await load.until_whole()
        await load.until_written(60)


def expect_clean(summary: LoadSummary) -> None:
    text = "\n".join([*summary.lines(), *summary.first_texts()])
    print(text)
    assert not summary.breaches, text
    assert summary.acknowledged > 500, text


def test_nodes_are_upgraded_one_by_one_and_back_before_the_last(
    tmp_path: Path, old_tree: Path
) -> None:
    async def scenario() -> None:
        async with cluster_of(tmp_path / "nodes", 3, start=False) as cluster:
            for node in cluster.nodes:
                node.tree = old_tree
                use_old_config(node)
            await cluster.start()
            async with Admin(cluster.bootstrap) as admin:
                assert await level_of(admin) == LEVEL_BEFORE
            rng = random.Random(7)
            load = Load(cluster, rng, tmp_path / "history", replicas=3, min_isr=2)
            await load.start()
            try:
                running = asyncio.ensure_future(load.run())
                first, second, third = cluster.nodes
                await replace_software(cluster, load, [second, third], None)
                # As long as one node is old, all can go back.
                await replace_software(cluster, load, [third], old_tree)
                await replace_software(cluster, load, [first], None)
                async with Admin(cluster.bootstrap) as admin:
                    with pytest.raises(DlogError, match="Node 3 knows feature levels 1 to 3"):
                        await raise_level(admin)
                    await replace_software(cluster, load, [third], None)
                    assert await level_of(admin) == LEVEL_BEFORE
                    await raise_level(admin)
                    await cluster.until_equal()
                    assert await level_of(admin) == LEVEL
                controller = await cluster.controller()
                assert controller is not None
                await controller.kill()
                await controller.start()
                await cluster.until_well()
                await load.until_written(60)
                load.stop()
                await running
                await load.finish()
            finally:
                await load.close()
            cluster.expect_no_complaints()
            for node in cluster.nodes:
                assert await node.stop() == 0
            load.compare_replicas({node.node_id: [node.data] for node in cluster.nodes})
            expect_clean(load.judge())
            # The old software does not run on what it cannot read, and says so.
            first.tree = old_tree
            await first.start()
            assert await first.ended() != 0
            assert f"is at feature level {LEVEL}, this software knows 1 to 3" in first.log

    asyncio.run(scenario())
