"""The requests about clusters that rows send themselves: what nodes say of topics and leaders.

Versions before compact types, but for DescribeQuorum, which has no other. Blocking.
"""

import socket
import struct
import time
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from bench.load.wire import CREATE_TOPICS, METADATA, LoadError, connect, frame, response

__all__ = [
    "LoadError",
    "Picture",
    "connect",
    "controller_id",
    "create_topics",
    "delete_topic",
    "leaders_of",
    "open_topics",
    "picture",
]

LIST_OFFSETS, DELETE_TOPICS, DESCRIBE_QUORUM = 2, 20, 55
METADATA_TOPIC = b"__cluster_metadata"
NO_LEADERS_TRIES, NO_LEADERS_WAIT_S = 300, 0.1
_I16, _I32 = struct.Struct(">h"), struct.Struct(">i")


class Picture(NamedTuple):
    """What one node says of the cluster: Metadata v4."""

    nodes: tuple[int, ...]  # that are up
    leaders: tuple[int, ...]  # of all partitions, -1 for those without one
    isrs: tuple[tuple[int, ...], ...]  # of all partitions
    replicas: tuple[tuple[int, ...], ...]  # of all partitions
    addresses: dict[int, str]  # of the nodes


class _Reader:
    """Steps through a response."""

    def __init__(self, data: bytes, position: int) -> None:
        self.data = data
        self.position = position

    def i16(self) -> int:
        """Read two bytes."""
        (value,) = _I16.unpack_from(self.data, self.position)
        self.position += 2
        return int(value)

    def i32(self) -> int:
        """Read four bytes."""
        (value,) = _I32.unpack_from(self.data, self.position)
        self.position += 4
        return int(value)

    def skip(self, count: int) -> None:
        """Step over so many bytes."""
        self.position += count

    def text(self) -> str:
        """Read a text."""
        length = self.i16()
        self.skip(length)
        return self.data[self.position - length : self.position].decode()

    def skip_text(self) -> None:
        """Step over a text or a null."""
        self.skip(max(0, self.i16()))


def picture(connection: socket.socket, topics: Sequence[str] | None = ()) -> Picture:
    """Ask a node for the nodes and the leaders of some topics (None: of all)."""
    names = b"".join(_text(name) for name in topics or ())
    count = -1 if topics is None else len(topics)
    connection.sendall(frame(METADATA, 4, _I32.pack(count) + names + b"\0"))
    reader = _Reader(response(connection), 4 + 4)
    addresses = {}
    for _ in range(reader.i32()):
        node, host = reader.i32(), reader.text()
        addresses[node] = f"{host}:{reader.i32()}"
        reader.skip_text()
    reader.skip_text()
    reader.i32()
    partitions: list[tuple[int, int, tuple[int, ...], tuple[int, ...]]] = []
    for _ in range(reader.i32()):
        reader.i16()
        reader.skip_text()
        reader.skip(1)
        partitions += sorted(_partition(reader) for _ in range(reader.i32()))
    leaders = tuple(leader for _, leader, _, _ in partitions)
    isrs = tuple(isr for _, _, isr, _ in partitions)
    replicas = tuple(every for _, _, _, every in partitions)
    return Picture(tuple(sorted(addresses)), leaders, isrs, replicas, addresses)


def _partition(reader: _Reader) -> tuple[int, int, tuple[int, ...], tuple[int, ...]]:
    """Read one partition: number, leader, ISR, replicas."""
    reader.i16()
    number, leader = reader.i32(), reader.i32()
    replicas = tuple(reader.i32() for _ in range(reader.i32()))
    return number, leader, tuple(reader.i32() for _ in range(reader.i32())), replicas


def leaders_of(address: str, topic: str) -> list[str]:
    """Return where the leader of each partition listens, once all have one that serves it."""
    for _ in range(NO_LEADERS_TRIES):
        with connect(address) as connection:
            found = picture(connection, [topic])
        if found.leaders and all(leader in found.addresses for leader in found.leaders):
            leaders = [found.addresses[leader] for leader in found.leaders]
            if _all_serve(topic, leaders):
                return leaders
        time.sleep(NO_LEADERS_WAIT_S)
    raise LoadError(f"{topic} has no leaders")


def _all_serve(topic: str, leaders: Sequence[str]) -> bool:
    """Return whether each leader gives the offsets of its partitions of `topic`."""
    for address in dict.fromkeys(leaders):
        own = [number for number, leader in enumerate(leaders) if leader == address]
        with connect(address) as connection:
            if len(_offsets(connection, {topic: own})) < len(own):
                return False
    return True


def controller_id(connection: socket.socket) -> int:
    """Ask a node who leads the quorum of the metadata."""
    topic = bytes([len(METADATA_TOPIC) + 1]) + METADATA_TOPIC
    body = b"\0\x02" + topic + b"\x02" + _I32.pack(0) + b"\0\0\0"
    connection.sendall(frame(DESCRIBE_QUORUM, 0, body))
    answer = response(connection)
    # Correlation id, tags; error, one topic with its name, one partition: number and error.
    head = 4 + 1
    if _I16.unpack_from(answer, head)[0] or len(answer) < head + 4 + len(topic) + 10:
        raise LoadError("the node does not tell who is controller")
    (leader,) = _I32.unpack_from(answer, head + 2 + 1 + len(topic) + 1 + 4 + 2)
    return int(leader)


def delete_topic(connection: socket.socket, name: str) -> None:
    """Send DeleteTopics v1; nothing is expected of it."""
    body = _I32.pack(1) + _text(name) + _I32.pack(30_000)
    connection.sendall(frame(DELETE_TOPICS, 1, body))
    response(connection)


def open_topics(connection: socket.socket, topics: Sequence[str]) -> list[str]:
    """Ask for the offsets of the first partitions of topics; return those that the node serves."""
    return _offsets(connection, dict.fromkeys(topics, (0,)))


def _offsets(connection: socket.socket, wanted: Mapping[str, Sequence[int]]) -> list[str]:
    """Send ListOffsets v1; return the topic of each partition that has an offset."""
    body = struct.pack(">ii", -1, len(wanted))
    for name, partitions in wanted.items():
        body += _text(name) + _I32.pack(len(partitions))
        body += b"".join(struct.pack(">iq", partition, -1) for partition in partitions)
    connection.sendall(frame(LIST_OFFSETS, 1, body))
    reader = _Reader(response(connection), 4)
    found = []
    for _ in range(reader.i32()):
        name = reader.text()
        for _ in range(reader.i32()):
            reader.skip(4)
            if reader.i16() == 0:
                found.append(name)
            reader.skip(8 + 8)
    return found


def _text(name: str) -> bytes:
    return _I16.pack(len(name)) + name.encode()


def create_topics(
    connection: socket.socket,
    names: Sequence[str],
    partitions: int,
    replicas: int,
    timeout_ms: int = 30_000,
    configs: Mapping[str, str] | None = None,
) -> list[int]:
    """Send CreateTopics v4 and return the error codes."""
    counts = struct.pack(">ihii", partitions, replicas, 0, len(configs or {}))
    counts += b"".join(_text(key) + _text(value) for key, value in (configs or {}).items())
    body = b"".join(_text(name) + counts for name in names)
    body = _I32.pack(len(names)) + body + struct.pack(">i?", timeout_ms, False)
    connection.sendall(frame(CREATE_TOPICS, 4, body))
    reader = _Reader(response(connection), 4 + 4)
    codes = []
    for _ in range(reader.i32()):
        reader.skip_text()
        codes.append(reader.i16())
        reader.skip_text()
    return codes
