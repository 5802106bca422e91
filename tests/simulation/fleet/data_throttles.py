"""Throttles of replication (KIP-73): set, altered and lifted while everything else goes on.

Who is in sync never waits for one, and when they are lifted every replica catches up.
"""

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

from dlog.client.admin import Admin, Resource
from dlog.errors import DlogError
from dlogd.metadata.state.image import ClusterImage
from dlogd.replication.leader.follower_sessions import FollowerSessions
from tests.histories.history import LogKey
from tests.simulation.fleet.data_clients import DataClients

SIDES = ("leader", "follower")
RATES = ("0", "300", "3000", "50000")
"""Bytes per second."""
RATE = "{}.replication.throttled.rate"
REPLICAS = "{}.replication.throttled.replicas"
CALM_LOOKS = 3
"""So often nothing must be left: a copy of a call may come behind its repetition."""


class DataThrottler:
    """Sets throttles as the plan says, and lifts them all when the run's time is over."""

    def __init__(self, clients: DataClients) -> None:
        self._clients = clients
        self._around = clients.around
        self._interval_ms = clients.plan.throttle_interval_ms
        self._rng = random.Random(f"{clients.plan.seed}/throttles")
        self._cluster = clients.cluster("throttles", self._rng)
        self._admin = Admin(self._cluster)

    async def run(self) -> None:
        """Throttle now and then; end when nothing is throttled any more."""
        while self._interval_ms and self._around.active:
            await self._around.sleep_ms(self._interval_ms * 2 * self._rng.random())
            key = self._clients.pick(self._rng)
            if key is not None and self._around.active:
                await self._act(key)
        calm = 0
        while self._interval_ms and calm < CALM_LOOKS:
            image = self._around.registry.newest
            calm = 0 if await self._lift(image) else calm + 1
            await self._around.sleep_ms(200)
        await self._admin.close()
        await self._cluster.close()

    async def _act(self, key: LogKey) -> None:
        side = self._rng.choice(SIDES)
        node = self._rng.choice(("", "", str(self._rng.randint(1, self._clients.plan.nodes))))
        if self._rng.random() < 0.2:
            await self._alter(Resource.BROKER, node, {}, (RATE.format(side),))
            return
        replicas = self._rng.choice(("*", "*", f"{key.partition}:{node or 1}"))
        await self._alter(Resource.TOPIC, key.topic, {REPLICAS.format(side): replicas})
        rate = self._rng.choice(RATES)
        if await self._alter(Resource.BROKER, node, {RATE.format(side): rate}):
            self._around.count(f"throttles set for {side}s")

    async def _alter(
        self, resource: Resource, name: str, values: dict[str, str], gone: tuple[str, ...] = ()
    ) -> bool:
        result = "ok"
        try:
            await self._admin.alter_configs(resource, name, set_values=values, delete_names=gone)
        except DlogError as error:
            result = repr(error)
        self._around.trace("throttle", resource.name, name, values, gone, result)
        return result == "ok"

    async def _lift(self, image: ClusterImage) -> bool:
        """Lift what is set; return whether anything was."""
        found = False
        for name in image.configs:
            config, _, node = name.partition("@")
            if config.endswith("throttled.rate"):
                found = True
                await self._alter(Resource.BROKER, node, {}, (config,))
        for topic in image.topics.values():
            names = tuple(each for each in topic.configs if each.endswith("throttled.replicas"))
            if names:
                found = True
                await self._alter(Resource.TOPIC, topic.name, {}, names)
        return found


@contextmanager
def watching(registry: Any) -> Iterator[None]:
    """See for a while who has to wait: nobody who is in sync."""
    wait_us = FollowerSessions.wait_us

    def watched(feeds: Any, fed: Any, size: int) -> int:
        found = wait_us(feeds, fed, size)
        if found:
            registry.count("throttled followers waited")
            leader = fed.partition.leader
            if leader is not None and fed.progress.node_id in leader.isr:
                registry.violate(f"ThrottleSparesIsr: {fed.progress.node_id} waits, log={fed.key}")
        return found

    with mock.patch.object(FollowerSessions, "wait_us", watched):
        yield
