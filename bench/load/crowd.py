"""A thousand connections that do little: idle ones, or consumers that read slowly.

Prints `ready` when all are open, then holds them until its standard input is closed.
"""

import argparse
import selectors
import socket
import sys
import time

from bench.load import wire

# A slow consumer takes this much, this often.
SIP_BYTES = 4096
SIP_S = 1.0


def _open(options: argparse.Namespace) -> list[socket.socket]:
    connections = []
    for index in range(options.connections):
        connection = wire.connect(options.bootstrap)
        if options.slow:
            # A small window, so that the response waits at the server and not in the kernel here.
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SIP_BYTES)
            partition = index % options.partitions
            request = wire.fetch(options.topic, partition, 0, bytes_max=1 << 20)
            connection.sendall(request)
            connection.setblocking(False)
        else:
            wire.metadata(connection)
        connections.append(connection)
    return connections


def _sip(connections: list[socket.socket]) -> None:
    for connection in connections:
        try:
            if not connection.recv(SIP_BYTES):
                raise SystemExit("the server closed a slow consumer")
        except BlockingIOError:
            continue


def main() -> int:
    """Open the connections, say so, and hold them."""
    parser = argparse.ArgumentParser(prog="python -m bench.load.crowd")
    parser.add_argument("--bootstrap", required=True)
    parser.add_argument("--connections", type=int, default=1000)
    parser.add_argument("--slow", action="store_true")
    parser.add_argument("--topic", default="")
    parser.add_argument("--partitions", type=int, default=4)
    options = parser.parse_args()
    connections = _open(options)
    print("ready", flush=True)
    with selectors.DefaultSelector() as selector:
        selector.register(sys.stdin, selectors.EVENT_READ)
        while True:
            started = time.monotonic()
            if options.slow:
                _sip(connections)
            if selector.select(max(0.0, SIP_S - (time.monotonic() - started))):
                return 0


if __name__ == "__main__":
    sys.exit(main())
