"""Producers with a transaction under way, and the numbers that they write."""

from confluent_kafka import Producer as ConfluentProducer

PATIENCE_S = 30.0


def transactional(bootstrap: str, name: str) -> ConfluentProducer:
    """Return a producer that has begun a transaction."""
    producer = ConfluentProducer({"bootstrap.servers": bootstrap, "transactional.id": name})
    producer.init_transactions(PATIENCE_S)
    producer.begin_transaction()
    return producer


def write(producer: ConfluentProducer, topic: str, numbers: range) -> None:
    """Write numbers and wait for their answers."""
    for number in numbers:
        producer.produce(topic, b"%d" % number, partition=0)
    assert producer.flush(PATIENCE_S) == 0
