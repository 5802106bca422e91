"""How dlog's own producer writes what a driver is asked to write."""

from collections.abc import Sequence

from dlog.client.blocking import Producer
from dlog.client.futures import DeliveryError
from dlog.client.produce_options import Acks
from dlog.errors import WireError
from tests.clients.drivers.driver import Rec, RefusedError

ACKS: dict[str, Acks] = {"0": "none", "1": "leader", "all": "all"}
BATCH_BYTES = 8_000  # several batches in most tests


def produce_records(
    bootstrap: str,
    topic: str,
    records: Sequence[Rec],
    *,
    codec: str = "none",
    acks: str = "all",
    idempotent: bool = False,
) -> list[int]:
    """Write `records` in order and wait for the answers; return their offsets."""
    with Producer(
        bootstrap,
        acks=ACKS[acks],
        compression=codec,
        idempotent=idempotent,
        batch_bytes=BATCH_BYTES,
        delivery_timeout_ms=30_000,
    ) as producer:
        sent = [
            producer.send(
                topic,
                record.value,
                record.key,
                record.headers,
                timestamp_ms=record.timestamp_ms,
                partition=record.partition,
            )
            for record in records
        ]
        try:
            return [delivery.result(40).offset for delivery in sent]
        except DeliveryError as error:
            cause = error.__cause__
            code = cause.code if isinstance(cause, WireError) else -1
            raise RefusedError(code, str(error)) from error
