"""Commands about topics, their configs, and producer ids.

Pure. Part of `dlogd.metadata.commands.codec`, which says what a command is.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Self
from uuid import UUID

from dlog.types import NodeId, TopicId
from dlogd.metadata.state.encoding import Reader, Writer
from dlogd.metadata.state.shared_fields import (
    Assignment,
    CommandKind,
    read_assignments,
    write_assignments,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateTopic:
    """Create a topic with these replicas for each of its partitions."""

    KIND: ClassVar = CommandKind.CREATE_TOPIC

    command_id: UUID
    name: str
    topic_id: TopicId
    assignments: tuple[Assignment, ...]
    configs: Mapping[str, str] = field(default_factory=dict)

    def write(self, writer: Writer) -> None:
        """Write the body."""
        write_new_topic(writer, self)

    @classmethod
    def read(cls, command_id: UUID, reader: Reader) -> Self:
        """Read the body."""
        return cls(
            command_id=command_id,
            name=reader.text(),
            topic_id=reader.uuid(),
            assignments=read_assignments(reader),
            configs=reader.pairs(),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class NewTopic:
    """One topic to create."""

    name: str
    topic_id: TopicId
    assignments: tuple[Assignment, ...]
    configs: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateTopics:
    """Create many topics, all or none; the outcome's value is how many partitions they have."""

    KIND: ClassVar = CommandKind.CREATE_TOPICS

    command_id: UUID
    topics: tuple[NewTopic, ...]

    def write(self, writer: Writer) -> None:
        """Write the body."""
        writer.u32(len(self.topics))
        for topic in self.topics:
            write_new_topic(writer, topic)

    @classmethod
    def read(cls, command_id: UUID, reader: Reader) -> Self:
        """Read the body."""
        topics = tuple(
            NewTopic(
                name=reader.text(),
                topic_id=reader.uuid(),
                assignments=read_assignments(reader),
                configs=reader.pairs(),
            )
            for _ in range(reader.count(26))
        )
        return cls(command_id=command_id, topics=topics)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteTopic:
    """Delete one life of a topic; a topic re-created under the name meanwhile is not touched."""

    KIND: ClassVar = CommandKind.DELETE_TOPIC

    command_id: UUID
    topic_id: TopicId

    def write(self, writer: Writer) -> None:
        """Write the body."""
        writer.uuid(self.topic_id)

    @classmethod
    def read(cls, command_id: UUID, reader: Reader) -> Self:
        """Read the body."""
        return cls(command_id=command_id, topic_id=reader.uuid())


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteTopics:
    """Delete one life of each of many topics, all or none.

    The outcome's value is how many partitions they had.
    """

    KIND: ClassVar = CommandKind.DELETE_TOPICS

    command_id: UUID
    topic_ids: tuple[TopicId, ...]

    def write(self, writer: Writer) -> None:
        """Write the body."""
        writer.u32(len(self.topic_ids))
        for topic_id in self.topic_ids:
            writer.uuid(topic_id)

    @classmethod
    def read(cls, command_id: UUID, reader: Reader) -> Self:
        """Read the body."""
        topic_ids = tuple(reader.uuid() for _ in range(reader.count(16)))
        return cls(command_id=command_id, topic_ids=topic_ids)


@dataclass(frozen=True, slots=True, kw_only=True)
class CreatePartitions:
    """Add partitions to a topic that has `partition_count` of them now (compare-and-set)."""

    KIND: ClassVar = CommandKind.CREATE_PARTITIONS

    command_id: UUID
    topic_id: TopicId
    partition_count: int
    assignments: tuple[Assignment, ...]  # of the new partitions only

    def write(self, writer: Writer) -> None:
        """Write the body."""
        writer.uuid(self.topic_id)
        writer.u32(self.partition_count)
        write_assignments(writer, self.assignments)

    @classmethod
    def read(cls, command_id: UUID, reader: Reader) -> Self:
        """Read the body."""
        return cls(
            command_id=command_id,
            topic_id=reader.uuid(),
            partition_count=reader.u32(),
            assignments=read_assignments(reader),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigChange:
    """One key set to `value`, or removed when that is None.

    With `compare`, only if the key holds `expected` now (None: is not set).
    """

    key: str
    value: str | None
    compare: bool = False
    expected: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterConfigs:
    """Change configs of a topic, or of the whole cluster when `topic_id` is None; all or none."""

    KIND: ClassVar = CommandKind.ALTER_CONFIGS

    command_id: UUID
    topic_id: TopicId | None
    changes: tuple[ConfigChange, ...]

    def write(self, writer: Writer) -> None:
        """Write the body."""
        writer.boolean(self.topic_id is not None)
        if self.topic_id is not None:
            writer.uuid(self.topic_id)
        writer.u32(len(self.changes))
        for change in self.changes:
            writer.text(change.key)
            writer.optional_text(change.value)
            writer.boolean(change.compare)
            if change.compare:
                writer.optional_text(change.expected)

    @classmethod
    def read(cls, command_id: UUID, reader: Reader) -> Self:
        """Read the body."""
        topic_id = reader.uuid() if reader.boolean() else None
        changes = tuple(_read_change(reader) for _ in range(reader.count(4)))
        return cls(command_id=command_id, topic_id=topic_id, changes=changes)


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocateProducerIds:
    """Give a node the next `count` producer ids; the outcome's value is the first."""

    KIND: ClassVar = CommandKind.ALLOCATE_PRODUCER_IDS

    command_id: UUID
    node_id: NodeId
    node_epoch: int  # of the node's present life, so that a zombie gets none
    count: int

    def write(self, writer: Writer) -> None:
        """Write the body."""
        writer.i32(self.node_id)
        writer.i64(self.node_epoch)
        writer.u32(self.count)

    @classmethod
    def read(cls, command_id: UUID, reader: Reader) -> Self:
        """Read the body."""
        return cls(
            command_id=command_id,
            node_id=NodeId(reader.i32()),
            node_epoch=reader.i64(),
            count=reader.u32(),
        )


def write_new_topic(writer: Writer, topic: CreateTopic | NewTopic) -> None:
    """Write what a topic shall be."""
    writer.text(topic.name)
    writer.uuid(topic.topic_id)
    write_assignments(writer, topic.assignments)
    writer.pairs(topic.configs)


def _read_change(reader: Reader) -> ConfigChange:
    key, value, compare = reader.text(), reader.optional_text(), reader.boolean()
    expected = reader.optional_text() if compare else None
    return ConfigChange(key=key, value=value, compare=compare, expected=expected)
