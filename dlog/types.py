"""Named integers and small values that every layer shares.

Pure definitions: no I/O, no dependency. Offsets, epochs and ids are distinct types so that a
type checker refuses to mix them (docs/GLOSSARY.md has the exact meaning of each word).
"""

from dataclasses import dataclass
from typing import NewType
from uuid import UUID

Offset = NewType("Offset", int)
"""Logical place of a record in a partition, from 0."""

Position = NewType("Position", int)
"""Byte place in a segment file."""

LeaderEpoch = NewType("LeaderEpoch", int)
"""Raised at every change of leader; -1 means none (int32)."""

PartitionEpoch = NewType("PartitionEpoch", int)
"""Raised at every change of leader or ISR; the compare-and-set token of ISR changes."""

NodeId = NewType("NodeId", int)
"""Identity of a dlogd process in its cluster (int32, from 0)."""

PartitionId = NewType("PartitionId", int)
"""Number of a partition within its topic, from 0."""

TopicId = UUID
"""Identity of one life of a topic: a re-created topic has another one (KIP-516)."""

ZERO_TOPIC_ID = UUID(int=0)
NO_EPOCH = LeaderEpoch(-1)
NO_OFFSET = Offset(-1)
NO_NODE = NodeId(-1)
INT32_MAX = (1 << 31) - 1
"""Numbers of nodes and partitions, times and sizes have no more room on the wire."""


@dataclass(frozen=True, slots=True, order=True)
class TopicPartition:
    """Name of one partition of one topic; prints as `topic-3`."""

    topic: str
    partition: PartitionId

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"
