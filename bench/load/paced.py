"""One-record Produce requests on a timetable, whatever the answers do (open loop).

Requests go round a few connections; each one's time counts from when it was due, so that a pause of
the server is felt by everything that was due in it.
"""

import argparse
import json
import math
import select
import struct
import sys
import time
from collections import deque
from collections.abc import Sequence

from bench.load import cluster, latency, wire


class Lane:
    """One connection and when its unanswered requests were due."""

    def __init__(self, address: str, topic: str) -> None:
        self.socket = wire.connect(address)
        self._error_at = wire.produce_error_at(topic)
        self._data = b""
        self.due: deque[int] = deque()

    def send(self, frame: bytes, due: int) -> None:
        """Send one request that was due at `due`."""
        self.due.append(due)
        self.socket.sendall(frame)

    def receive(self, latencies: list[int]) -> None:
        """Take the answers that arrived."""
        part = self.socket.recv(1 << 16)
        if not part:
            raise wire.LoadError("the server closed the connection")
        now = time.perf_counter_ns()
        self._data += part
        while len(self._data) >= 4:
            (length,) = struct.unpack_from(">i", self._data)
            if len(self._data) < length + 4:
                return
            (code,) = struct.unpack_from(">h", self._data, self._error_at)
            if code:
                raise wire.LoadError(f"produce refused with {code}")
            self._data = self._data[length + 4 :]
            latencies.append(now - self.due.popleft())


def run(turns: Sequence[tuple[Lane, bytes]], rate: float, total: int) -> list[int]:
    """Send `total` requests at `rate` per second, in turn by `turns`; return the latencies."""
    poll = select.epoll()
    by_descriptor = {lane.socket.fileno(): lane for lane, _ in turns}
    for descriptor in by_descriptor:
        poll.register(descriptor, select.EPOLLIN)
    latencies: list[int] = []
    step = int(1e9 / rate)
    started = time.perf_counter_ns()
    sent = 0
    while len(latencies) < total:
        due = started + sent * step
        now = time.perf_counter_ns()
        if sent < total and now >= due:
            lane, frame = turns[sent % len(turns)]
            lane.send(frame, due)
            sent += 1
            continue
        for descriptor, _ in poll.poll(max(0.0, (due - now) / 1e9) if sent < total else 30):
            by_descriptor[descriptor].receive(latencies)
    return latencies


def _turns(options: argparse.Namespace) -> list[tuple[Lane, bytes]]:
    """Return what is sent where, one after the other: all partitions, over all connections."""
    records = wire.batch(1, options.value_bytes)
    topics = options.topic.split(",")  # whose names are equally long
    partitions = [
        (topic, number, leader)
        for topic in topics
        for number, leader in enumerate(cluster.leaders_of(options.bootstrap, topic))
    ]
    lanes: dict[tuple[str, int], Lane] = {}
    turns = []
    for index in range(math.lcm(len(partitions), options.connections)):
        topic, number, leader = partitions[index % len(partitions)]
        where = (leader, index % options.connections)
        if where not in lanes:
            lanes[where] = Lane(leader, topic)
        turns.append((lanes[where], wire.produce(topic, number, records, options.acks)))
    return turns


def main() -> int:
    """Run the load that the arguments describe and print its result."""
    parser = argparse.ArgumentParser(prog="python -m bench.load.paced")
    parser.add_argument("--bootstrap", required=True)
    parser.add_argument("--topic", required=True, help="or several, with commas between")
    parser.add_argument("--partitions", type=int, default=1)
    parser.add_argument("--connections", type=int, default=8)
    parser.add_argument("--value-bytes", type=int, default=1024)
    parser.add_argument("--rate", type=float, required=True, help="requests per second, in all")
    parser.add_argument("--requests", type=int, required=True)
    parser.add_argument("--acks", type=int, default=1)
    options = parser.parse_args()
    turns = _turns(options)
    run(turns, options.rate, min(options.requests, max(100, len(turns))))
    latencies = run(turns, options.rate, options.requests)
    result = {"requests": options.requests, "rate": options.rate, **latency.summary(latencies)}
    print(json.dumps(result))
    return 0


if __name__ == "__main__":
    sys.exit(main())
