"""The few Kafka requests that the raw load programs send, built ahead of time.

Produce v7 and Fetch v11: the newest versions without compact types; every server here takes them.
A frame can be sent any number of times: its correlation id is constant, answers come in order.
"""

import random
import socket
import struct
import time
from collections.abc import Iterator

import crc32c

PRODUCE, FETCH, METADATA, CREATE_TOPICS = 0, 1, 3, 19
CLIENT = b"bench"
BATCH_HEADER = struct.Struct(">qiibIhiqqqhii")
# Base offset and length stand before what the length counts.
BATCH_PREFIX_BYTES = 12


class LoadError(Exception):
    """The server refused what a load program needs."""


def connect(address: str) -> socket.socket:
    """Open a blocking connection to `host:port` without Nagle's delay."""
    host, _, port = address.rpartition(":")
    connection = socket.create_connection((host, int(port)), timeout=30)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.settimeout(60)
    return connection


def frame(api_key: int, version: int, body: bytes) -> bytes:
    """Return a whole request with its length prefix (header version 1)."""
    head = struct.pack(">hhih", api_key, version, 0, len(CLIENT)) + CLIENT
    return struct.pack(">i", len(head) + len(body)) + head + body


def _varint(number: int) -> bytes:
    number = (number << 1) ^ (number >> 63)
    out = bytearray()
    while number > 0x7F:
        out.append((number & 0x7F) | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def batch(record_count: int, value_bytes: int, seed: int = 0) -> bytes:
    """Return an uncompressed record batch of random values without keys."""
    rng = random.Random(seed)
    records = bytearray()
    for index in range(record_count):
        value = rng.randbytes(value_bytes)
        # attributes, timestamp delta, offset delta, null key, value, no headers
        body = b"\0\0" + _varint(index) + b"\x01" + _varint(value_bytes) + value + b"\0"
        records += _varint(len(body)) + body
    now_ms = time.time_ns() // 1_000_000  # or retention drops it at its next look
    fields = (0, record_count - 1, now_ms, now_ms, -1, -1, -1, record_count)
    checked = struct.pack(">hiqqqhii", *fields) + records
    length = len(checked) + BATCH_HEADER.size - 40 - BATCH_PREFIX_BYTES
    head = struct.pack(">qiib", 0, length, -1, 2)
    return head + struct.pack(">I", crc32c.crc32c(checked)) + checked


def _text(name: str) -> bytes:
    return struct.pack(">h", len(name)) + name.encode()


def produce(topic: str, partition: int, records: bytes, acks: int = 1) -> bytes:
    """Return a Produce request for one partition."""
    body = struct.pack(">hhii", -1, acks, 30_000, 1) + _text(topic)
    body += struct.pack(">iii", 1, partition, len(records)) + records
    return frame(PRODUCE, 7, body)


def produce_error_at(topic: str) -> int:
    """Return the position of the error code in a whole Produce v7 response."""
    return 4 + 4 + 4 + 2 + len(topic) + 4 + 4


def fetch(topic: str, partition: int, offset: int, *, bytes_max: int, wait_ms: int = 500) -> bytes:
    """Return a Fetch request for one partition, without a session."""
    body = struct.pack(">iiiibii", -1, wait_ms, 1, bytes_max, 0, 0, -1)
    body += struct.pack(">i", 1) + _text(topic)
    body += struct.pack(">iiiqqi", 1, partition, -1, offset, -1, bytes_max)
    return frame(FETCH, 11, body + struct.pack(">i", 0) + _text(""))


def fetch_head_bytes(topic: str) -> int:
    """Return how much of a Fetch v11 response stands before the records of its one partition.

    Counted from the correlation id, for a response without aborted transactions (null array).
    """
    return 4 + 4 + 2 + 4 + 4 + 2 + len(topic) + 4 + 4 + 2 + 8 + 8 + 8 + 4 + 4 + 4


def receive(connection: socket.socket, count: int) -> bytes:
    """Read exactly `count` bytes."""
    data = bytearray()
    while len(data) < count:
        part = connection.recv(count - len(data))
        if not part:
            raise LoadError("the server closed the connection")
        data += part
    return bytes(data)


def response(connection: socket.socket) -> bytes:
    """Read one response, without its length prefix."""
    (length,) = struct.unpack(">i", receive(connection, 4))
    return receive(connection, length)


def create_topic(connection: socket.socket, topic: str, partitions: int) -> int:
    """Send CreateTopics v4 and return the error code."""
    body = struct.pack(">i", 1) + _text(topic) + struct.pack(">ihii", partitions, 1, 0, 0)
    connection.sendall(frame(CREATE_TOPICS, 4, body + struct.pack(">i?", 30_000, False)))
    answer = response(connection)
    (code,) = struct.unpack_from(">h", answer, 4 + 4 + 4 + 2 + len(topic))
    return int(code)


def metadata(connection: socket.socket) -> bytes:
    """Ask for the metadata of no topic: what a client does first."""
    connection.sendall(frame(METADATA, 4, struct.pack(">i?", 0, False)))
    return response(connection)


def batches(records: memoryview) -> Iterator[tuple[int, int]]:
    """Yield (next offset, record count) of each whole batch in `records`."""
    position = 0
    while position + BATCH_HEADER.size <= len(records):
        base_offset, length = struct.unpack_from(">qi", records, position)
        end = position + BATCH_PREFIX_BYTES + length
        if end > len(records):
            return
        (last_delta,) = struct.unpack_from(">i", records, position + 23)
        yield base_offset + last_delta + 1, last_delta + 1
        position = end
