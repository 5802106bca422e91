"""A data directory whose writes never return: it fails after disk.timeout, the other goes on."""

import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from dlog.errors import DlogError
from tests.crash.clients import Client, directories_online
from tests.daemon.process import DaemonProcess, daemon

TIMEOUT_S = 5.0
TOPICS = [f"t{number}" for number in range(12)]


@pytest.fixture
def node(tmp_path: Path) -> Iterator[DaemonProcess]:
    with daemon(tmp_path) as process:
        process.module = "tests.daemon.hanging"
        process.config_path.write_text(
            'listeners: ["127.0.0.1:0"]\nhttp.address: 127.0.0.1:0\nio.engine: threads\n'
            f"data.directories: [{tmp_path}/one, {tmp_path}/two]\n"
            f"metadata.directory: {tmp_path}/meta\n"
            f"disk.timeout: {TIMEOUT_S:.0f}s\nshutdown.timeout: 2s\n"
        )
        for name in ("one", "two", "meta"):
            (tmp_path / name).mkdir()
        yield process


def test_one_directory_hangs_and_the_other_goes_on(node: DaemonProcess) -> None:
    hang, one = node.folder / "hang", node.folder / "one"
    node.start(env={"HANG_FILE": str(hang), "HANG_BELOW": str(one)})

    def append_in_vain(topic: str) -> None:
        with closing(Client(node)) as client, pytest.raises(DlogError):
            client.append(topic, b"never written")

    with closing(Client(node)) as client:
        for topic in TOPICS:
            client.create(topic)
            assert client.append(topic, b"first") == 0
        bad = {each.name.split("-")[0] for each in (one / "topics").iterdir()}
        good = [topic for topic in TOPICS if topic not in bad]
        assert len(bad) > 4 and good  # more than there are threads for I/O
        hang.touch()
        begin = time.monotonic()
        threads = [threading.Thread(target=append_in_vain, args=(topic,)) for topic in bad]
        for thread in threads:
            thread.start()
        time.sleep(0.5)
        for number in range(1, 20):
            for topic in good:
                assert client.append(topic, b"more") == number
        assert time.monotonic() - begin < TIMEOUT_S, "they were waiting for the other disk"
        assert all(directories_online(node).values())
        while all(directories_online(node).values()):
            assert time.monotonic() - begin < 3 * TIMEOUT_S
            time.sleep(0.1)
        assert directories_online(node) == {str(one): False, str(node.folder / "two"): True}
        assert f"No answer for disk.timeout={TIMEOUT_S * 1000:.0f}ms" in node.log
        for topic in good:
            assert client.append(topic, b"after") == 20
        client.create("new")
        assert client.append("new", b"x") == 0
        for thread in threads:
            thread.join()
    assert node.stop() == 1  # and says what it waited for
