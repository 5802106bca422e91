"""Partitioner: by the hash of the key, or one partition for a while. Pure.

Keys are placed as Kafka's own clients do (murmur2), so that every client agrees about them. Records
without a key stick to one partition until its batch goes out, and then go to another, chosen at
random among those that have a leader (KIP-480): batches are as large as they can be, and partitions
get their share whatever the speed of their leaders (KIP-794).
"""

import random
from collections.abc import Sequence

from dlog.batch.native import murmur2
from dlog.checksum import Buffer

_POSITIVE = 0x7FFF_FFFF


def partition_for_key(key: Buffer, partition_count: int) -> int:
    """Return the partition of a key, which changes when the number of partitions does."""
    return (murmur2(key) & _POSITIVE) % partition_count


def next_sticky(
    partition_count: int, available: Sequence[int], current: int, rng: random.Random
) -> int:
    """Return the partition to stick to after `current` (-1: none was before).

    Another one where there is a choice; one without a leader only if none has a leader.
    """
    choice = available or range(partition_count)
    if len(choice) == 1:
        return choice[0]
    at = rng.randrange(len(choice))
    if choice[at] == current:
        # Any but the current one, each equally likely.
        at = (at + 1 + rng.randrange(len(choice) - 1)) % len(choice)
    return choice[at]
