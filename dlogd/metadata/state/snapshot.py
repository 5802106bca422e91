"""Snapshot: the bytes of a whole image (docs/formats/metadata-snapshot.md).

Pure. Primitive values are those of `dlogd.metadata.state.encoding`. Topics stay in the order in
which they were created, so that an image that was read is in every respect the one that was
written.

The format follows from the feature level of the image, so that software which knows this level can
read the snapshot: format 1 for level 1, format 2 for levels 2 and 3, format 3 for level 4, format 4
from level 5 on.
"""

import struct
from dataclasses import replace
from uuid import UUID

from dlog.checksum import crc32c
from dlog.types import LeaderEpoch, NodeId, PartitionEpoch
from dlogd.metadata.state import topic_names
from dlogd.metadata.state.encoding import MalformedError, Reader, Writer
from dlogd.metadata.state.image import (
    Applied,
    ClusterImage,
    Controller,
    Drain,
    MaintenanceLock,
    NodeRegistration,
    PartitionImage,
    Refused,
    TopicImage,
)
from dlogd.metadata.state.limits import LEVEL_EPOCH_FLOOR, LEVEL_MAINTENANCE
from dlogd.metadata.state.persistent_map import PersistentMap
from dlogd.metadata.state.recent_map import RecentMap
from dlogd.metadata.state.shared_fields import (
    read_addresses,
    read_nodes,
    write_addresses,
    write_nodes,
)

MAGIC = b"dlogsnap"
FORMAT_VERSION = 4
"""The newest; older versions stay readable for ever."""

_HEAD = struct.Struct(">8sHQQI")
"""Magic, format version, image version, length of the body, CRC-32C of the four and the body."""

_APPLIED, _REFUSED = 0, 1


def encode(image: ClusterImage) -> bytes:
    """Return the bytes of a snapshot file."""
    form = _form_of(image.feature_level)
    writer = Writer()
    writer.text(image.cluster_id)
    writer.pairs(image.configs)
    writer.i64(image.producer_id_next)
    if form > 1:
        _write_cluster(writer, image, form)
    writer.u32(len(image.nodes))
    for node in image.nodes.values():
        _write_node(writer, node, form)
    writer.u32(len(image.topics))
    for topic in image.topics.values():
        _write_topic(writer, topic, form)
    writer.u32(len(image.outcomes))
    for command_id, outcome in image.outcomes.items():
        writer.uuid(command_id)
        _write_outcome(writer, outcome)
    body = bytes(writer.data)
    head = _HEAD.pack(MAGIC, form, image.version, len(body), 0)
    crc = crc32c(body, crc32c(head[:-4]))
    return head[:-4] + crc.to_bytes(4, "big") + body


def _form_of(level: int) -> int:
    if level < 2:
        return 1
    if level < LEVEL_EPOCH_FLOOR:
        return 2
    return 3 if level < LEVEL_MAINTENANCE else FORMAT_VERSION


def decode(data: bytes) -> ClusterImage:
    """Return the image of a snapshot file; raise only MalformedError."""
    if len(data) < _HEAD.size:
        raise MalformedError(f"{len(data)} bytes are too few for a snapshot")
    magic, format_version, version, length, crc = _HEAD.unpack_from(data)
    if magic != MAGIC:
        raise MalformedError(f"it begins with {magic!r}, not {MAGIC!r}")
    if not 1 <= format_version <= FORMAT_VERSION:
        raise MalformedError(
            f"its format version is {format_version}, this software knows 1 to {FORMAT_VERSION}"
        )
    if length != len(data) - _HEAD.size:
        raise MalformedError(f"its body has {len(data) - _HEAD.size} bytes instead of {length}")
    body = memoryview(data)[_HEAD.size :]
    if crc32c(body, crc32c(data[: _HEAD.size - 4])) != crc:
        raise MalformedError("its checksum does not fit")
    reader = Reader(body)
    image = _read_image(reader, version, format_version)
    reader.expect_end()
    return image


def _read_image(reader: Reader, version: int, form: int) -> ClusterImage:
    cluster_id = reader.text()
    configs = reader.pairs()
    producer_id_next = reader.i64()
    level, controller, unclean_elections = 1, Controller(), 0
    if form > 1:
        level, controller, unclean_elections = _read_cluster(reader, form)
    epoch_floor = reader.i32() if form > 2 else 0
    maintenance = _read_maintenance(reader) if form > 3 else None
    nodes = [_read_node(reader, form) for _ in range(reader.count(20))]
    topics = [_read_topic(reader, form) for _ in range(reader.count(26))]
    outcomes: dict[UUID, Applied | Refused] = {}
    for _ in range(reader.count(19)):
        command_id = reader.uuid()
        outcomes[command_id] = _read_outcome(reader)
    image = ClusterImage(
        version=version,
        cluster_id=cluster_id,
        configs=configs,
        nodes={node.node_id: node for node in nodes},
        topics=PersistentMap([(topic.name, topic) for topic in topics]),
        topics_by_id=PersistentMap([(topic.topic_id, topic) for topic in topics]),
        producer_id_next=producer_id_next,
        outcomes=RecentMap(outcomes),
        feature_level=level,
        controller=controller,
        unclean_elections=unclean_elections,
        epoch_floor=epoch_floor,
        maintenance=maintenance,
        unified_names=PersistentMap(
            [
                (topic_names.unified(topic.name), topic.name)
                for topic in topics
                if topic_names.can_collide(topic.name)
            ]
        ),
    )
    if len(image.nodes) != len(nodes) or not (
        len(image.topics) == len(image.topics_by_id) == len(topics)
    ):
        raise MalformedError("it holds a node or a topic twice")
    return image


def _write_cluster(writer: Writer, image: ClusterImage, form: int) -> None:
    writer.u16(image.feature_level)
    writer.i64(image.controller.epoch)
    writer.i32(image.controller.node_id)
    writer.i64(image.controller.node_epoch)
    writer.i64(image.unclean_elections)
    if form > 2:
        writer.i32(image.epoch_floor)
    if form > 3:
        _write_maintenance(writer, image.maintenance)


def _write_maintenance(writer: Writer, lock: MaintenanceLock | None) -> None:
    writer.boolean(lock is not None)
    if lock is not None:
        writer.text(lock.owner)
        writer.uuid(lock.token)
        writer.i32(lock.node_id)
        writer.i64(lock.since_ms)
        writer.i64(lock.expires_ms)


def _read_maintenance(reader: Reader) -> MaintenanceLock | None:
    if not reader.boolean():
        return None
    return MaintenanceLock(
        owner=reader.text(),
        token=reader.uuid(),
        node_id=NodeId(reader.i32()),
        since_ms=reader.i64(),
        expires_ms=reader.i64(),
    )


def _read_cluster(reader: Reader, form: int) -> tuple[int, Controller, int]:
    level = reader.u16()
    if _form_of(level) != form:
        raise MalformedError(f"feature level {level} is not written in this format")
    controller = Controller(
        epoch=reader.i64(), node_id=NodeId(reader.i32()), node_epoch=reader.i64()
    )
    return level, controller, reader.i64()


def _write_node(writer: Writer, node: NodeRegistration, form: int) -> None:
    writer.i32(node.node_id)
    writer.i64(node.node_epoch)
    writer.u32(len(node.directory_ids))
    for directory_id in node.directory_ids:
        writer.uuid(directory_id)
    write_addresses(writer, node.addresses)
    writer.optional_text(node.rack)
    writer.text(node.version)
    writer.boolean(node.fenced)
    if form > 1:
        writer.boolean(node.returning)
        writer.boolean(node.shutting_down)
        writer.u8(node.drain)
        writer.u32(len(node.failed_directory_ids))
        for directory_id in node.failed_directory_ids:
            writer.uuid(directory_id)
        writer.u16(node.level_min)
        writer.u16(node.level_max)


def _read_node(reader: Reader, form: int) -> NodeRegistration:
    node = NodeRegistration(
        node_id=NodeId(reader.i32()),
        node_epoch=reader.i64(),
        directory_ids=tuple(reader.uuid() for _ in range(reader.count(16))),
        addresses=read_addresses(reader),
        rack=reader.optional_text(),
        version=reader.text(),
        fenced=reader.boolean(),
    )
    if form == 1:
        return node
    return replace(
        node,
        returning=reader.boolean(),
        shutting_down=reader.boolean(),
        drain=_drain(reader.u8()),
        failed_directory_ids=tuple(reader.uuid() for _ in range(reader.count(16))),
        level_min=reader.u16(),
        level_max=reader.u16(),
    )


def _drain(value: int) -> Drain:
    if value > max(Drain):
        raise MalformedError(f"{value} is no Drain")
    return Drain(value)


def _write_topic(writer: Writer, topic: TopicImage, form: int) -> None:
    writer.text(topic.name)
    writer.uuid(topic.topic_id)
    writer.pairs(topic.configs)
    writer.u32(len(topic.partitions))
    for partition in topic.partitions:
        write_nodes(writer, partition.replicas)
        write_nodes(writer, partition.isr)
        writer.i32(partition.leader)
        writer.i32(partition.leader_epoch)
        writer.i32(partition.partition_epoch)
        if form > 1:
            write_nodes(writer, partition.elr)
            write_nodes(writer, partition.adding)
            write_nodes(writer, partition.removing)
            write_nodes(writer, partition.offline)
            writer.i32(partition.last_leader)


def _read_topic(reader: Reader, form: int) -> TopicImage:
    name, topic_id, configs = reader.text(), reader.uuid(), reader.pairs()
    read = _read_partition_1 if form == 1 else _read_partition
    partitions = tuple(read(reader) for _ in range(reader.count(14)))
    return TopicImage(name=name, topic_id=topic_id, partitions=partitions, configs=configs)


def _read_partition_1(reader: Reader) -> PartitionImage:
    return PartitionImage(
        replicas=read_nodes(reader),
        isr=read_nodes(reader),
        leader=NodeId(reader.i32()),
        leader_epoch=LeaderEpoch(reader.i32()),
        partition_epoch=PartitionEpoch(reader.i32()),
    )


def _read_partition(reader: Reader) -> PartitionImage:
    return PartitionImage(
        replicas=read_nodes(reader),
        isr=read_nodes(reader),
        leader=NodeId(reader.i32()),
        leader_epoch=LeaderEpoch(reader.i32()),
        partition_epoch=PartitionEpoch(reader.i32()),
        elr=read_nodes(reader),
        adding=read_nodes(reader),
        removing=read_nodes(reader),
        offline=read_nodes(reader),
        last_leader=NodeId(reader.i32()),
    )


def _write_outcome(writer: Writer, outcome: Applied | Refused) -> None:
    if isinstance(outcome, Applied):
        writer.u8(_APPLIED)
        writer.i64(outcome.version)
        writer.i64(outcome.value)
    else:
        writer.u8(_REFUSED)
        writer.i32(outcome.code)
        writer.text(outcome.message)


def _read_outcome(reader: Reader) -> Applied | Refused:
    kind = reader.u8()
    if kind == _APPLIED:
        return Applied(version=reader.i64(), value=reader.i64())
    if kind == _REFUSED:
        return Refused(code=reader.i32(), message=reader.text())
    raise MalformedError(f"an outcome is of the unknown kind {kind}")
