"""Options of a job that writes, by the names of Spark's Kafka sink.

Pure but for log lines about what has no effect. How the cluster is reached
(`kafka.bootstrap.servers`, security) is `dlog.spark.options.connection_options`'. Names may be in
any case.
"""

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import cast

from dlog.batch.header import HEADER_BYTES
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
from dlog.spark.options.connection_options import OWN, UNDERSTOOD
from dlog.spark.options.option_values import (
    Options,
    lowered,
    mistyped,
    one_of,
    switch,
    whole_number,
)
from dlog.types import INT32_MAX

_log = logging.getLogger(__name__)

MEMORY_BYTES = 32 * 1024 * 1024
"""As Kafka's producers have it (`buffer.memory`); a host runs a task on each core."""
LINGER_MS = 20
"""Tasks have much to write; the end of one does not wait for it."""

_ACKS: Mapping[str, Acks] = {
    "0": "none",
    "1": "leader",
    "-1": "all",
    "none": "none",
    "leader": "leader",
    "all": "all",
}

_OPTIONS = (
    *("topic", "includeTimestamp", "exactlyOnce", "bootstrap.servers", "groupIdPrefix"),
    "kafkaConsumer.pollTimeoutMs",
)
# Options that would change what is written, or where, in a way that cannot be had here.
_REFUSED = {
    "kafka.key.serializer": "Keys are bytes or strings: cast or encode the column.",
    "kafka.value.serializer": "Values are bytes or strings: cast or encode the column.",
    "kafka.partitioner.class": "Compute the column `partition` instead.",
    "kafka.transactional.id": "The sink writes at least once.",
}
_PRODUCER = frozenset(
    {
        *("kafka.acks", "kafka.batch.size", "kafka.buffer.memory", "kafka.compression.type"),
        *("kafka.delivery.timeout.ms", "kafka.enable.idempotence", "kafka.linger.ms"),
        *("kafka.max.block.ms", "kafka.max.request.size"),
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
    exactly_once: bool = False


def parse_write_options(options: Options) -> WriteOptions:
    """Return what a job's options say; raises OptionError for what cannot be done or understood."""
    given = lowered(options)
    for name, cure in _REFUSED.items():
        if name in given:
            raise OptionError("DLOG_OPTION_REFUSED", f"Option {name} is not supported.", cure)
    if given.get("topic") == "":
        raise OptionError("DLOG_OPTION_VALUE", "Option topic is empty.", "It names a topic.")
    _warn(given)
    memory_bytes = _number(given, "kafka.buffer.memory", MEMORY_BYTES, least=HEADER_BYTES)
    acks = cast(Acks | None, one_of(given, "kafka.acks", _ACKS))
    return WriteOptions(
        topic=given.get("topic"),
        with_timestamps=switch(given, "includeTimestamp", False),
        acks=acks,
        compression=one_of(given, "kafka.compression.type", {each: each for each in CODECS})
        or "none",
        linger_ms=_number(given, "kafka.linger.ms", LINGER_MS, least=0),
        batch_bytes=min(_batch_bytes(given), memory_bytes),
        memory_bytes=memory_bytes,
        request_bytes=_number(given, "kafka.max.request.size", REQUEST_BYTES),
        request_timeout_ms=_number(given, "kafka.request.timeout.ms", REQUEST_TIMEOUT_MS),
        delivery_timeout_ms=_number(given, "kafka.delivery.timeout.ms", DELIVERY_TIMEOUT_MS),
        block_ms=_number(given, "kafka.max.block.ms", BLOCK_MS, least=0),
        idempotent=_idempotent(given, acks),
        exactly_once=switch(given, "exactlyOnce", False),
    )


def _number(given: Options, name: str, default: int, *, least: int = 1) -> int:
    found = whole_number(given, name, least=least, most=INT32_MAX)
    return default if found is None else found


def _batch_bytes(given: Options) -> int:
    """Return the size of a full batch: what holds no second record where batches are unwanted."""
    return max(_number(given, "kafka.batch.size", BATCH_BYTES, least=0), HEADER_BYTES)


def _warn(given: Options) -> None:
    """Log which properties have no effect, and which options are almost others."""
    for name, near in mistyped(given, _OPTIONS):
        _say_mistyped(name, near)
    for name in sorted(given):
        if not name.startswith(("kafka.", "dlog.")):
            continue
        if name not in _PRODUCER and name not in UNDERSTOOD and name not in OWN:
            _say_ignored(name)


@cache
def _say_ignored(name: str) -> None:
    """Say it once in each process: a stream makes a writer for every batch."""
    needless = name.removeprefix("kafka.") in _NEEDLESS
    _log.log(logging.INFO if needless else logging.WARNING, "Ignored an option option=%s", name)


@cache
def _say_mistyped(name: str, near: str) -> None:
    _log.warning("Ignored an option option=%s meant=%s", name, near)


def _idempotent(given: Options, acks: Acks | None) -> bool | None:
    """Return whether batches are numbered; None: unless the topic's own acks are none.

    As Kafka's producers decide it (`ProducerConfig`): who wants it needs all acks, and whose acks
    are fewer does without it, for what a leader acknowledged alone may be gone with it, and what
    comes behind is then out of order.
    """
    has_fewer_acks = acks in ("none", "leader")
    if "kafka.enable.idempotence" not in given:
        if has_fewer_acks:
            _say_disabled(given["kafka.acks"])
        return False if has_fewer_acks else None
    said = switch(given, "kafka.enable.idempotence", True)
    if said and has_fewer_acks:
        raise OptionError(
            "DLOG_OPTION_CONFLICT",
            "Must set kafka.acks to all in order to use the idempotent producer "
            f"(kafka.enable.idempotence is true, kafka.acks is {given['kafka.acks']}).",
            "Otherwise idempotence cannot be guaranteed: leave one of them out.",
        )
    return said


@cache
def _say_disabled(acks: str) -> None:
    _log.info("Idempotence is disabled: acks are not all acks=%s", acks)
