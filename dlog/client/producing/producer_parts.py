"""Parts of a running producer, shared by the asyncio and the blocking one."""

import asyncio
import random
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import cast

from dlog.client.cluster.cluster import Cluster
from dlog.client.futures import Delivery
from dlog.client.produce_options import ACKS, Acks, ProducerOptions
from dlog.client.producing.accumulator import Accumulator
from dlog.client.producing.batch_results import ProducerCounters
from dlog.client.producing.producer_identity import ProducerIdentity
from dlog.client.producing.sender import Sender, Sending
from dlog.errors import ConfigError


class UnsafeAcksError(ConfigError, ValueError):
    """A topic's own default of acks is not what an idempotent producer needs."""


class ProducerParts:
    """An accumulator and the sender that empties it. Owner: the producer."""

    def __init__(
        self,
        cluster: Cluster,
        options: ProducerOptions,
        acks: Acks,
        *,
        loop: asyncio.AbstractEventLoop,
        rng: random.Random,
        lock: AbstractContextManager[object],
        counters: ProducerCounters,
        on_released: Callable[[], None],
        delivery_type: type[Delivery] = Delivery,
    ) -> None:
        self._cluster = cluster
        self._options = options
        if acks == "none":
            self._refuse_none("the cluster's default")
        # Topics whose acks are "none" do without.
        identity = ProducerIdentity() if options.is_idempotent else None
        self.accumulator = Accumulator(
            options.batching(),
            rng=rng,
            owner=self,
            identity=identity,
            delivery_type=delivery_type,
        )
        self.sender = Sender(
            cluster,
            self.accumulator,
            Sending(
                linger_s=options.linger_ms / 1000,
                request_bytes=options.request_bytes,
                request_timeout_s=options.request_timeout_ms / 1000,
                gapless=options.gapless,
            ),
            identity=identity,
            acks_of=self._acks_of,
            loop=loop,
            rng=rng,
            lock=lock,
            counters=counters,
            on_released=on_released,
        )

    async def _acks_of(self, topic: str) -> int:
        """Return what a topic's batches are sent with: as was asked for, or its own default."""
        acks = self._options.acks
        if acks is None:
            acks = cast(Acks, await self._cluster.ack_default(topic))
            if acks == "none":
                self._refuse_none(f"the default of {topic}")
        return ACKS[acks]

    def _refuse_none(self, whose: str) -> None:
        if self._options.idempotent:
            raise UnsafeAcksError(f"an idempotent producer needs acks; {whose} is none")

    def wake(self) -> None:
        """Let the sender look at everything again; from the loop's thread."""
        self.sender.wake()
