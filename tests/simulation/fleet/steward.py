"""An operator who adds a node to a running cluster, and takes one out of it for good.

As docs/operating/add-remove.md says: the voter goes first, then all replicas, then the process,
then the node is forgotten. What comes back under its id is a node without disks that anybody knows
(`renew`), or one that still has the old ones (`return`). The node is the last one; it never is one
of the first voters. What is not done when the run's time is over is given up.
"""

import random
from typing import Any

from dlog.client.admin import Admin
from dlog.client.admin_cluster import Drain
from dlog.errors import DlogError
from tests.simulation.fleet.data_clients import DataClients
from tests.simulation.fleet.host import FleetHost
from tests.simulation.fleet.plan import LATE, RENEW


class Steward:
    """Does what the plan says of the last node."""

    def __init__(self, clients: DataClients, host: FleetHost) -> None:
        self._around = clients.around
        self._plan = clients.plan
        self._host = host
        self._rng = random.Random(f"{clients.plan.seed}/steward")
        self._cluster = clients.cluster("steward", self._rng)
        self._admin = Admin(self._cluster)
        host.is_held_down = clients.plan.node_change == LATE

    async def run(self) -> None:
        """Change the cluster, and leave it with all its nodes."""
        if not self._plan.node_change:
            return
        await self._around.sleep_ms(self._plan.node_change_ms)
        if self._plan.node_change == LATE:
            self._around.count("nodes added late")
        elif await self._decommission():
            self._around.count("nodes removed")
            await self._around.sleep_ms(self._rng.choice((10, 500)))
            if self._plan.node_change == RENEW:
                self._host.renew()
                self._around.registry.terms.pop(self._host.node_id, None)
            self._around.count(f"nodes back by {self._plan.node_change}")
        elif self._around.active:
            self._around.count("nodes not removed")
        self._host.is_held_down = False
        self._host.boot()
        await self._admin.close()
        await self._cluster.close()

    async def _decommission(self) -> bool:
        """Return whether the node is forgotten."""
        node_id = self._host.node_id
        while self._around.active and not self._is_empty():
            if node_id in self._around.registry.voters:
                await self._try(self._admin.remove_voter(node_id), "remove voter")
            await self._try(self._admin.drain_node(node_id, Drain.REPLICAS), "drain")
            await self._around.sleep_ms(100)
        if not self._around.active:
            return False
        self._host.is_held_down = True
        self._host.stop(None)
        await self._around.sleep_ms(300)
        if self._host.state != "down":
            self._host.crash()
        while self._around.active and self._is_known():
            await self._try(self._admin.remove_node(node_id), "remove")
            await self._around.sleep_ms(100)
        return not self._is_known()

    def _is_empty(self) -> bool:
        image = self._around.registry.newest
        is_voter = self._host.node_id in self._around.registry.voters
        return (
            self._is_known()
            and not is_voter
            and not any(
                self._host.node_id in partition.replicas
                for topic in image.topics.values()
                for partition in topic.partitions
            )
        )

    def _is_known(self) -> bool:
        return self._host.node_id in self._around.registry.newest.nodes

    async def _try(self, work: Any, what: str) -> None:
        result = "ok"
        if what == "remove voter":
            self._around.saboteur.expect_removal(self._host.node_id)
        try:
            await work
        except DlogError as error:
            result = repr(error)
        self._around.trace("steward", what, self._host.name, result)
