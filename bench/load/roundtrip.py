"""One-record requests one after the other on one connection, the server otherwise idle."""

import argparse
import json
import socket
import struct
import sys
import time

from bench.load import cluster, latency, wire


def _exchange(connection: socket.socket, frame: bytes, error_at: int) -> None:
    connection.sendall(frame)
    answer = wire.response(connection)
    (code,) = struct.unpack_from(">h", answer, error_at - 4)
    if code:
        raise wire.LoadError(f"produce refused with {code}")


def main() -> int:
    """Run the load that the arguments describe and print its result."""
    parser = argparse.ArgumentParser(prog="python -m bench.load.roundtrip")
    parser.add_argument("--bootstrap", required=True)
    parser.add_argument("--topic", required=True)
    parser.add_argument("--partitions", type=int, default=1)
    parser.add_argument("--acks", type=int, default=1)
    parser.add_argument("--value-bytes", type=int, default=100)
    parser.add_argument("--requests", type=int, required=True)
    parser.add_argument("--warm", type=int, default=300, help="requests before those that count")
    options = parser.parse_args()
    records = wire.batch(1, options.value_bytes)
    frame = wire.produce(options.topic, 0, records, options.acks)
    connection = wire.connect(cluster.leaders_of(options.bootstrap, options.topic)[0])
    error_at = wire.produce_error_at(options.topic)
    for _ in range(options.warm):
        _exchange(connection, frame, error_at)
    latencies = []
    started = time.perf_counter_ns()
    for _ in range(options.requests):
        begin = time.perf_counter_ns()
        _exchange(connection, frame, error_at)
        latencies.append(time.perf_counter_ns() - begin)
    seconds = (time.perf_counter_ns() - started) / 1e9
    result = {"requests": options.requests, "seconds": seconds, **latency.summary(latencies)}
    print(json.dumps(result))
    return 0


if __name__ == "__main__":
    sys.exit(main())
