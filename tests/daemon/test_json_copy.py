"""`dlogctl consume --format json | dlogctl produce --format json` at a real node."""

import json
from collections.abc import Iterator

import pytest

from dlog.batch.records import Record, encode
from dlog.client.blocking import Consumer
from dlog.client.cluster.partition_calls import produce
from tests.daemon.commands import bootstrap_of, run
from tests.daemon.process import DaemonProcess, daemon
from tests.daemon.raw import client_of
from tests.fakes.batches import sealed
from tests.fakes.raw_batches import Raw, batch_of


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaemonProcess]:
    with daemon(tmp_path_factory.mktemp("node")) as process:
        process.start()
        for topic in ("source", "copy", "odd"):
            assert run(process, "topic", "create", topic)[0] == 0
        yield process


def write(node: DaemonProcess, topic: str, batch: bytes) -> None:
    """Write one batch as it is."""
    with client_of(node) as client:

        async def work() -> None:
            await produce(await client.cluster.leader(topic, 0), topic, 0, batch)

        client.run(work)


def test_what_comes_out_goes_in(node: DaemonProcess) -> None:
    records = [
        Record(None, None, (), -1),
        Record(b"", b"", (("h", None), ("h", b""), ("", b"\xff")), -1),
        Record(b"\xff\x00", b"\r\n", (("h", b"1"), ("h", b"1")), 1_700_000_000_000),
        Record(b"k", b"v", (), 0),
    ]
    write(node, "source", bytes(encode(records)))
    code, out, err = run(node, "consume", "source", "--format", "json")
    assert (code, err) == (0, "")
    assert [json.loads(line)["timestamp_ms"] for line in out.splitlines()][:2] == [-1, -1]
    assert run(node, "produce", "copy", "--format", "json", "-q", stdin=out) == (0, "", "")
    with Consumer(bootstrap_of(node), "copy") as consumer:
        found = consumer.poll(timeout_ms=5_000)
    assert [each[:4] for each in found] == [each[:4] for each in records]


def test_what_would_change_is_refused_with_its_place(node: DaemonProcess) -> None:
    write(node, "odd", bytes(encode([Record(b"k", b"good", (), 7)])))
    write(node, "odd", sealed(batch_of(Raw(b"k", b"v", ((b"a", b""), (b"\xff", b"1")), 7))))
    code, out, err = run(node, "consume", "odd", "--format", "json")
    assert (code, out.count("\n")) == (1, 1)
    assert err.startswith("dlogctl: odd-0 at offset 1: header 2: its name")
    assert run(node, "consume", "odd") == (0, "good\nv\n", "")
    line = '{"value": "v", "timestamp_ms": -2}'
    code, _, err = run(node, "produce", "odd", "--format", "json", stdin=line)
    assert code == 1
    assert "line 1: 'timestamp_ms' is not a number from -1 to" in err
