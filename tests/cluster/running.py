"""Running a test's coroutine, and the few calls that many tests of clusters make."""

import asyncio
import sys
from collections.abc import Awaitable, Callable

from dlog.client.admin import Admin
from tests.cluster.nodes import Cluster, Node
from tests.daemon.process import environment

LIMIT_S = 200


def run(work: Callable[[], Awaitable[None]]) -> None:
    """Run a test; nothing may take for ever."""

    async def bounded() -> None:
        await asyncio.wait_for(work(), LIMIT_S)

    asyncio.run(bounded())


async def make_topics(cluster: Cluster, *names: str, nodes: list[Node] | None = None) -> None:
    """Create topics with three partitions and a replica on each of some nodes, or of all."""
    asked = nodes or cluster.nodes
    async with Admin([each.client_address for each in asked]) as admin:
        for name in names:
            await admin.create_topic(name, partitions=3, replication_factor=len(asked))


async def dlogctl(*arguments: str, patience_s: float = 30) -> tuple[int, str]:
    """Run dlogctl; return its exit code and all it said."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "dlogctl", *arguments),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        env=environment(),
    )
    said, _ = await asyncio.wait_for(process.communicate(), patience_s)
    assert process.returncode is not None
    return process.returncode, said.decode()
