"""What one client writes it reads back: every codec, every shape of record, every ack mode."""

import pytest

from tests.clients.drivers.driver import CODECS, Driver, Rec, RefusedError
from tests.clients.records import STAMP_MS, check_offsets, check_same, mixed, numbered

MESSAGE_TOO_LARGE = 10


@pytest.mark.parametrize("codec", CODECS)
def test_every_shape_of_record_comes_back(client: Driver, topic_name: str, codec: str) -> None:
    client.create_topic(topic_name)
    written = mixed(client)
    check_offsets(client.produce(topic_name, written, codec=codec))
    check_same(client.consume(topic_name, 0, "earliest", len(written)), written)


@pytest.mark.parametrize("acks", ["0", "1", "all"])
def test_every_ack_mode(client: Driver, topic_name: str, acks: str) -> None:
    client.create_topic(topic_name)
    written = numbered(200)
    client.produce(topic_name, written, acks=acks)
    check_same(client.consume(topic_name, 0, "earliest", len(written)), written)


def test_idempotent_producers_one_after_the_other(client: Driver, topic_name: str) -> None:
    client.create_topic(topic_name, 2)
    for start in (0, 500):
        for partition in (0, 1):
            offsets = client.produce(topic_name, numbered(500, partition), idempotent=True)
            check_offsets(offsets, start)
    for partition in (0, 1):
        read = client.consume(topic_name, partition, "earliest", 1000)
        check_same(read, numbered(500, partition) * 2)


def test_many_small_records_keep_their_order(client: Driver, topic_name: str) -> None:
    client.create_topic(topic_name, 3)
    written = [record for n in range(3) for record in numbered(3000, n)]
    client.produce(topic_name, written, codec="lz4")
    for partition in range(3):
        read = client.consume(topic_name, partition, "earliest", 3000)
        check_same(read, numbered(3000, partition))


def test_a_topic_may_take_larger_records(client: Driver, topic_name: str) -> None:
    client.create_topic(topic_name, 1, {"max.message.bytes": "5000000"})
    written = [Rec(key=b"k", value=bytes([n]) * 3_000_000) for n in range(1, 4)]
    for record in written:
        client.produce(topic_name, [record])
    check_same(client.consume(topic_name, 0, "earliest", 3), written)


def test_a_record_larger_than_the_topic_takes_is_refused(client: Driver, topic_name: str) -> None:
    client.create_topic(topic_name, 1, {"max.message.bytes": "10000"})
    with pytest.raises(RefusedError) as caught:
        client.produce(topic_name, [Rec(key=None, value=b"\x00\x01" * 20_000)])
    assert caught.value.code in (MESSAGE_TOO_LARGE, -1)
    client.produce(topic_name, numbered(1))
    check_same(client.consume(topic_name, 0, "earliest", 1), numbered(1))


def test_a_topic_may_stamp_the_time_of_the_append(client: Driver, topic_name: str) -> None:
    client.create_topic(topic_name, 1, {"message.timestamp.type": "LogAppendTime"})
    client.produce(topic_name, mixed(client, large=False))
    stamps = [record.timestamp_ms or 0 for record in client.consume(topic_name, 0, "earliest", 10)]
    # Later than any time that the records themselves carry.
    assert min(stamps) > STAMP_MS + 1_800_000
    assert stamps == sorted(stamps)
