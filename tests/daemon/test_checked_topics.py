"""A topic that has compressed records checked, in a real node with librdkafka beside a liar."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from dlog.client.cluster.partition_calls import produce
from dlog.errors import InvalidRecordError
from tests.daemon.commands import bootstrap_of, run
from tests.daemon.process import DaemonProcess, daemon
from tests.daemon.raw import client_of
from tests.fakes.bad_batches import no_gzip

CODECS = ("gzip", "snappy", "lz4", "zstd")
COUNT = 2_000
SIZES = (10, 1_000)
"""With the first, batches are small enough to be checked at once; with the second they are not."""


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaemonProcess]:
    home: Path = tmp_path_factory.mktemp("node")
    with daemon(home) as process:
        process.start()
        yield process


def send_nonsense(node: DaemonProcess, topic: str) -> None:
    """Send a batch that does not decompress; raise what the node answers."""
    with client_of(node) as client:

        async def write() -> None:
            leader = await client.cluster.leader(topic, 0)
            await produce(leader, topic, 0, no_gzip(0, 2))

        client.run(write)


def test_what_all_codecs_of_librdkafka_send_is_taken_and_read(node: DaemonProcess) -> None:
    config = ("--config", "compressed.records.validate=true")
    assert run(node, "topic", "create", "checked", "-p", "1", *config)[0] == 0
    sent: list[bytes] = []
    for codec in CODECS:
        for size in SIZES:
            settings = {"compression.type": codec, "linger.ms": 50, "enable.idempotence": True}
            producer = Producer({"bootstrap.servers": bootstrap_of(node), **settings})
            for number in range(COUNT):
                value = b"%s %d " % (codec.encode(), number) * (size // 10)
                producer.produce("checked", value, timestamp=1_700_000_000_000 + number % 777)
                sent.append(value)
            assert producer.flush(60) == 0
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap_of(node),
            "group.id": "unused",
            "enable.auto.commit": False,
            "check.crcs": True,
        }
    )
    consumer.assign([TopicPartition("checked", 0, 0)])
    read: list[bytes | None] = []
    while len(read) < len(sent):
        for message in consumer.consume(min(1_000, len(sent) - len(read)), 30):
            assert message.error() is None
            read.append(message.value())
    consumer.close()
    assert read == sent


def test_the_config_holds_at_once_and_after_a_start(node: DaemonProcess) -> None:
    assert run(node, "topic", "create", "later", "-p", "1")[0] == 0
    send_nonsense(node, "later")  # believed
    change = ("topic", "alter", "later", "--config")
    assert run(node, *change, "compressed.records.validate=true")[0] == 0
    with pytest.raises(InvalidRecordError, match=r"No client could read the batch: gzip"):
        send_nonsense(node, "later")
    node.stop()
    node.start()
    with pytest.raises(InvalidRecordError):
        send_nonsense(node, "later")
    assert run(node, *change, "compressed.records.validate=false")[0] == 0
    send_nonsense(node, "later")
    code, out, _ = run(node, "topic", "describe", "later")
    assert code == 0
    assert "later" in out
