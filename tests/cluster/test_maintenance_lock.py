"""Maintenance lock of real clusters: held, over restarts and controllers, and after an upgrade."""

import asyncio
import json
import time
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from dlog.client.admin import Admin, Resource
from dlog.client.admin_views import Drain
from dlog.errors import InvalidConfigError, PolicyViolationError
from tests.cluster.nodes import Cluster, Node, cluster_of
from tests.cluster.old_software import extract
from tests.cluster.running import dlogctl, run

BEFORE = "1beffd16"
"""The last commit before feature level 5, snapshot format 4 and the maintenance lock."""
ANN, BOB = UUID(int=0xA), UUID(int=0xB)
OWNER = "rolling restart by ann@ops1"
WORDS = r"held for maintenance by rolling restart by ann@ops1 \(node 2\) since 2.*Z, until 2.*Z"
LONG_S, SHORT_S = 600.0, 3.0


async def expect_held(admin: Admin) -> None:
    """Fail unless a second holder, a drain and a removal are refused with the same words."""
    for work in (
        admin.hold_maintenance("upgrade by bob", BOB),
        admin.release_maintenance(BOB),
        admin.drain_node(3),
        admin.drain_node(3, Drain.REPLICAS, token=BOB),
        admin.remove_node(4),
        admin.remove_node(4, token=BOB),
    ):
        with pytest.raises(PolicyViolationError, match=WORDS):
            await work


async def expect_shown(cluster: Cluster, since_ms: int | None) -> None:
    """Fail unless all nodes tell of a lock since a time, or of none."""

    def is_so(statuses: list[dict[str, Any]]) -> bool:
        found = [each["maintenance"] for each in statuses]
        if since_ms is None:
            return found == [None] * len(found)
        return all(each is not None and each["since_ms"] == since_ms for each in found)

    await cluster.until(is_so, [node for node in cluster.nodes if node.runs])


def test_the_lock_outlives_nodes_and_controllers(tmp_path: Path) -> None:
    async def work() -> None:
        async with cluster_of(tmp_path, 4, voters=3) as cluster:
            fourth = cluster.node(4)
            async with Admin(cluster.bootstrap[:3]) as admin:
                await expect_shown(cluster, None)
                lock = await admin.hold_maintenance(OWNER, ANN, 2, LONG_S)
                assert (lock.owner, lock.node) == (OWNER, 2)
                assert lock.expires_ms - lock.since_ms == LONG_S * 1000
                await expect_held(admin)

                assert await fourth.stop() == 0
                for _ in range(2):
                    former = await cluster.controller()
                    assert former is not None
                    await former.kill()
                    await cluster.until_well([n for n in cluster.nodes[:3] if n is not former])
                    await former.start()
                    await cluster.until_well(cluster.nodes[:3])
                    await expect_shown(cluster, lock.since_ms)
                    await expect_held(admin)

                # The holder works on, and says so.
                await admin.drain_node(2, token=ANN)
                await admin.drain_node(2, Drain.NONE)
                await admin.remove_node(4, token=ANN)
                assert sorted(await admin.describe_nodes()) == [1, 2, 3]
                again = await admin.hold_maintenance(OWNER, ANN, 3, SHORT_S)
                assert (again.node, again.since_ms) == (3, lock.since_ms)

                # It is not ended: it expires.
                with pytest.raises(PolicyViolationError):
                    await admin.drain_node(1)
                await until_expired(again.expires_ms)
                assert await admin.describe_maintenance() is None
                await admin.drain_node(1)
                await admin.drain_node(1, Drain.NONE)
                await admin.hold_maintenance("upgrade by bob", BOB)
                with pytest.raises(PolicyViolationError, match="by upgrade by bob since"):
                    await admin.hold_maintenance(OWNER, ANN, 3, SHORT_S)
                await admin.release_maintenance(None)
                await expect_shown(cluster, None)
            await cluster_equal(cluster.nodes[:3])
            cluster.expect_no_complaints()

    run(work)


async def until_expired(expires_ms: int) -> None:
    """Return when the nodes, whose clock this is, hold the lock no longer."""
    await asyncio.sleep(max(0.0, expires_ms / 1000 - time.time()) + 0.05)


async def cluster_equal(nodes: list[Node]) -> None:
    """Return when nodes have one image."""
    while len({json.dumps(await node.image()) for node in nodes}) != 1:
        await asyncio.sleep(0.05)


@pytest.fixture(scope="session")
def tree_of_level_4(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return extract(BEFORE, tmp_path_factory.mktemp("level-4"))


def test_a_cluster_of_level_4_gets_it_by_raising_the_level(
    tmp_path: Path, tree_of_level_4: Path
) -> None:
    async def work() -> None:
        async with cluster_of(tmp_path, 3, start=False) as cluster:
            for node in cluster.nodes:
                node.tree = tree_of_level_4
            await cluster.start()
            async with Admin(cluster.bootstrap) as admin:
                for node in cluster.nodes:
                    assert await node.stop() == 0
                    node.tree = None
                    await node.start()
                    await cluster.until_well()
                    # Nodes of both versions write one image, whichever of them is asked.
                    for drain in (Drain.LEADERS, Drain.NONE):
                        await admin.drain_node(3, drain)
                    await cluster.until_equal()
                with pytest.raises(InvalidConfigError, match=r"at 4.* config set feature\.level=5"):
                    await admin.hold_maintenance(OWNER, ANN, 2)
                assert await admin.describe_maintenance() is None
                # The token of a cluster that has no locks yet opens nothing, and hinders nothing.
                await admin.drain_node(3, token=ANN)
                await admin.drain_node(3, Drain.NONE)

                code, said = await dlogctl(
                    *("config", "set", "feature.level=5"), "--bootstrap", cluster.bootstrap[0]
                )
                assert code == 0, said
                levels = await admin.describe_values(Resource.BROKER, [""], ["feature.level"])
                assert levels == {"": {"feature.level": "5"}}
                lock = await admin.hold_maintenance(OWNER, ANN, 2)
                with pytest.raises(PolicyViolationError, match=WORDS):
                    await admin.drain_node(3)
                for node in cluster.nodes:
                    await node.kill()
                await cluster.start()
                await expect_shown(cluster, lock.since_ms)
                await cluster.until_equal()
            cluster.expect_no_complaints()
            # The version before does not run on what it cannot read, and says so.
            first = cluster.nodes[0]
            assert await first.stop() == 0
            first.tree = tree_of_level_4
            await first.start()
            assert await first.ended() != 0
            assert "is at feature level 5, this software knows 1 to 4" in first.log

    run(work)
