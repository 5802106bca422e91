"""JetStream's counterpart of the closed loop: publishes with an acknowledgement each.

NATS's own text protocol on one connection: PUB with a reply subject, answered by the stream. The
row beside it in the table is Kafka's one-record request.
"""

import argparse
import json
import random
import sys
import time
from collections import deque

from bench.load import latency, wire

CREATE_TRIES, CREATE_WAIT_S, ANSWER_S = 40, 1, 60
SUBJECT, STREAM, INBOX = b"bench", b"BENCH", b"_INBOX.bench"


class Connection:
    """One connection that has subscribed to its inbox."""

    def __init__(self, address: str) -> None:
        self.socket = wire.connect(address)
        self._data = b""
        self._line()  # INFO
        self.socket.sendall(b'CONNECT {"verbose":false,"pedantic":false}\r\n')
        self.socket.sendall(b"SUB " + INBOX + b" 1\r\nPING\r\n")
        while self._line() != b"PONG":
            pass

    def _more(self) -> None:
        part = self.socket.recv(1 << 16)
        if not part:
            raise wire.LoadError("the server closed the connection")
        self._data += part

    def _line(self) -> bytes:
        while b"\r\n" not in self._data:
            self._more()
        line, _, self._data = self._data.partition(b"\r\n")
        return line

    def answer(self) -> bytes:
        """Return the payload of the next message to the inbox."""
        while True:
            line = self._line()
            if line.startswith(b"MSG "):
                size = int(line.rpartition(b" ")[2])
                while len(self._data) < size + 2:
                    self._more()
                payload, self._data = self._data[:size], self._data[size + 2 :]
                return payload
            if line.startswith(b"-ERR"):
                raise wire.LoadError(line.decode())
            if line == b"PING":
                self.socket.sendall(b"PONG\r\n")

    def answers(self) -> int:
        """Read what arrived and return the number of acknowledgements in it."""
        self._more()
        if b'"error"' in self._data:
            raise wire.LoadError(self._data[:300].decode(errors="replace"))
        # An acknowledgement names its sequence once and is followed by the end of its line.
        end = self._data.rfind(b"}\r\n") + 3
        if end < 3:
            return 0
        count = self._data.count(b'"seq":', 0, end)
        self._data = self._data[end:]
        return count


def _publish(value_bytes: int) -> bytes:
    value = random.Random(0).randbytes(value_bytes)
    return b"PUB %b %b %d\r\n%b\r\n" % (SUBJECT, INBOX, value_bytes, value)


def create_stream(connection: Connection, replicas: int) -> None:
    """Create the stream that keeps the subject on disk; an existing one is kept.

    Servers that have just met are given time until they have elected who decides.
    """
    config = {
        "name": STREAM.decode(),
        "subjects": [SUBJECT.decode()],
        "storage": "file",
        "retention": "limits",
        "num_replicas": replicas,
    }
    body = json.dumps(config).encode()
    subject = b"$JS.API.STREAM.CREATE." + STREAM
    connection.socket.settimeout(CREATE_WAIT_S)
    found = {"error": "no answer"}
    for _ in range(CREATE_TRIES):
        connection.socket.sendall(b"PUB %b %b %d\r\n%b\r\n" % (subject, INBOX, len(body), body))
        try:
            found = json.loads(connection.answer())
        except TimeoutError:
            continue
        if "error" not in found:
            connection.socket.settimeout(ANSWER_S)
            return
        time.sleep(CREATE_WAIT_S)
    raise wire.LoadError(found["error"])


def run(connection: Connection, in_flight: int, total: int, value_bytes: int) -> list[int]:
    """Publish `total` messages; return their latencies."""
    message = _publish(value_bytes)
    sent: deque[list[int]] = deque()
    latencies: list[int] = []
    unsent = total

    def send(count: int) -> None:
        sent.append([time.perf_counter_ns(), count])
        connection.socket.sendall(message * count)

    send(min(in_flight, unsent))
    unsent -= min(in_flight, unsent)
    while len(latencies) < total:
        count = connection.answers()
        now, left = time.perf_counter_ns(), count
        while left:
            taken = min(left, sent[0][1])
            latencies.extend([now - sent[0][0]] * taken)
            left -= taken
            sent[0][1] -= taken
            if not sent[0][1]:
                sent.popleft()
        more = min(count, unsent)
        if more:
            unsent -= more
            send(more)
    return latencies


def main() -> int:
    """Run the load that the arguments describe and print its result."""
    parser = argparse.ArgumentParser(prog="python -m bench.load.nats")
    parser.add_argument("--bootstrap", required=True)
    parser.add_argument("--in-flight", type=int, default=1)
    parser.add_argument("--value-bytes", type=int, default=100)
    parser.add_argument("--requests", type=int, required=True)
    parser.add_argument("--replicas", type=int, default=1)
    options = parser.parse_args()
    connection = Connection(options.bootstrap)
    create_stream(connection, options.replicas)
    run(connection, options.in_flight, min(300, options.requests), options.value_bytes)
    started = time.perf_counter()
    latencies = run(connection, options.in_flight, options.requests, options.value_bytes)
    seconds = time.perf_counter() - started
    value_bytes = options.requests * options.value_bytes
    result = {
        "requests": options.requests,
        "seconds": seconds,
        "requests_per_s": options.requests / seconds,
        "mb_per_s": value_bytes / seconds / 1e6,
        "value_bytes": value_bytes,
        **latency.summary(latencies),
    }
    print(json.dumps(result))
    return 0


if __name__ == "__main__":
    sys.exit(main())
