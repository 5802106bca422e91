"""Other clients and this library in both directions, on both servers: the same bytes, partitions.

`tests/clients` has the wider matrix, against dlogd alone.
"""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import pytest
from confluent_kafka import Producer as ConfluentProducer

from dlog.batch.records import Record
from dlog.client import blocking
from dlog.client.consumed import ConsumedRecord
from dlog.client.consumer import Consumer
from dlog.client.producer import Producer
from dlog.client.producing.partitioner import partition_for_key
from tests.behaviour.servers import TestedServer
from tests.behaviour.shapes import CODECS, rows, shapes
from tests.clients.drivers.asynchronous import AiokafkaDriver
from tests.clients.drivers.confluent import ConfluentDriver
from tests.clients.drivers.driver import Driver, Rec
from tests.clients.drivers.java import Java4Driver
from tests.clients.drivers.pure_python import KafkaPythonDriver
from tests.clients.records import mixed
from tests.clients.tools import MissingError

Drivers = Callable[[str], Driver]
OTHERS: dict[str, Callable[[str], Driver]] = {
    "confluent-kafka": ConfluentDriver,
    "kafka-python": KafkaPythonDriver,
    "aiokafka": AiokafkaDriver,
    "java": Java4Driver,
}
NOT_GIVEN = -1  # a partition that the client chooses by the key
PARTITIONS = 7
KEYS = [b"", b"k", b"\x00\xff", "ключ".encode(), *(b"key-%d" % n for n in range(200))]


@pytest.fixture(scope="session")
def drivers(server: TestedServer) -> Iterator[Drivers]:
    """Return the driver of that name; made once per server."""
    made: dict[str, Driver] = {}

    def get(name: str) -> Driver:
        if name not in made:
            try:
                made[name] = OTHERS[name](server.bootstrap)
            except MissingError as error:
                pytest.skip(str(error))
        return made[name]

    yield get
    for driver in made.values():
        driver.close()


def _rec(record: ConsumedRecord) -> Rec:
    return Rec(
        key=record.key,
        value=record.value,
        headers=record.headers,
        timestamp_ms=record.timestamp_ms,
        partition=record.partition,
        offset=record.offset,
    )


@pytest.mark.parametrize("name", OTHERS)
def test_others_read_what_it_wrote(
    server: TestedServer, drivers: Drivers, topic_name: str, name: str
) -> None:
    reader = drivers(name)
    reader.create_topic(topic_name, len(CODECS))
    written = shapes(large=False)

    async def write() -> None:
        for partition, codec in enumerate(CODECS):
            async with Producer(
                server.bootstrap,
                compression=codec,
                idempotent=bool(partition % 2),
                batch_bytes=20_000,
            ) as producer:
                spans = await (await producer.send_many(topic_name, written, partition=partition))
                assert spans[0].base_offset == 0

    asyncio.run(write())
    for partition in range(len(CODECS)):
        read = reader.consume(topic_name, partition, "earliest", len(written))
        assert [_plain(each) for each in read] == [each[:4] for each in written], CODECS[partition]
        assert [each.offset for each in read] == list(range(len(written)))


def _plain(record: Rec) -> tuple[object, ...]:
    return (record.key, record.value, tuple(record.headers), record.timestamp_ms)


@pytest.mark.parametrize("name", OTHERS)
def test_it_reads_what_others_wrote(
    server: TestedServer, drivers: Drivers, topic_name: str, name: str
) -> None:
    writer = drivers(name)
    writer.create_topic(topic_name, len(CODECS))
    written = {}
    for partition, codec in enumerate(CODECS):
        written[partition] = mixed(writer, partition)
        writer.produce(topic_name, written[partition], codec=codec, idempotent=bool(partition % 2))

    async def read(*, by_arrow: bool) -> dict[int, list[Rec]]:
        count = sum(map(len, written.values()))
        found: dict[int, list[Rec]] = {number: [] for number in written}
        async with Consumer(server.bootstrap, topic_name, max_wait_ms=50) as reader:
            while count:
                if by_arrow:
                    some = rows(await reader.poll_arrow(timeout_ms=None))
                else:
                    some = await reader.poll(timeout_ms=None)
                count -= len(some)
                for record in some:
                    found[record.partition].append(_rec(record))
        return found

    for by_arrow in (False, True):
        for partition, found in asyncio.run(read(by_arrow=by_arrow)).items():
            assert [each.offset for each in found] == list(range(len(found)))
            assert [replace(each, offset=-1) for each in found] == written[partition], (
                CODECS[partition],
                by_arrow,
            )


def _place_by_consumer(server: TestedServer, topic: str, count: int) -> dict[bytes, int]:
    """Return the partition of each key, which must be the same for all `count` records."""
    place: dict[bytes, int] = {}
    with blocking.Consumer(server.bootstrap, topic, max_wait_ms=50) as reader:
        while count:
            for record in reader.poll(timeout_ms=None):
                assert record.key is not None
                assert place.setdefault(record.key, record.partition) == record.partition, record
                count -= 1
    return place


def test_keys_land_where_others_put_them(
    server: TestedServer, drivers: Drivers, topic_name: str
) -> None:
    drivers("kafka-python").create_topic(topic_name, PARTITIONS)
    keyed: Sequence[Rec] = [Rec(key=key, value=b"v", partition=NOT_GIVEN) for key in KEYS]
    # librdkafka has another partitioner unless told.
    confluent = ConfluentProducer(
        {"bootstrap.servers": server.bootstrap, "partitioner": "murmur2_random"}
    )
    for key in KEYS:
        confluent.produce(topic_name, b"v", key)
    assert confluent.flush(30) == 0
    for name in ("java", "kafka-python", "aiokafka"):
        drivers(name).produce(topic_name, keyed)
    with blocking.Producer(server.bootstrap) as producer:
        for key in KEYS:
            producer.send(topic_name, b"v", key)
        producer.send_many(topic_name, [Record(key, b"v") for key in KEYS])
    place = _place_by_consumer(server, topic_name, 6 * len(KEYS))
    assert place == {key: partition_for_key(key, PARTITIONS) for key in KEYS}
    assert set(place.values()) == set(range(PARTITIONS))
