"""A node that lives, dies and stops on a full disk: all that was acknowledged is read back, once.

Idempotent producers repeat what was refused until it is taken, so in the end each log has exactly
what they sent. Needs root.
"""

import signal
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from dlog.batch.records import Record, encode
from dlog.errors import DlogError
from tests.crash.clients import Client, directories_online
from tests.crash.disks import Mounted
from tests.daemon.process import PATIENCE_S, DaemonProcess, daemon, wait_until

pytestmark = [pytest.mark.root, pytest.mark.usefixtures("impatient")]

TOPICS = ("a", "b")
STOP_TIMEOUT_S = 4
ENDING_S = 5.0


@pytest.fixture
def node(tmp_path: Path, disk: Mounted) -> Iterator[DaemonProcess]:
    with daemon(tmp_path / "node") as process:
        process.config_path.write_text(
            'listeners: ["127.0.0.1:0"]\nhttp.address: 127.0.0.1:0\n'
            f"data.directories: [{disk.path}]\nsegment.bytes: 1MiB\ndisk.reserve.bytes: 0\n"
            f"shutdown.timeout: {STOP_TIMEOUT_S}s\n"
        )
        yield process


class Producer:
    """An idempotent producer of one topic, across the lives of the node."""

    def __init__(self, topic: str, producer_id: int) -> None:
        self.topic = topic
        self.producer_id = producer_id
        self.acknowledged: list[bytes] = []

    def send(self, client: Client) -> None:
        """Send what comes next, or again what was refused; raise DlogError when it is refused."""
        sequence = len(self.acknowledged)
        value = b"%s-%06d-" % (self.topic.encode(), sequence) + b"x" * 8000
        batch = encode(
            [Record(value=value, timestamp_ms=time.time_ns() // 1_000_000)],
            producer_id=self.producer_id,
            producer_epoch=0,
            base_sequence=sequence,
        )
        assert client.produce(self.topic, batch) == sequence
        self.acknowledged.append(value)

    def send_until_refused(self, client: Client) -> None:
        """Fill what is left of the disk."""
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            try:
                self.send(client)
            except DlogError:
                return
        raise AssertionError("never refused")

    def send_some(self, client: Client, count: int) -> None:
        """Send, as patiently as producers do."""
        deadline = time.monotonic() + PATIENCE_S
        while count:
            try:
                self.send(client)
                count -= 1
            except DlogError:
                assert time.monotonic() < deadline
                time.sleep(0.1)


def is_serving_all(node: DaemonProcess) -> bool:
    counts: dict[str, int] = node.status()["partitions"]
    return counts == {"led": len(TOPICS), "offline": 0}


def check(client: Client, producers: list[Producer]) -> None:
    for producer in producers:
        assert client.read(producer.topic) == producer.acknowledged


def end(node: DaemonProcess, how: str) -> None:
    """End the process on its full disk."""
    begin = time.monotonic()
    if how == "killed":
        node.signal(signal.SIGKILL)
        node.wait()
        return
    code = node.stop()
    assert time.monotonic() - begin < STOP_TIMEOUT_S + ENDING_S
    # Records that nobody was told of may not have found space.
    assert code in (0, 1)
    failures = [line for line in node.log.splitlines() if "Stop failed" in line]
    assert len(failures) == code
    assert all("not all is on the disk of " in line for line in failures)


def test_all_that_was_acknowledged_is_read_back_once(node: DaemonProcess, disk: Mounted) -> None:
    producers = [Producer(topic, 100 + number) for number, topic in enumerate(TOPICS)]
    node.start()
    with closing(Client(node)) as client:
        for producer in producers:
            client.create(producer.topic)
            producer.send_some(client, 3)
    for how, free_bytes in (("killed", 0), ("lives on", 2_000_000)):
        with disk.filled(free_bytes):
            with closing(Client(node)) as client:
                for producer in producers:
                    producer.send_until_refused(client)
                check_prefix(client, producers)
            if how == "killed":
                end(node, how)
                node.start()  # on a full disk
                assert directories_online(node) == {str(disk.path): True}
        wait_until(lambda: is_serving_all(node))
        with closing(Client(node)) as client:
            for producer in producers:
                producer.send_some(client, 20)
            check(client, producers)
    with disk.filled():
        with closing(Client(node)) as client:
            for producer in producers:
                producer.send_until_refused(client)
        end(node, "stopped")
    node.start()
    with closing(Client(node)) as client:
        check_prefix(client, producers)
        for producer in producers:
            producer.send_some(client, 20)
        check(client, producers)
    assert node.stop() == 0
    node.start()
    with closing(Client(node)) as client:
        check(client, producers)
    assert "Traceback" not in node.log


def check_prefix(client: Client, producers: list[Producer]) -> None:
    """Check the logs while what was refused last may be in them as well."""
    for producer in producers:
        count = len(producer.acknowledged)
        found = client.read(producer.topic)
        assert found[:count] == producer.acknowledged
        assert len(found) <= count + 1
