"""Accumulators of a producer with one topic, and an owner that counts how often it was woken."""

import random

from dlog.client.produce_options import Batching
from dlog.client.producing.accumulator import Accumulator
from dlog.client.producing.producer_identity import ProducerIdentity
from dlog.compression import Codec

PARTITIONS = 3
BATCH_BYTES = 600
MEMORY_BYTES = 2000


class Quiet:
    """An owner that counts how often it was woken."""

    def __init__(self) -> None:
        self.woken = 0

    def wake(self) -> None:
        """Count it."""
        self.woken += 1


def accumulator(rng: random.Random | None = None, **given: int) -> Accumulator:
    """Return an accumulator with topic `t`, whose producer has an id."""
    bounds = {"batch_bytes": BATCH_BYTES, "memory_bytes": MEMORY_BYTES} | given
    identity = ProducerIdentity()
    identity.renew(7, 0)
    made = Accumulator(
        Batching(codec=Codec.NONE, linger_s=0.1, delivery_timeout_s=10.0, **bounds),
        rng=rng or random.Random(1),
        owner=Quiet(),
        identity=identity,
    )
    made.update_topic("t", PARTITIONS, range(PARTITIONS))
    return made
