"""Read partitions from their beginning, one connection each, at full speed.

Every response's batches are walked by their headers, so that a wrong or repeated offset is seen.
With `--seconds` the readers start over at the end until time is up (old data under other load).
"""

import argparse
import json
import select
import struct
import sys
import time

from bench.load import wire


class Reader:
    """One connection that reads one partition; one fetch in flight."""

    def __init__(self, address: str, topic: str, partition: int, bytes_max: int) -> None:
        self.socket = wire.connect(address)
        self._topic, self._partition, self._bytes_max = topic, partition, bytes_max
        self._head_bytes = wire.fetch_head_bytes(topic)
        self._buffer = bytearray(bytes_max * 2 + (1 << 20))
        self._filled = 0
        self.offset = 0
        self.end_offset = 1
        self.record_count = 0
        self.byte_count = 0

    def ask(self) -> None:
        """Send the next fetch."""
        self.socket.sendall(
            wire.fetch(self._topic, self._partition, self.offset, bytes_max=self._bytes_max)
        )

    def receive(self) -> bool:
        """Read what arrived; say whether a response is whole."""
        count = self.socket.recv_into(memoryview(self._buffer)[self._filled :])
        if not count:
            raise wire.LoadError("the server closed the connection")
        self._filled += count
        if self._filled < 4:
            return False
        (length,) = struct.unpack_from(">i", self._buffer)
        if length + 4 > len(self._buffer):
            raise wire.LoadError(f"a response of {length} bytes")
        if self._filled < length + 4:
            return False
        self._take(length)
        self._filled = 0
        return True

    def _take(self, length: int) -> None:
        head = 4 + self._head_bytes
        fields = struct.unpack_from(">hqqqiii", self._buffer, head - 38)
        code, self.end_offset, _, _, aborted, _, records_bytes = fields
        if code or aborted > 0:
            raise wire.LoadError(f"fetch refused with {code}")
        if aborted == 0 and records_bytes + head != length + 4:
            raise wire.LoadError("a response of unexpected shape")
        records = memoryview(self._buffer)[head : head + max(records_bytes, 0)]
        for next_offset, count in wire.batches(records):
            if next_offset <= self.offset:
                raise wire.LoadError(f"offset {next_offset} after {self.offset}")
            self.offset = next_offset
            self.record_count += count
        self.byte_count += len(records)

    @property
    def at_end(self) -> bool:
        """Whether everything that was there has been read."""
        return self.offset >= self.end_offset


def run(readers: list[Reader], seconds_max: float | None) -> float:
    """Read until every reader is at its end, or for `seconds_max`, starting over at the end."""
    poll = select.epoll()
    by_descriptor = {reader.socket.fileno(): reader for reader in readers}
    for descriptor, reader in by_descriptor.items():
        poll.register(descriptor, select.EPOLLIN)
        reader.ask()
    started = time.perf_counter()
    reading = len(readers)
    while reading:
        for descriptor, _ in poll.poll(30):
            reader = by_descriptor[descriptor]
            if not reader.receive():
                continue
            over = seconds_max is not None and time.perf_counter() - started > seconds_max
            if reader.at_end and seconds_max is not None:
                reader.offset = 0
            if over or reader.at_end:
                reading -= 1
            else:
                reader.ask()
    return time.perf_counter() - started


def main() -> int:
    """Run the load that the arguments describe and print its result."""
    parser = argparse.ArgumentParser(prog="python -m bench.load.catchup")
    parser.add_argument("--bootstrap", required=True)
    parser.add_argument("--topic", required=True)
    parser.add_argument("--partitions", type=int, default=4)
    parser.add_argument("--fetch-bytes", type=int, default=1 << 20)
    parser.add_argument("--seconds", type=float)
    options = parser.parse_args()
    readers = [
        Reader(options.bootstrap, options.topic, partition, options.fetch_bytes)
        for partition in range(options.partitions)
    ]
    seconds = run(readers, options.seconds)
    total = sum(reader.byte_count for reader in readers)
    result = {
        "bytes": total,
        "records": sum(reader.record_count for reader in readers),
        "seconds": seconds,
        "mb_per_s": total / seconds / 1e6,
    }
    print(json.dumps(result))
    return 0


if __name__ == "__main__":
    sys.exit(main())
