"""A node whose metadata came back from a backup that is older than its logs."""

import shutil
from pathlib import Path

from confluent_kafka import Message, Producer

from tests.daemon.process import DaemonProcess, daemon
from tests.daemon.raw import Raw, client_of
from tests.fakes.front import fetch_frame
from tests.fakes.logs import values_in


def send(node: DaemonProcess, *values: bytes) -> list[int | None]:
    """Write with a new idempotent producer; return the offsets that it is told."""
    told: list[int | None] = []

    def on_delivery(error: object, message: Message) -> None:
        assert error is None
        told.append(message.offset())

    producer = Producer(
        {"bootstrap.servers": node.status()["listeners"][0], "enable.idempotence": True}
    )
    for value in values:
        producer.produce("t", value=value, on_delivery=on_delivery)
        assert producer.flush(20) == 0
    return told


def test_producer_ids_that_logs_know_are_not_given_out_again(tmp_path: Path) -> None:
    meta, backup = tmp_path / "data" / "meta", tmp_path / "backup"
    with daemon(tmp_path) as node:
        node.start()
        with client_of(node) as client:
            client.run(lambda: client.admin.create_topic("t", partitions=1))
        node.stop()
        shutil.copytree(meta, backup)
        node.start()
        assert send(node, b"old-1", b"old-2") == [0, 1]
        node.stop()
        shutil.rmtree(meta)
        shutil.copytree(backup, meta)
        node.start()
        assert send(node, b"new-1", b"new-2") == [2, 3]
        assert "Skipped producer ids" in node.log
        reader = Raw(node)
        reader.send(fetch_frame([("t", 0)], max_wait_ms=1000))
        code, records = reader.fetched()
        assert code == 0
        assert [value for _, value in values_in(records)] == [
            b"old-1",
            b"old-2",
            b"new-1",
            b"new-2",
        ]
        reader.close()
