"""An operator who moves the quorum, drains nodes and elects leaders while a cluster is harmed."""

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from dlog.client.admin import Admin
from dlog.client.admin_views import Drain
from dlog.client.retry import RetryPolicy
from dlog.errors import DlogError
from dlog.transport import Address, ConnectionOptions
from tests.cluster.nodes import LOOK_S, Cluster

PAUSE_S = (0.1, 3.0)
ATTEMPT_S = 5.0
PATIENCE_S = 90.0


class Operator:
    """Works on one thing at a time. Life: `run` until `stop`, then `finish`."""

    def __init__(self, cluster: Cluster, rng: random.Random) -> None:
        self._of_voters = asyncio.Lock()  # held while one of them is not one
        self.counts: dict[str, int] = {}
        self._cluster = cluster
        self._rng = rng
        self._stopping = False
        self._voters = cluster.voter_ids
        self.logs: tuple[tuple[str, int], ...] = ()
        """Partitions whose replicas are to be moved now and then; each has the same number."""
        self.replicas = 0

    def _admin(self) -> Admin:
        return Admin(
            self._cluster.bootstrap,
            rng=self._rng,
            policy=RetryPolicy(deadline_s=ATTEMPT_S, lookup_timeout_s=1),
            connection=ConnectionOptions(client_id="operator", connect_timeout_s=1),
        )

    @asynccontextmanager
    async def voters_complete(self) -> AsyncIterator[None]:
        """Wait until all voters vote, and remove none until the end of the block.

        A removal that nobody answered in time may have been done since it was looked after.
        """
        async with self._of_voters:
            async with self._admin() as admin:
                for voter in self._voters:
                    await self._add_back(admin, voter)
            yield

    def stop(self) -> None:
        """End after what is under way."""
        self._stopping = True

    async def run(self) -> None:
        """Do one thing after the other."""
        works = [self._transfer, self._elect, self._drain, self._replace_voter]
        if self.logs:
            works += [self._move_replicas] * 2
        async with self._admin() as admin:
            while not self._stopping:
                await self._rng.choice(works)(admin)
                await asyncio.sleep(self._rng.uniform(*PAUSE_S))

    async def _try(self, what: str, work: Callable[[], Awaitable[object]]) -> bool:
        try:
            async with asyncio.timeout(2 * ATTEMPT_S):
                await work()
        except (DlogError, TimeoutError):
            return False
        self.counts[what] = self.counts.get(what, 0) + 1
        return True

    async def _transfer(self, admin: Admin) -> None:
        voter = self._rng.choice(self._voters)
        await self._try("transfer", lambda: admin.transfer_controller(voter))

    async def _elect(self, admin: Admin) -> None:
        await self._try("elect", lambda: admin.elect_leaders(timeout_ms=2_000))

    async def _drain(self, admin: Admin) -> None:
        node_id = self._rng.choice(self._cluster.nodes).node_id
        for drain in (Drain.LEADERS, Drain.NONE):
            await self._try("drain", lambda drain=drain: admin.drain_node(node_id, drain))

    async def _move_replicas(self, admin: Admin) -> None:
        """Move some to other nodes, or into another order; sometimes think better of it."""
        logs = self._rng.sample(self.logs, self._rng.randint(1, len(self.logs)))
        ids = [each.node_id for each in self._cluster.nodes]
        targets = {each: self._rng.sample(ids, self.replicas) for each in logs}
        await self._try("reassign", lambda: admin.alter_reassignments(targets))
        if self._rng.random() < 0.3:
            await asyncio.sleep(self._rng.uniform(0, 1))
            await self._try("cancel", lambda: admin.alter_reassignments(dict.fromkeys(logs)))

    async def _replace_voter(self, admin: Admin) -> None:
        if len(self._voters) == 1:
            return
        voter = self._rng.choice(self._voters)
        async with self._of_voters:
            if await self._try("remove voter", lambda: admin.remove_voter(voter)):
                await asyncio.sleep(self._rng.uniform(0, 1))
            await self._add_back(admin, voter)

    async def _add_back(self, admin: Admin, voter: int) -> None:
        """Return when a node surely votes; whether it does may be unknown at first."""
        node = self._cluster.node(voter)
        address = Address(node.host, node.raft_port)
        async with asyncio.timeout(PATIENCE_S):
            while voter not in await self._voters_now(admin):
                await self._try("add voter", lambda: admin.add_voter(voter, address))
                await asyncio.sleep(LOOK_S)

    async def _voters_now(self, admin: Admin) -> tuple[int, ...]:
        while True:
            try:
                return tuple(each.node_id for each in (await admin.describe_quorum()).voters)
            except DlogError:
                await asyncio.sleep(LOOK_S)

    async def finish(self) -> None:
        """Leave everything as it was: all voters vote, no node is drained."""
        async with self._admin() as admin, asyncio.timeout(PATIENCE_S):
            for voter in self._voters:
                await self._add_back(admin, voter)
            for node in self._cluster.nodes:
                while not await self._try(
                    "drain", lambda node=node: admin.drain_node(node.node_id, Drain.NONE)
                ):
                    await asyncio.sleep(LOOK_S)
            while await admin.list_reassignments(self.logs):
                await asyncio.sleep(LOOK_S)
            assert sorted(await self._voters_now(admin)) == sorted(self._voters)
            drains = {each.drain for each in (await admin.describe_nodes()).values()}
            assert drains == {Drain.NONE}, drains
