"""A `dlogd` process that the kernel gives no AIO context: threads, or a clear refusal."""

import platform
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from dlogd.storage.io.linux_aio import _CALL_NUMBERS
from tests.crash.clients import Client
from tests.daemon.process import DaemonProcess, daemon

pytestmark = pytest.mark.skipif(
    platform.machine() not in _CALL_NUMBERS, reason="no Linux AIO on this machine"
)
REASON = r"io_setup(512): Resource temporarily unavailable (fs.aio-nr="


@pytest.fixture
def node(tmp_path: Path) -> Iterator[DaemonProcess]:
    with daemon(tmp_path) as process:
        process.module = "tests.daemon.no_aio"
        yield process


def test_auto_falls_back_to_threads_and_says_so_once(node: DaemonProcess) -> None:
    node.start()
    with closing(Client(node)) as client:
        client.create("t")
        assert [client.append("t", value) for value in (b"one", b"two")] == [0, 1]
        assert client.read("t") == [b"one", b"two"]
    assert node.stop() == 0
    warnings = [line for line in node.log.splitlines() if " WARNING " in line]
    assert len(warnings) == 1
    assert "Linux AIO is not available, using threads " in warnings[0]
    assert REASON in warnings[0]
    assert "fs.aio-max-nr=" in warnings[0]


def test_aio_alone_is_refused_with_the_cause_and_the_cure(node: DaemonProcess) -> None:
    node.write_config("io.engine: aio\n")
    node.start(wait=False)
    assert node.wait() == 75  # other programs may give contexts back
    (line,) = node.log.splitlines()
    assert line.startswith("dlogd: io.engine: aio: "), line
    assert REASON in line
    assert "raise fs.aio-max-nr" in line and "io.engine: auto" in line
