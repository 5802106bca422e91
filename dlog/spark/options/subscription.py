"""Subscription of a query: `assign`, `subscribe` and `subscribePattern`.

Pure; `dlog.spark.reading.lookup` asks the cluster for the topics that are chosen from here.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from dlog.client.views import TopicView
from dlog.spark.options.java_patterns import compile_pattern
from dlog.types import PartitionId, TopicPartition


@dataclass(frozen=True, slots=True)
class Assign:
    """These partitions, and no others."""

    partitions: tuple[TopicPartition, ...]

    @property
    def topics(self) -> tuple[str, ...]:
        """The topics to look up."""
        return tuple(dict.fromkeys(key.topic for key in self.partitions))

    def choose(self, topics: Mapping[str, TopicView]) -> list[TopicPartition]:
        """Return those of them that exist."""
        existing = frozenset(partitions_of(topics.values()))
        return [key for key in self.partitions if key in existing]


@dataclass(frozen=True, slots=True)
class Subscribe:
    """All partitions of these topics, those that are added later too."""

    topics: tuple[str, ...]

    def choose(self, topics: Mapping[str, TopicView]) -> list[TopicPartition]:
        """Return the partitions of those that exist."""
        return partitions_of(topics[name] for name in self.topics if name in topics)


@dataclass(frozen=True, slots=True)
class SubscribePattern:
    """All partitions of the topics with a name in which the pattern is found.

    Anywhere in it, as Spark's Kafka source has it since it asks an admin client (`findFirstIn` of
    its ConsumerStrategy). The pattern is one of Java's, see `dlog.spark.options.java_patterns`.
    Internal topics are left out, as Kafka's `Admin.listTopics` leaves them out: those that a node
    calls so.
    """

    pattern: str

    @property
    def topics(self) -> None:
        """The topics to look up: all."""
        return

    def choose(self, topics: Mapping[str, TopicView]) -> list[TopicPartition]:
        """Return the partitions of those that match."""
        found_in = compile_pattern(self.pattern).search
        return partitions_of(
            view for name, view in topics.items() if found_in(name) and not view.is_internal
        )


Subscription = Assign | Subscribe | SubscribePattern


def partitions_of(topics: Iterable[TopicView]) -> list[TopicPartition]:
    """Return all partitions of topics, in order."""
    return sorted(
        TopicPartition(view.name, PartitionId(each.partition))
        for view in topics
        for each in view.partitions
    )
