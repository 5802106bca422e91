"""Closed loop of prebuilt Produce requests: C connections, each with F requests in flight.

One thread and one poll; per request there is no Python but the counting of answers, so that the
server is what is measured. Every answer's error code is checked.
"""

import argparse
import json
import select
import socket
import struct
import sys
import time
from collections import deque

from bench.load import cluster, latency, wire

RECEIVE_BYTES = 1 << 18


class Lane:
    """One connection: the same request again and again, answers counted."""

    def __init__(self, address: str, frame: bytes, topic: str) -> None:
        self.socket = wire.connect(address)
        self._error_at = wire.produce_error_at(topic)
        self._answer_bytes = self._first_answer(frame)
        self.socket.setblocking(False)
        self._frame = frame
        self._unsent: deque[memoryview] = deque()
        self._cut = b""
        # (when, how many): requests that went out together share a time.
        self._sent: deque[list[int]] = deque()

    def _first_answer(self, frame: bytes) -> int:
        """Send one request and learn the length of every answer."""
        self.socket.sendall(frame)
        answer = wire.response(self.socket)
        (code,) = struct.unpack_from(">h", answer, self._error_at - 4)
        if code:
            raise wire.LoadError(f"produce refused with {code}")
        return len(answer) + 4

    def send(self, count: int) -> None:
        """Put `count` more requests on the wire."""
        self._sent.append([time.perf_counter_ns(), count])
        data = self._frame * count if count > 1 else self._frame
        self._unsent.append(memoryview(data))
        if len(self._unsent) == 1:
            self.flush()

    def flush(self) -> bool:
        """Write what fits; say whether everything went out."""
        while self._unsent:
            data = self._unsent[0]
            try:
                count = self.socket.send(data)
            except BlockingIOError:
                return False
            if count == len(data):
                self._unsent.popleft()
            else:
                self._unsent[0] = data[count:]
        return True

    @property
    def blocked(self) -> bool:
        """Whether requests wait for the socket."""
        return bool(self._unsent)

    def receive(self, latencies: list[int]) -> int:
        """Read what arrived; return the number of answers."""
        data = self.socket.recv(RECEIVE_BYTES)
        if not data:
            raise wire.LoadError("the server closed the connection")
        now = time.perf_counter_ns()
        if self._cut:
            data = self._cut + data
        count, rest = divmod(len(data), self._answer_bytes)
        self._cut = data[len(data) - rest :] if rest else b""
        size, at = self._answer_bytes, self._error_at
        whole = count * size
        if any(data[at:whole:size]) or any(data[at + 1 : whole : size]):
            raise wire.LoadError("a produce request was refused")
        left = count
        while left:
            group = self._sent[0]
            taken = min(left, group[1])
            latencies.extend([now - group[0]] * taken)
            left -= taken
            group[1] -= taken
            if not group[1]:
                self._sent.popleft()
        return count


class Loop:
    """All lanes of a process, driven until `total` requests are answered."""

    def __init__(self, lanes: list[Lane], in_flight: int, total: int) -> None:
        self.latencies: list[int] = []
        self._lanes = {lane.socket.fileno(): lane for lane in lanes}
        self._in_flight = in_flight
        self._unsent = self._unanswered = total
        self._poll = select.epoll()
        self._blocked: set[int] = set()
        for descriptor in self._lanes:
            self._poll.register(descriptor, select.EPOLLIN)

    def _send(self, descriptor: int, lane: Lane, count: int) -> None:
        count = min(count, self._unsent)
        if count:
            self._unsent -= count
            lane.send(count)
        self._watch(descriptor, lane)

    def _watch(self, descriptor: int, lane: Lane) -> None:
        """Wait for room in the socket only while something waits for it."""
        if lane.blocked != (descriptor in self._blocked):
            events = select.EPOLLIN | (select.EPOLLOUT if lane.blocked else 0)
            self._poll.modify(descriptor, events)
            self._blocked ^= {descriptor}

    def _on_event(self, descriptor: int, events: int) -> None:
        lane = self._lanes[descriptor]
        count = 0
        if events & select.EPOLLOUT:
            lane.flush()
        if events & ~select.EPOLLOUT:
            count = lane.receive(self.latencies)
            self._unanswered -= count
        self._send(descriptor, lane, count)

    def run(self) -> float:
        """Return the seconds that it took."""
        started = time.perf_counter()
        for descriptor, lane in self._lanes.items():
            self._send(descriptor, lane, self._in_flight)
        while self._unanswered:
            for descriptor, events in self._poll.poll(30) or _stuck():
                self._on_event(descriptor, events)
        return time.perf_counter() - started


def _stuck() -> list[tuple[int, int]]:
    raise wire.LoadError("no answer for 30 s")


def main() -> int:
    """Run the load that the arguments describe and print its result."""
    parser = argparse.ArgumentParser(prog="python -m bench.load.requests")
    parser.add_argument("--bootstrap", required=True)
    parser.add_argument("--topic", required=True)
    parser.add_argument("--partitions", type=int, default=1)
    parser.add_argument("--connections", type=int, default=1)
    parser.add_argument("--in-flight", type=int, default=1)
    parser.add_argument("--records", type=int, default=1, help="records in each request")
    parser.add_argument("--value-bytes", type=int, default=100)
    parser.add_argument("--requests", type=int, required=True)
    parser.add_argument("--acks", type=int, default=1)
    options = parser.parse_args()
    records = wire.batch(options.records, options.value_bytes)
    frames = [
        wire.produce(options.topic, partition, records, options.acks)
        for partition in range(options.partitions)
    ]
    leaders = cluster.leaders_of(options.bootstrap, options.topic)
    lanes = []
    for index in range(options.connections):
        partition = index % len(frames)
        lanes.append(Lane(leaders[partition], frames[partition], options.topic))
    loop = Loop(lanes, options.in_flight, options.requests)
    seconds = loop.run()
    value_bytes = options.requests * options.records * options.value_bytes
    result = {
        "requests": options.requests,
        "seconds": seconds,
        "requests_per_s": options.requests / seconds,
        "records_per_s": options.requests * options.records / seconds,
        "mb_per_s": value_bytes / seconds / 1e6,
        "value_bytes": value_bytes,
        **latency.summary(loop.latencies),
    }
    print(json.dumps(result))
    return 0


if __name__ == "__main__":
    socket.setdefaulttimeout(60)
    sys.exit(main())
