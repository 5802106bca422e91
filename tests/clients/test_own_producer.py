"""What dlog's own producer writes every client reads, byte for byte, and finds by its key."""

import asyncio
from collections.abc import Callable, Sequence

import pytest
from aiokafka import AIOKafkaProducer
from confluent_kafka import Producer as ConfluentProducer
from kafka import KafkaProducer

from dlog.client.blocking import Producer
from tests.clients.conftest import LACKS, NAMES
from tests.clients.drivers.driver import CODECS, Driver, Rec, RefusedError
from tests.clients.drivers.own_producer import produce_records
from tests.clients.records import check_offsets, check_same, mixed, numbered

KEYS = [b"", b"k", b"\x00\xff", "ключ".encode(), *(b"key-%d" % n for n in range(400))]
PARTITIONS = 7


@pytest.mark.parametrize("name", NAMES)
def test_every_client_reads_what_it_wrote(
    clients: Callable[[str], Driver], bootstrap: str, topic_name: str, name: str
) -> None:
    reader = clients(name)
    exact = "exact_headers" not in LACKS[name]
    reader.create_topic(topic_name, len(CODECS))
    for partition, codec in enumerate(CODECS):
        written = mixed(reader, partition, large=False)
        if not exact:
            written = [Rec(key=r.key, value=r.value, partition=partition) for r in written]
        idempotent = bool(partition % 2)
        check_offsets(
            produce_records(bootstrap, topic_name, written, codec=codec, idempotent=idempotent)
        )
        check_same(reader.consume(topic_name, partition, "earliest", len(written)), written)


def test_it_is_refused_as_others_are(
    clients: Callable[[str], Driver], bootstrap: str, topic_name: str
) -> None:
    driver = clients("kafka-python")
    driver.create_topic(topic_name, 1, {"max.message.bytes": "10000"})
    with pytest.raises(RefusedError) as caught:
        produce_records(bootstrap, topic_name, [Rec(key=None, value=b"\0\1" * 20_000)])
    assert caught.value.code == 10
    for acks in ("0", "1", "all"):
        produce_records(bootstrap, topic_name, numbered(100), acks=acks)
    read = driver.consume(topic_name, 0, "earliest", 300)
    check_same(read, numbered(100) * 3)


def _by_confluent(bootstrap: str, topic: str, keys: Sequence[bytes]) -> None:
    producer = ConfluentProducer({"bootstrap.servers": bootstrap, "partitioner": "murmur2_random"})
    for key in keys:
        producer.produce(topic, b"confluent", key)
    assert producer.flush(30) == 0


def _by_kafka_python(bootstrap: str, topic: str, keys: Sequence[bytes]) -> None:
    producer = KafkaProducer(bootstrap_servers=bootstrap)
    for key in keys:
        producer.send(topic, b"kafka-python", key)
    producer.flush(30)
    producer.close(5)


def _by_aiokafka(bootstrap: str, topic: str, keys: Sequence[bytes]) -> None:
    async def work() -> None:
        producer = AIOKafkaProducer(bootstrap_servers=bootstrap)
        await producer.start()
        for key in keys:
            await producer.send(topic, b"aiokafka", key)
        await producer.stop()

    asyncio.run(work())


def test_keys_land_where_other_clients_put_them(
    clients: Callable[[str], Driver], bootstrap: str, topic_name: str
) -> None:
    driver = clients("kafka-python")
    driver.create_topic(topic_name, PARTITIONS)
    _by_confluent(bootstrap, topic_name, KEYS)
    _by_kafka_python(bootstrap, topic_name, KEYS)
    _by_aiokafka(bootstrap, topic_name, KEYS)
    with Producer(bootstrap) as producer:
        for key in KEYS:
            producer.send(topic_name, b"dlog", key)
        producer.send_many(topic_name, [b"dlog many"] * len(KEYS), KEYS)
    writers = 5
    place: dict[bytes, int] = {}
    count = 0
    for partition in range(PARTITIONS):
        end = driver.list_offset(topic_name, partition, "latest")
        for record in driver.consume(topic_name, partition, "earliest", end) if end else []:
            assert record.key is not None
            assert place.setdefault(record.key, partition) == partition, record
            count += 1
    assert count == writers * len(KEYS)
    assert len(set(place.values())) == PARTITIONS
