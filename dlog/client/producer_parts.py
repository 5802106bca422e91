"""What a producer is made of once it runs; shared by the asyncio and the blocking one."""

import asyncio
import random
from collections.abc import Callable
from contextlib import AbstractContextManager

from dlog.client.accumulator import Accumulator
from dlog.client.cluster import Cluster
from dlog.client.futures import Delivery
from dlog.client.outcomes import ProducerCounters
from dlog.client.produce_options import ACKS, Acks, ProducerOptions
from dlog.client.queues import ProducerIdentity
from dlog.client.sender import Sender, Sending


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
        if options.idempotent and acks == "none":
            raise ValueError("an idempotent producer needs acks, the cluster's default is none")
        is_idempotent = options.is_idempotent and acks != "none"
        identity = ProducerIdentity() if is_idempotent else None
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
                acks=ACKS[acks],
                linger_s=options.linger_ms / 1000,
                request_bytes=options.request_bytes,
                request_timeout_s=options.request_timeout_ms / 1000,
            ),
            identity=identity,
            loop=loop,
            rng=rng,
            lock=lock,
            counters=counters,
            on_released=on_released,
        )

    def wake(self) -> None:
        """Let the sender look at everything again; from the loop's thread."""
        self.sender.wake()
