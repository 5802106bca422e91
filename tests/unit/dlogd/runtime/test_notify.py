"""sd_notify against a real datagram socket that plays the service manager."""

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from dlogd.runtime.sd_notify import Notifier, watchdog_interval_ms


class Manager:
    """The receiving end of NOTIFY_SOCKET."""

    def __init__(self, address: str) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind("\0" + address[1:] if address[0] == "@" else address)
        self.socket.setblocking(False)

    def received(self) -> list[str]:
        messages = []
        while True:
            try:
                messages.append(self.socket.recv(4096).decode())
            except BlockingIOError:
                return messages


@pytest.fixture(params=["path", "abstract"])
def address(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "path":
        return str(tmp_path / "n")
    return f"@dlog-test-notify-{tmp_path.name}"


@pytest.fixture
def manager(address: str) -> Iterator[Manager]:
    manager = Manager(address)
    yield manager
    manager.socket.close()


def test_every_message_arrives_as_the_protocol_wants(address: str, manager: Manager) -> None:
    notifier = Notifier(address)
    notifier.status("recovering 3/10")
    notifier.ready("active", http="127.0.0.1:9644")
    notifier.reloading(1234)
    notifier.ready("active")
    notifier.watchdog()
    notifier.extend_timeout(1500)
    notifier.stopping("draining")
    notifier.close()
    assert manager.received() == [
        "STATUS=recovering 3/10",
        "READY=1\nSTATUS=active\nX_DLOG_HTTP=127.0.0.1:9644",
        "RELOADING=1\nMONOTONIC_USEC=1234",
        "READY=1\nSTATUS=active",
        "WATCHDOG=1",
        "EXTEND_TIMEOUT_USEC=1500000",
        "STOPPING=1\nSTATUS=draining",
    ]


def test_a_manager_that_does_not_read_never_blocks_and_loses_no_state(
    address: str, manager: Manager
) -> None:
    notifier = Notifier(address)
    while notifier.watchdog():
        pass
    assert notifier.dropped_count == 1
    notifier.ready("active")
    assert not notifier.status("lost")
    manager.received()
    assert notifier.watchdog()
    assert manager.received() == ["READY=1\nSTATUS=active", "WATCHDOG=1"]


def test_without_a_manager_nothing_happens(tmp_path: Path) -> None:
    for address in (None, "", "relative", str(tmp_path / "nobody")):
        notifier = Notifier(address)
        notifier.ready("active")
        assert not notifier.watchdog()
        notifier.close()
    assert not Notifier(None).enabled


@pytest.mark.parametrize(
    ("environ", "interval_ms"),
    [
        ({}, None),
        ({"WATCHDOG_USEC": "30000000"}, 30_000),
        ({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": "7"}, 30_000),
        ({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": "8"}, None),
        ({"WATCHDOG_USEC": "soon"}, None),
        ({"WATCHDOG_USEC": "0"}, None),
        ({"WATCHDOG_USEC": "10"}, 1),
    ],
)
def test_watchdog_interval(environ: dict[str, str], interval_ms: int | None) -> None:
    assert watchdog_interval_ms(environ, 7) == interval_ms
