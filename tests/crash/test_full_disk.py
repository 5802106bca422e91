"""`dlogd` on a disk that somebody else fills: appends wait or are refused, nothing is lost.

Without a reserve, so that it meets ENOSPC itself in writes and background jobs. Needs root.
"""

import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from dlog.errors import DlogError
from tests.crash.clients import Client, directories_online
from tests.crash.disks import Mounted
from tests.daemon.process import PATIENCE_S, DaemonProcess, daemon, wait_until

pytestmark = [pytest.mark.root, pytest.mark.usefixtures("impatient")]


@pytest.fixture
def node(request: pytest.FixtureRequest, tmp_path: Path, disk: Mounted) -> Iterator[DaemonProcess]:
    policy, _, buffered = str(getattr(request, "param", "always")).partition("-")
    with daemon(tmp_path / "node") as process:
        process.config_path.write_text(
            'listeners: ["127.0.0.1:0"]\nhttp.address: 127.0.0.1:0\n'
            f"data.directories: [{disk.path}]\n"
            "segment.bytes: 256KiB\ndisk.reserve.bytes: 0\nretention.check.interval: 1s\n"
            f"direct_io: {'off' if buffered else 'auto'}\nflush.policy: {policy}\n"
        )
        yield process


def append_until(client: Client, topic: str, values: list[bytes], refused: bool) -> None:
    """Append until that is refused, or until it is not; note what was acknowledged."""
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        value = b"%06d" % len(values) + b"x" * 8000
        try:
            offset = client.append(topic, value)
        except DlogError:
            if refused:
                return
            time.sleep(0.1)
            continue
        # What was not acknowledged may have been appended all the same.
        values += [b""] * (offset - len(values))
        values.append(value)
        if not refused:
            return
    raise AssertionError("still refused" if not refused else "never refused")


def check(client: Client, topic: str, values: list[bytes]) -> None:
    found = client.read(topic)
    assert len(found) >= len(values)
    for offset, value in enumerate(values):
        assert not value or found[offset] == value, offset


@pytest.mark.parametrize("node", ["always", "always-buffered", "never"], indirect=True)
def test_appends_go_on_when_there_is_space_again(node: DaemonProcess, disk: Mounted) -> None:
    node.start()
    values: dict[str, list[bytes]] = {name: [] for name in ("a", "b", "c")}
    with closing(Client(node)) as client:
        for name in values:
            client.create(name)
        values["a"].append(b"first")
        client.append("a", b"first")
        for free_bytes in (0, 300_000):
            with disk.filled(free_bytes):
                # One log that has space prepared, and one that has never been appended to.
                append_until(client, "a", values["a"], refused=True)
                append_until(client, "b", values["b"], refused=True)
                for name in ("a", "b"):
                    check(client, name, values[name])
            for name in values:
                append_until(client, name, values[name], refused=False)
                check(client, name, values[name])
        assert directories_online(node) == {str(disk.path): True}
        assert "Traceback" not in node.log and "Log failed" not in node.log, node.log[-3000:]
    assert node.stop() == 0
    node.start()
    with closing(Client(node)) as client:
        for name, expected in values.items():
            check(client, name, expected)
            append_until(client, name, expected, refused=False)


def test_a_crash_and_a_start_on_a_full_disk(node: DaemonProcess, disk: Mounted) -> None:
    node.start()
    values: list[bytes] = []
    with closing(Client(node)) as client:
        client.create("a")
        with disk.filled():
            append_until(client, "a", values, refused=True)
            assert node.process is not None
            node.process.kill()
            node.wait()
            node.start()
            # Without space the log may be out of service, but not its directory.
            assert directories_online(node) == {str(disk.path): True}
    wait_until(lambda: node.status()["partitions"] == {"led": 1, "offline": 0})
    with closing(Client(node)) as client:
        check(client, "a", values)
        append_until(client, "a", values, refused=False)
        check(client, "a", values)
    assert "Traceback" not in node.log


def test_retention_frees_a_nearly_full_disk(node: DaemonProcess, disk: Mounted) -> None:
    node.start()
    values: list[bytes] = []
    with closing(Client(node)) as client:
        client.create("a", {"retention.bytes": "1000000"})
        # Less than the disk has left: it fills unless retention keeps up.
        with disk.filled(6_000_000):
            for _ in range(2500):
                append_until(client, "a", values, refused=False)
    assert "Deleted old segments" in node.log
