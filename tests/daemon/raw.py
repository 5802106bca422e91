"""Raw blocking connections to a daemon process, and what the process itself shows."""

import re
import socket
import time
from collections.abc import Callable
from typing import Any

from dlog.client.blocking import BlockingClient
from dlog.transport import Address
from dlog.wire import fetch_client, produce_client
from tests.daemon.process import DaemonProcess
from tests.fakes.front import FETCH_VERSION, PRODUCE_VERSION
from tests.fakes.process_memory import resident_bytes


class Raw:
    """One connection that sends and reads frames when it is told to."""

    def __init__(
        self, node: DaemonProcess, *, source: str = "127.0.0.1", receive_buffer: int = 0
    ) -> None:
        self.sock = socket.socket()
        self.sock.settimeout(20)
        if receive_buffer:
            self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        self.sock.bind((source, 0))
        self.sock.connect(address_of(node))
        self._file = self.sock.makefile("rb")

    def send(self, *frames: bytes) -> None:
        """Send all."""
        self.sock.sendall(b"".join(frames))

    def receive(self) -> memoryview:
        """Return the next response without its length."""
        size = int.from_bytes(self._exactly(4), "big")
        return memoryview(self._exactly(size))

    def _exactly(self, size: int) -> bytes:
        data = self._file.read(size)
        if len(data) < size:
            raise ConnectionResetError("The node has closed the connection")
        return data

    def produced(self) -> tuple[Any, ...]:
        """Return the only partition of the next response, which is of Produce."""
        frame = self.receive()
        response = produce_client.parse_response(frame, 4, len(frame), PRODUCE_VERSION)
        ((_, (partition,)),) = response.topics
        return partition

    def fetched(self) -> tuple[int, bytes]:
        """Return error code and records of the only partition of the next Fetch response."""
        frame = self.receive()
        response = fetch_client.parse_response(frame, 4, len(frame), FETCH_VERSION)
        ((_, ((found, start),)),) = response.topics
        return found.error_code, bytes(frame[start : start + found.records_bytes])

    def is_closed(self) -> bool:
        """Tell whether the node closes the connection soon; bytes before are dropped."""
        try:
            while self._file.read(1 << 16):
                pass
        except ConnectionResetError:
            return True
        except TimeoutError:
            return False
        return True

    def close(self) -> None:
        """Close."""
        self._file.close()
        self.sock.close()


_addresses: dict[int, tuple[str, int]] = {}


def address_of(node: DaemonProcess) -> tuple[str, int]:
    """Return where the node serves clients."""
    assert node.process is not None
    found = _addresses.get(node.process.pid)
    if found is None:
        address = Address.parse(node.status()["listeners"][0])
        found = _addresses[node.process.pid] = (address.host, address.port)
    return found


def client_of(node: DaemonProcess) -> BlockingClient:
    """Return a client of the node."""
    return BlockingClient([Address(*address_of(node))])


def rss_bytes(node: DaemonProcess) -> int:
    """Return the resident memory of the process."""
    return resident_bytes(node.process)


def metric(node: DaemonProcess, name: str) -> float:
    """Return a metric without labels."""
    found = re.search(rf"^{name} (\S+)$", node.metrics(), re.MULTILINE)
    assert found is not None, name
    return float(found[1])


def comes_to_be(condition: Callable[[], bool], seconds: float = 10.0) -> bool:
    """Tell whether a condition holds soon."""
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.02)
    return condition()
