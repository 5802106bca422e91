"""What `dlogctl` shows of a node that has lost a disk, or a partition to damage."""

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from signal import SIGKILL

import pytest

from dlog.batch.records import Record, encode
from dlog.client.cluster.partition_calls import produce
from tests.daemon.process import PATIENCE_S, DaemonProcess, daemon, environment
from tests.daemon.raw import client_of

PARTITIONS = 4
VALUES = (b"one", b"two")


@pytest.fixture
def node(tmp_path: Path) -> Iterator[DaemonProcess]:
    with daemon(tmp_path) as process:
        yield process


def fill(node: DaemonProcess) -> None:
    with client_of(node) as client:
        client.run(lambda: client.admin.create_topic("t", partitions=PARTITIONS))
        for index in range(PARTITIONS):
            for value in VALUES:
                record = Record(key=None, value=value, headers=(), timestamp_ms=1, offset=0)

                async def append(index: int = index, record: Record = record) -> None:
                    leader = await client.cluster.leader("t", index)
                    await produce(leader, "t", index, encode([record]))

                client.run(append)


def ctl(node: DaemonProcess, *arguments: str) -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, "-m", "dlogctl", *arguments],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
        env=environment({"DLOG_BOOTSTRAP": node.status()["listeners"][0]}),
    )
    assert "Traceback" not in done.stderr
    return done.returncode, done.stdout


def test_partitions_of_a_lost_disk_are_offline_and_led_by_nobody(node: DaemonProcess) -> None:
    first, second = node.folder / "disk1", node.folder / "disk2"
    first.mkdir()
    second.mkdir()
    node.use_directories(first, second)
    node.start()
    fill(node)
    assert node.stop() == 0
    gone = sorted(each.name.partition(".")[0] for each in (second / "topics").iterdir())
    assert 0 < len(gone) < PARTITIONS
    second.rename(node.folder / "away")
    second.mkdir()
    node.start()
    code, out = ctl(node, "status", "-o", "json")
    status = json.loads(out)
    assert (code, status["healthy"]) == (10, False)
    assert status["partitions"]["leaderless"] == gone
    assert status["partitions"]["offline_replicas"] == gone
    assert status["nodes"][0]["state"] == "active"
    left = PARTITIONS - len(gone)
    assert status["nodes"][0]["status"]["partitions"] == {"led": left, "offline": len(gone)}
    code, out = ctl(node, "status")
    assert code == 10
    for words in ("leaderless", "offline replicas"):
        assert re.search(rf"^{words}: +{len(gone)}$", out, re.MULTILINE), out
    metrics = node.metrics()
    assert f"dlog_partitions_led {left:.1f}" in metrics
    assert f"dlog_partitions_offline {len(gone):.1f}" in metrics
    assert json.loads(ctl(node, "topic", "list", "-o", "json")[1])[0]["leaderless"] == len(gone)


def test_one_damaged_partition_does_not_hide_the_others(node: DaemonProcess) -> None:
    node.start()
    fill(node)
    node.signal(SIGKILL)
    node.wait()
    (folder,) = (node.folder / "data" / "topics").glob("t-1.*")
    log = folder / f"{0:020}.log"
    data = bytearray(log.read_bytes())
    data[70] ^= 1  # in the first of two batches
    log.write_bytes(data)
    node.start()
    code, out = ctl(node, "topic", "describe", "t", "-o", "json")
    assert code == 0
    found = [
        (each["leader"], each["log_start_offset"], each["high_watermark"], each["error"])
        for each in json.loads(out)["partitions"]
    ]
    healthy, damaged = (1, 0, len(VALUES), None), (None, None, None, "KAFKA_STORAGE_ERROR")
    assert found == [healthy, damaged, healthy, healthy]
    reasons = [each["reason"] for each in json.loads(out)["partitions"]]
    assert [reason is None for reason in reasons] == [True, False, True, True]
    why = (
        rf"{log} is damaged at position 0 \(offset 0\): .*Restore them .*`dlogctl segment check`.*"
    )
    assert re.fullmatch(why, reasons[1]), reasons[1]
    lines = ctl(node, "topic", "describe", "t")[1].splitlines()
    assert lines.pop() == f"t-1: {reasons[1]}"
    table = lines[-PARTITIONS:]
    assert table[1].split() == ["1", "-", "1", "1", "-", "-", "KAFKA_STORAGE_ERROR"]
    assert table[2].split() == ["2", "1", "1", "1", "0", "2", "-"]
    code, out = ctl(node, "status")
    assert code == 10
    assert "partition t-1: " in out
