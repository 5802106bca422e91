"""`dlogctl topic trim` and `Admin.delete_records` at a real node."""

import json
import time
from collections.abc import Iterator

import pytest

from dlog.client.blocking import Admin
from dlog.errors import OffsetOutOfRangeError
from dlog.types import PartitionId, TopicPartition
from tests.daemon.commands import bootstrap_of, run
from tests.daemon.process import DaemonProcess, daemon

FIRST, SECOND = (TopicPartition("t", PartitionId(number)) for number in range(2))


@pytest.fixture
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaemonProcess]:
    """Start a node with ten records of an hour ago and five of now in each of two partitions."""
    now_ms = time.time_ns() // 1_000_000
    with daemon(tmp_path_factory.mktemp("node")) as process:
        process.start()
        assert run(process, "topic", "create", "t", "-p", "2")[0] == 0
        for age_ms, count in ((3_600_000, 10), (0, 5)):
            lines = [
                json.dumps({"value": "v", "partition": number, "timestamp_ms": now_ms - age_ms})
                for number in (0, 1)
                for _ in range(count)
            ]
            text = "\n".join(lines)
            assert run(process, "produce", "t", "--format", "json", stdin=text)[0] == 0
        yield process


def places(node: DaemonProcess, *options: str) -> list[tuple[int, int]]:
    """Return partition and offset of all records that are there."""
    code, out, err = run(node, "consume", "t", "--format", "json", *options)
    assert (code, err) == (0, "")
    found = [json.loads(line) for line in out.splitlines()]
    return sorted((each["partition"], each["offset"]) for each in found)


def test_what_is_old_goes_from_all_partitions_and_what_is_before_an_offset_from_one(
    node: DaemonProcess,
) -> None:
    told = run(node, "topic", "trim", "t", "--before", "-30min", "--dry-run")
    assert told[0] == 0
    assert len(places(node)) == 30
    assert run(node, "topic", "trim", "t", "--before", "-30min", "--yes") == (
        0,
        "t-0: offsets 0 to 9 (10) deleted\nt-1: offsets 0 to 9 (10) deleted\n",
        "",
    )
    assert places(node) == [(number, offset) for number in (0, 1) for offset in range(10, 15)]
    assert run(node, "topic", "trim", "t:1", "--before", "12", "--yes")[0] == 0
    assert places(node, "-p", "1") == [(1, 12), (1, 13), (1, 14)]
    assert run(node, "topic", "trim", "t:1", "--before", "end", "--yes")[0] == 0
    assert places(node) == [(0, offset) for offset in range(10, 15)]


def test_the_calls_of_an_admin(node: DaemonProcess) -> None:
    with Admin(bootstrap_of(node)) as admin:
        assert admin.find_offsets({FIRST: "latest", SECOND: -4}) == {FIRST: 15, SECOND: 11}
        found = admin.delete_records({FIRST: 3, SECOND: 16})
        assert found[FIRST] == 3
        assert isinstance(found[SECOND], OffsetOutOfRangeError)
        assert admin.delete_records({FIRST: 2}) == {FIRST: 3}
        assert admin.find_offsets({FIRST: "earliest", SECOND: "earliest"}) == {FIRST: 3, SECOND: 0}
        with pytest.raises(ValueError, match="t-0: -1 is not an offset"):
            admin.delete_records({FIRST: -1})
