"""Nodes that are killed while they start for the first time: whatever they left, they start."""

import asyncio
import os
import random
from pathlib import Path

from tests.cluster.chaos import topics_at
from tests.cluster.nodes import Cluster, Node, cluster_of
from tests.cluster.running import make_topics, run

ROUNDS = int(os.environ.get("DLOG_FIRST_STARTS", "3"))
KILLS_MAX = 4
START_S = 1.5  # about as long as a start takes


async def begin_badly(node: Node, rng: random.Random) -> None:
    """Start a node and kill it, some times, anywhere in its start."""
    for _ in range(rng.randint(1, KILLS_MAX)):
        await node.start()
        await asyncio.sleep(rng.random() * START_S)
        await node.kill()


def test_kills_during_the_first_start(tmp_path: Path) -> None:
    seed = random.randrange(1 << 32)
    print(f"seed={seed}")
    rng = random.Random(seed)

    async def work() -> None:
        for number in range(ROUNDS):
            async with cluster_of(tmp_path / str(number), start=False) as cluster:
                await one_round(cluster, rng)

    run(work)


async def one_round(cluster: Cluster, rng: random.Random) -> None:
    await asyncio.gather(*(begin_badly(each, rng) for each in cluster.nodes))
    await cluster.start()
    await make_topics(cluster, "t")
    await cluster.until_equal()
    for node in cluster.nodes:
        assert set(await topics_at(node)) == {"t"}
    cluster.expect_no_complaints()
