"""Three voters, one of them on a disk that becomes full: the other two go on, it comes back.

Needs root for a file system of its own.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest

from dlog.client.admin import Admin
from dlog.errors import DlogError
from tests.cluster.chaos import topics_at
from tests.cluster.nodes import Cluster, Node, cluster_of
from tests.crash.disks import Mounted, mounted_disk

pytestmark = pytest.mark.root

SIZE_BYTES = 24 << 20
TOPICS = 300


def run(work: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        await asyncio.wait_for(work(), 200)

    asyncio.run(bounded())


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Mounted]:
    with mounted_disk(tmp_path, "ext4", SIZE_BYTES) as found:
        yield found


async def create_until_ended(cluster: Cluster, victim: Node, made: list[str]) -> None:
    """Create topics through the others until the victim's process has ended."""
    others = [each for each in cluster.nodes if each is not victim]
    async with Admin([each.client_address for each in others]) as admin:
        while victim.runs:
            assert len(made) < 5000, "the disk is full and the node says nothing"
            await create(admin, f"full{len(made)}", made)


async def create(admin: Admin, name: str, made: list[str]) -> None:
    """Create a topic, however long the others need to agree on who leads."""
    configs = {"retention.ms": str(len(made) + 1), "cleanup.policy": "delete"}
    async with asyncio.timeout(60):
        while True:
            try:
                await admin.create_topic(name, partitions=8, replication_factor=1, configs=configs)
            except DlogError as error:
                # An attempt of which nobody knew may have made it.
                if type(error).__name__ != "TopicAlreadyExistsError":
                    await asyncio.sleep(0.05)
                    continue
            made.append(name)
            return


@pytest.mark.parametrize("leads", [True, False], ids=["controller", "follower"])
def test_a_voter_with_a_full_disk(tmp_path: Path, disk: Mounted, leads: bool) -> None:
    async def work() -> None:
        async with cluster_of(tmp_path / "c", start=False) as cluster:
            for node in cluster.nodes:
                overrides = cluster.overrides_of(node)
                meta = disk.path / "meta" if node.node_id == 3 else node.layout.folder / "meta"
                meta.mkdir()
                node.write_config({**overrides, "metadata.directory": str(meta)})
            victim = cluster.node(3)
            await cluster.start()
            await lead(cluster, victim, leads)
            made: list[str] = []
            with disk.filled():
                await create_until_ended(cluster, victim, made)
                assert await victim.ended() == 1
                said = victim.log
                assert "No space left on device" in said, said[-3000:]
                # The others have a controller, and go on without it.
                others = [each for each in cluster.nodes if each is not victim]
                await cluster.until_well(others)
                async with Admin([each.client_address for each in others]) as admin:
                    for _ in range(20):
                        await create(admin, f"without{len(made)}", made)
                # Started on the full disk it says the same, or waits; it does no harm.
                await victim.start()
                await cluster.until(lambda _: "No space left" in victim.log[len(said) :], others)
                assert await victim.ended() == 1
            await victim.start()
            await cluster.until_well()
            await cluster.until_equal()
            for node in cluster.nodes:
                assert set(await topics_at(node)) == set(made)
            cluster.expect_no_complaints(others)

    run(work)


async def lead(cluster: Cluster, victim: Node, leads: bool) -> None:
    """Bring it about that the victim is controller, or that it is not."""
    wanted = victim if leads else cluster.node(1)
    async with Admin([each.client_address for each in cluster.nodes]) as admin:
        await admin.transfer_controller(wanted.node_id)
    await cluster.until_well()
