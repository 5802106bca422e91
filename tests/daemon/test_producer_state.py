"""Producer states that are old, foreign or damaged, kill -9 between: sequences stay right.

A snapshot that does not fit is not believed; what counts is the log.
"""

import shutil
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dlog.batch.records import Record, encode
from dlog.client.cluster.partition_calls import delete_records
from dlog.errors import (
    InvalidProducerEpochError,
    OutOfOrderSequenceNumberError,
    error_for,
)
from dlogd.replication.partition.producer_snapshots import SNAPSHOT
from tests.daemon.process import DaemonProcess, daemon
from tests.daemon.raw import Raw, client_of
from tests.fakes.front import fetch_frame, produce_frame
from tests.fakes.logs import values_in

TOPICS = ("t", "u")
COUNT = 30
PRODUCER = 7


@pytest.fixture
def node(tmp_path: Path) -> Iterator[DaemonProcess]:
    with daemon(tmp_path, "segment.bytes: 64KiB\n") as process:
        process.start()
        with client_of(process) as client:
            for topic in TOPICS:
                client.run(lambda topic=topic: client.admin.create_topic(topic, partitions=1))  # type: ignore[misc]
        yield process
        if process.process is not None and process.process.poll() is None:
            assert process.stop() == 0
        assert "Traceback" not in process.log


def send(
    node: DaemonProcess, topic: str, sequence: int, epoch: int = 0, producer: int = PRODUCER
) -> int | str:
    """Send one record of a producer; return its offset, or the name of the error."""
    value = b"%d/%d" % (epoch, sequence) + b"x" * 5000
    record = Record(value=value, timestamp_ms=int(time.time() * 1000))
    batch = encode([record], producer_id=producer, producer_epoch=epoch, base_sequence=sequence)
    connection = Raw(node)
    connection.send(produce_frame(topic, batch))
    _, code, offset, *_ = connection.produced()
    connection.close()
    return error_for(code).name if code else offset


def values(node: DaemonProcess, topic: str, start: int = 0) -> list[bytes]:
    """Return the heads of all values, in order."""
    connection = Raw(node)
    found: list[bytes] = []
    while True:
        connection.send(fetch_frame([(topic, start + len(found))]))
        code, records = connection.fetched()
        assert code == 0
        if not records:
            connection.close()
            return found
        found += [value.rstrip(b"x") for _, value in values_in(records)]


def snapshot_of(node: DaemonProcess, topic: str) -> Path:
    (folder,) = (node.folder / "data" / "topics").glob(f"{topic}-0.*")
    return folder / SNAPSHOT


def old(node: DaemonProcess, kept: Path) -> None:
    shutil.copy(kept, snapshot_of(node, "t"))


def foreign(node: DaemonProcess, _: Path) -> None:
    shutil.copy(snapshot_of(node, "u"), snapshot_of(node, "t"))


def damaged(node: DaemonProcess, _: Path) -> None:
    data = bytearray(snapshot_of(node, "t").read_bytes())
    data[len(data) // 2] ^= 1
    snapshot_of(node, "t").write_bytes(data)


def cut(node: DaemonProcess, _: Path) -> None:
    data = snapshot_of(node, "t").read_bytes()
    snapshot_of(node, "t").write_bytes(data[: len(data) // 2])


def empty(node: DaemonProcess, _: Path) -> None:
    snapshot_of(node, "t").write_bytes(b"")


def missing(node: DaemonProcess, _: Path) -> None:
    snapshot_of(node, "t").unlink()


Spoil = Callable[[DaemonProcess, Path], None]


@pytest.mark.parametrize("killed", [False, True], ids=["stopped", "killed"])
@pytest.mark.parametrize("spoil", [old, foreign, damaged, cut, empty, missing])
def test_a_snapshot_that_does_not_fit(node: DaemonProcess, spoil: Spoil, killed: bool) -> None:
    assert [send(node, "t", number) for number in range(8)] == list(range(8))
    # More than the other partition has, and other sequences at the same offsets.
    assert [send(node, "u", number) for number in range(COUNT + 20)] == list(range(COUNT + 20))
    assert node.stop() == 0
    kept = node.folder / "kept"
    shutil.copy(snapshot_of(node, "t"), kept)
    node.start()
    assert [send(node, "t", number) for number in range(8, COUNT)] == list(range(8, COUNT))
    if killed:
        node.signal(signal.SIGKILL)
        node.wait()
    else:
        assert node.stop() == 0
    spoil(node, kept)
    node.start()
    expect_right_sequences(node)
    # What was rebuilt is kept as well as what was there.
    node.signal(signal.SIGKILL)
    node.wait()
    node.start()
    assert send(node, "t", COUNT) == COUNT
    assert values(node, "t") == [b"0/%d" % number for number in range(COUNT + 1)]


def expect_right_sequences(node: DaemonProcess) -> None:
    """The producer is where its log is: duplicates are known, nothing is skipped or repeated."""
    assert send(node, "t", COUNT - 1) == COUNT - 1
    assert send(node, "t", COUNT - 5) == COUNT - 5
    assert send(node, "t", COUNT - 6) == OutOfOrderSequenceNumberError.name  # as in Kafka
    assert send(node, "t", COUNT + 1) == OutOfOrderSequenceNumberError.name
    assert send(node, "t", COUNT) == COUNT
    assert send(node, "t", COUNT) == COUNT


@pytest.mark.parametrize("killed", [False, True], ids=["stopped", "killed"])
def test_a_foreign_snapshot_within_the_log_is_not_believed(
    node: DaemonProcess, killed: bool
) -> None:
    """Else what a producer sends first would be taken for a duplicate, and be lost."""
    others = [send(node, "u", number, producer=8) for number in range(4)]
    assert others == list(range(4))
    assert [send(node, "t", number) for number in range(8)] == list(range(8))
    assert node.stop() == 0
    shutil.copy(snapshot_of(node, "u"), snapshot_of(node, "t"))
    if killed:
        (node.folder / "data" / "clean-shutdown").unlink()
    node.start()
    assert [send(node, "t", number, producer=8) for number in range(2)] == [8, 9]
    assert send(node, "t", 7) == 7
    assert send(node, "t", 8) == 10
    assert len(values(node, "t")) == 11


def test_epochs_over_kill_9(node: DaemonProcess) -> None:
    assert [send(node, "t", number) for number in range(3)] == [0, 1, 2]
    assert send(node, "t", 5, epoch=1) == OutOfOrderSequenceNumberError.name
    assert send(node, "t", 0, epoch=1) == 3
    assert send(node, "t", 3, epoch=0) == InvalidProducerEpochError.name
    for turn in range(2):
        node.signal(signal.SIGKILL)
        node.wait()
        node.start()
        assert send(node, "t", turn, epoch=1) == 3 + turn  # again
        assert send(node, "t", turn + 1, epoch=1) == 4 + turn
        assert send(node, "t", 3, epoch=0) == InvalidProducerEpochError.name
    assert send(node, "t", 0, epoch=2) == 6
    node.signal(signal.SIGKILL)
    node.wait()
    node.start()
    assert send(node, "t", 0, epoch=2) == 6
    assert send(node, "t", 3, epoch=1) == InvalidProducerEpochError.name
    found = values(node, "t")
    assert found == [b"0/0", b"0/1", b"0/2", b"1/0", b"1/1", b"1/2", b"2/0"]


def test_a_producer_goes_on_when_all_its_records_were_deleted(node: DaemonProcess) -> None:
    assert [send(node, "t", number) for number in range(5)] == list(range(5))
    with client_of(node) as client:

        async def delete_all() -> None:
            await delete_records(await client.cluster.leader("t", 0), "t", {0: -1})

        client.run(delete_all)
    node.signal(signal.SIGKILL)
    node.wait()
    node.start()
    assert send(node, "t", 5) == 5
    assert send(node, "t", 5) == 5
    assert send(node, "t", 7) == OutOfOrderSequenceNumberError.name
    assert values(node, "t", start=5) == [b"0/5"]
