"""Transactional producers are told at once that there are no transactions, not by a time-out."""

import asyncio
import os
import time
from collections.abc import Callable

import pytest
from aiokafka import AIOKafkaProducer
from aiokafka.errors import TransactionalIdAuthorizationFailed
from confluent_kafka import KafkaException, Producer
from kafka import KafkaProducer
from kafka.errors import KafkaError

PATIENCE_S = 30.0
AT_ONCE_S = 10.0
REFUSED = 53  # TRANSACTIONAL_ID_AUTHORIZATION_FAILED

pytestmark = pytest.mark.skipif(
    bool(os.environ.get("DLOG_TEST_BOOTSTRAP")), reason="Kafka has transactions"
)


def by_confluent(bootstrap: str) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": "t"})
    with pytest.raises(KafkaException) as caught:
        producer.init_transactions(PATIENCE_S)
    error = caught.value.args[0]
    assert (error.code(), error.fatal(), error.retriable()) == (REFUSED, True, False)


def by_kafka_python(bootstrap: str) -> None:
    producer = KafkaProducer(
        bootstrap_servers=bootstrap,
        transactional_id="t",
        max_block_ms=int(PATIENCE_S * 1000),
    )
    with pytest.raises(KafkaError, match=str(REFUSED)):
        producer.init_transactions()
    producer.close(timeout=1)


def by_aiokafka(bootstrap: str) -> None:
    async def work() -> None:
        producer = AIOKafkaProducer(bootstrap_servers=bootstrap, transactional_id="t")
        try:
            with pytest.raises(TransactionalIdAuthorizationFailed):
                await asyncio.wait_for(producer.start(), PATIENCE_S)
        finally:
            await producer.stop()

    asyncio.run(work())


@pytest.mark.parametrize("attempt", [by_confluent, by_kafka_python, by_aiokafka])
def test_init_transactions_fails_at_once(bootstrap: str, attempt: Callable[[str], None]) -> None:
    started = time.monotonic()
    attempt(bootstrap)
    assert time.monotonic() - started < AT_ONCE_S
