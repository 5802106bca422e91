"""From producing to consuming: one-record requests on a timetable, read by long-polling fetches.

One process does both. Each record carries when it was due, so that its time counts from then until
a consumer has it: what the producer's acknowledgement took is in it, and so is every pause.
"""

import argparse
import json
import select
import struct
import sys
import time

import crc32c

from bench.load import cluster, latency, wire
from bench.load.paced import Lane

DUE = struct.Struct(">q")
CRC_AT, CHECKED_AT = 17, 21
FETCH_BYTES = 1 << 20


class Letter:
    """A Produce request for one partition whose one record can be stamped."""

    def __init__(self, topic: str, partition: int, value_bytes: int, acks: int) -> None:
        batch = wire.batch(1, value_bytes)
        self._batch_bytes = len(batch)
        self._frame = bytearray(wire.produce(topic, partition, batch, acks))
        self._batch_at = len(self._frame) - len(batch)
        # After the value there is only the number of headers.
        self.value_at = len(batch) - 1 - value_bytes

    def stamped(self, due: int) -> bytes:
        """Return the request with `due` in its record."""
        at = self._batch_at
        DUE.pack_into(self._frame, at + self.value_at, due)
        checked = crc32c.crc32c(memoryview(self._frame)[at + CHECKED_AT :])
        struct.pack_into(">I", self._frame, at + CRC_AT, checked)
        return bytes(self._frame)


class Reader:
    """One connection that follows one partition."""

    def __init__(self, address: str, topic: str, partition: int, value_at: int) -> None:
        self.socket = wire.connect(address)
        self._topic, self._partition, self._value_at = topic, partition, value_at
        self._head_bytes = wire.fetch_head_bytes(topic)
        self._data = b""
        self._offset = 0

    def ask(self) -> None:
        """Wait for what comes next."""
        frame = wire.fetch(self._topic, self._partition, self._offset, bytes_max=FETCH_BYTES)
        self.socket.sendall(frame)

    def receive(self, latencies: list[int]) -> None:
        """Take what arrived; ask for more after a whole response."""
        part = self.socket.recv(1 << 18)
        if not part:
            raise wire.LoadError("the server closed the connection")
        now = time.perf_counter_ns()
        self._data += part
        if len(self._data) < 4:
            return
        (length,) = struct.unpack_from(">i", self._data)
        if len(self._data) < length + 4:
            return
        head = 4 + self._head_bytes
        (code,) = struct.unpack_from(">h", self._data, head - 38)
        if code:
            raise wire.LoadError(f"fetch refused with {code}")
        position = head
        while position + wire.BATCH_HEADER.size <= length + 4:
            base_offset, size = struct.unpack_from(">qi", self._data, position)
            if position + wire.BATCH_PREFIX_BYTES + size > length + 4:
                break
            (due,) = DUE.unpack_from(self._data, position + self._value_at)
            latencies.append(now - due)
            if base_offset != self._offset:
                raise wire.LoadError(f"offset {base_offset} instead of {self._offset}")
            self._offset += 1
            position += wire.BATCH_PREFIX_BYTES + size
        self._data = b""
        self.ask()


class Loop:
    """Producers and consumers of a topic, driven together."""

    def __init__(self, options: argparse.Namespace) -> None:
        leaders = cluster.leaders_of(options.bootstrap, options.topic)
        numbers = range(options.partitions)
        self._letters = [
            Letter(options.topic, number, options.value_bytes, options.acks) for number in numbers
        ]
        self._lanes = [Lane(leaders[number], options.topic) for number in numbers]
        self._readers = [
            Reader(leaders[number], options.topic, number, self._letters[0].value_at)
            for number in numbers
        ]
        self._poll = select.epoll()
        self._by_descriptor: dict[int, Lane | Reader] = {}
        self._by_descriptor |= {lane.socket.fileno(): lane for lane in self._lanes}
        self._by_descriptor |= {reader.socket.fileno(): reader for reader in self._readers}
        for descriptor in self._by_descriptor:
            self._poll.register(descriptor, select.EPOLLIN)
        for reader in self._readers:
            reader.ask()

    def run(self, rate: float, total: int) -> tuple[list[int], list[int]]:
        """Send `total` records at `rate`; return how long each took to its ack and its consumer."""
        acked: list[int] = []
        consumed: list[int] = []
        step = int(1e9 / rate)
        started = time.perf_counter_ns()
        sent = 0
        while len(acked) < total or len(consumed) < total:
            due = started + sent * step
            now = time.perf_counter_ns()
            if sent < total and now >= due:
                turn = sent % len(self._lanes)
                self._lanes[turn].send(self._letters[turn].stamped(due), due)
                sent += 1
                continue
            wait_s = max(0.0, (due - now) / 1e9) if sent < total else 30
            for descriptor, _ in self._poll.poll(wait_s):
                each = self._by_descriptor[descriptor]
                each.receive(acked if isinstance(each, Lane) else consumed)
        return acked, consumed


def main() -> int:
    """Run the load that the arguments describe and print its result."""
    parser = argparse.ArgumentParser(prog="python -m bench.load.endtoend")
    parser.add_argument("--bootstrap", required=True)
    parser.add_argument("--topic", required=True)
    parser.add_argument("--partitions", type=int, default=4)
    parser.add_argument("--value-bytes", type=int, default=100)
    parser.add_argument("--acks", type=int, default=1)
    parser.add_argument("--rate", type=float, required=True, help="records per second, in all")
    parser.add_argument("--requests", type=int, required=True)
    options = parser.parse_args()
    loop = Loop(options)
    loop.run(options.rate, min(options.requests, int(options.rate)))
    acked, consumed = loop.run(options.rate, options.requests)
    result = {"requests": options.requests, "rate": options.rate, **latency.summary(consumed)}
    result |= {f"ack_{key}": value for key, value in latency.summary(acked).items()}
    print(json.dumps(result))
    return 0


if __name__ == "__main__":
    sys.exit(main())
