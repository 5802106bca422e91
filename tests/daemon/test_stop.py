"""The stop of a `dlogd` process is bounded by shutdown.timeout and says what it left undone."""

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from dlog.errors import DlogError
from tests.crash.clients import Client
from tests.daemon.process import DaemonProcess, daemon

TIMEOUT_S = 3.0
ENDING_S = 5.0
"""For the interpreter to end, on a machine that is busy."""


@pytest.fixture
def node(tmp_path: Path) -> Iterator[DaemonProcess]:
    config = f"shutdown.timeout: {TIMEOUT_S:.0f}s\nio.engine: threads\n"
    with daemon(tmp_path, config) as process:
        process.module = "tests.daemon.hanging"
        yield process


def test_a_write_that_hangs_does_not_hold_up_the_end(node: DaemonProcess) -> None:
    hang = node.folder / "hang"
    node.start(env={"HANG_FILE": str(hang)})
    with closing(Client(node)) as client:
        client.create("a")
        client.create("b")
        assert [client.append(topic, b"first") for topic in ("a", "b")] == [0, 0]
        hang.touch()

        def append() -> None:
            with pytest.raises(DlogError):
                client.append("a", b"never written")

        thread = threading.Thread(target=append)
        thread.start()
        time.sleep(0.3)
        begin = time.monotonic()
        node.signal(signal.SIGTERM)
        assert node.wait() == 1
        assert time.monotonic() - begin < TIMEOUT_S + ENDING_S
        thread.join()
    (line,) = [each for each in node.log.splitlines() if "Stop failed" in each]
    assert "after shutdown.timeout=3000ms still not ended: a-0" in line
    assert "; not all is on the disk of a-0" in line
    assert "Stopped exit_code=1" in node.log
    assert "Traceback" not in node.log
    hang.unlink()
    node.start(env={"HANG_FILE": str(hang)})
    with closing(Client(node)) as client:
        assert client.read("a") == [b"first"]
        assert client.read("b") == [b"first"]
    assert node.stop() == 0
