"""Options of a job that writes, by the names of Spark's Kafka sink.

Pure. How the cluster is reached (`kafka.bootstrap.servers`, security) is `dlog.spark.options`'.
Names are case-insensitive; producers' properties have the prefix `kafka.`.
"""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from dlog.client.produce_options import (
    BATCH_BYTES,
    BLOCK_MS,
    CODECS,
    DELIVERY_TIMEOUT_MS,
    REQUEST_BYTES,
    REQUEST_TIMEOUT_MS,
    Acks,
)
from dlog.spark.errors import OptionError

T = TypeVar("T")

_log = logging.getLogger(__name__)

PREFIX = "kafka."
MEMORY_BYTES = 32 * 1024 * 1024
"""As Kafka's producers have it (`buffer.memory`); a host runs a task on each core."""
LINGER_MS = 20.0
"""Tasks have much to write; the end of one does not wait for it."""

_ACKS: Mapping[str, Acks] = {"0": "none", "1": "leader", "-1": "all", "all": "all"}
_ACKS_BY_NAME: Mapping[str, Acks] = {"none": "none", "leader": "leader"}
_BOOLEANS = {"true": True, "false": False}

# Options that would change what is written, or where, in a way that cannot be had here.
_REFUSED = {
    "kafka.key.serializer": "Keys are bytes or strings: cast or encode the column.",
    "kafka.value.serializer": "Values are bytes or strings: cast or encode the column.",
    "kafka.partitioner.class": "Compute the column `partition` instead.",
    "kafka.transactional.id": "The sink writes at least once.",
}
_PRODUCER = frozenset(
    {
        *("acks", "batch.size", "buffer.memory", "compression.type", "delivery.timeout.ms"),
        *("enable.idempotence", "linger.ms", "max.block.ms", "max.request.size"),
        "request.timeout.ms",
    }
)
# Of Kafka's producers, with nothing here that they could change: bounds that are others here, and
# what is done anyway.
_NEEDLESS = frozenset(
    {
        *("max.in.flight.requests.per.connection", "retries", "retry.backoff.ms"),
        *("retry.backoff.max.ms", "partitioner.ignore.keys", "metadata.max.age.ms"),
        *("send.buffer.bytes", "receive.buffer.bytes", "connections.max.idle.ms"),
        *("reconnect.backoff.ms", "reconnect.backoff.max.ms"),
    }
)
_CONNECTION = ("bootstrap.servers", "client.", "security.", "ssl.", "sasl.", "socket.")


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteOptions:
    """What a job said about writing. Sizes in bytes; the rest as `dlog.client`'s producer has it.

    `topic` is for all rows, whatever their column says. `acks` None: the topic's `ack.default`.
    `with_timestamps`: the column `timestamp` is kept, as `includeTimestamp` asks.
    """

    topic: str | None = None
    with_timestamps: bool = False
    acks: Acks | None = None
    compression: str = "none"
    linger_ms: float = LINGER_MS
    batch_bytes: int = BATCH_BYTES
    memory_bytes: int = MEMORY_BYTES
    request_bytes: int = REQUEST_BYTES
    request_timeout_ms: int = REQUEST_TIMEOUT_MS
    delivery_timeout_ms: int = DELIVERY_TIMEOUT_MS
    block_ms: int = BLOCK_MS
    idempotent: bool | None = None


def parse_write_options(options: Mapping[str, str]) -> WriteOptions:
    """Return what a job's options say; raises OptionError for what cannot be done or understood."""
    given = {name.lower(): str(value) for name, value in options.items()}
    for name, cure in _REFUSED.items():
        if name in given:
            raise _wrong(name, "is not supported.", cure)
    if _read(given, "exactlyonce", _boolean, False):
        raise _wrong(
            "exactlyOnce",
            "needs transactions, which the log does not have yet.",
            "Without it each record is written at least once.",
        )
    _warn(given)
    batch_bytes = _read(given, "kafka.batch.size", _positive, BATCH_BYTES)
    memory_bytes = _read(given, "kafka.buffer.memory", _positive, MEMORY_BYTES)
    return WriteOptions(
        topic=_read(given, "topic", _topic, None),
        with_timestamps=_read(given, "includetimestamp", _boolean, False),
        acks=_read(given, "kafka.acks", _acks, None),
        compression=_read(given, "kafka.compression.type", _compression, "none"),
        linger_ms=_read(given, "kafka.linger.ms", _natural, LINGER_MS),
        batch_bytes=min(batch_bytes, memory_bytes),
        memory_bytes=memory_bytes,
        request_bytes=_read(given, "kafka.max.request.size", _positive, REQUEST_BYTES),
        request_timeout_ms=_read(given, "kafka.request.timeout.ms", _positive, REQUEST_TIMEOUT_MS),
        delivery_timeout_ms=_read(
            given, "kafka.delivery.timeout.ms", _positive, DELIVERY_TIMEOUT_MS
        ),
        block_ms=_read(given, "kafka.max.block.ms", _natural, BLOCK_MS),
        idempotent=_idempotent(given),
    )


def _warn(given: Mapping[str, str]) -> None:
    """Log which of Kafka's properties have no effect."""
    for name in sorted(given):
        key = name.removeprefix(PREFIX)
        if key == name or key in _PRODUCER or key.startswith(_CONNECTION):
            continue
        level = logging.INFO if key in _NEEDLESS else logging.WARNING
        _log.log(level, "Ignored an option option=%s", name)


def _read(given: Mapping[str, str], name: str, parse: Callable[[str], T], default: T) -> T:
    text = given.get(name)
    if text is None:
        return default
    try:
        return parse(text.strip())
    except ValueError as error:
        raise _wrong(name, f"is {text!r}: {error}.", "") from None


def _idempotent(given: Mapping[str, str]) -> bool | None:
    said = _read(given, "kafka.enable.idempotence", _boolean, None)
    if said and _read(given, "kafka.acks", _acks, None) == "none":
        raise _wrong(
            "kafka.enable.idempotence",
            "is true, but kafka.acks is 0.",
            "A repetition is known only where there are answers: leave one of them out.",
        )
    return said


def _wrong(name: str, what: str, cure: str) -> OptionError:
    return OptionError("DLOG_INVALID_OPTION", f"The option {name} {what}", cure)


def _topic(text: str) -> str:
    if not text:
        raise ValueError("it names no topic")
    return text


def _boolean(text: str) -> bool:
    if text.lower() not in _BOOLEANS:
        raise ValueError("it is true or false")
    return _BOOLEANS[text.lower()]


def _acks(text: str) -> Acks:
    known = {**_ACKS, **_ACKS_BY_NAME}
    if text.lower() not in known:
        raise ValueError("it is one of 0, 1, all")
    return known[text.lower()]


def _compression(text: str) -> str:
    if text.lower() not in CODECS:
        raise ValueError(f"it is one of {', '.join(CODECS)}")
    return text.lower()


def _natural(text: str) -> int:
    number = int(text) if text.isascii() and text.isdigit() else -1
    if number < 0:
        raise ValueError("it is a whole number, not negative")
    return number


def _positive(text: str) -> int:
    number = _natural(text)
    if not number:
        raise ValueError("it is not positive")
    return number
