"""Options of reads, with the names and the meaning that Spark's Kafka source gives them.

Pure. Everything is checked when a query is made, not when it runs. `client_settings` is what the
sink uses too.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Literal

from dlog.offset_specs import EARLIEST, LATEST
from dlog.spark.errors import OptionError
from dlog.spark.options.connection_options import BOOTSTRAP, OWN, UNDERSTOOD, client_settings
from dlog.spark.options.java_patterns import PatternError, compile_pattern
from dlog.spark.options.offsets import (
    AtOffsets,
    AtTimestamp,
    AtTimestamps,
    Bound,
    Earliest,
    Latest,
    describe_partitions,
    parse_offsets,
    parse_partitions,
    parse_timestamps,
)
from dlog.spark.options.option_values import (
    Options,
    duration_s,
    lowered,
    milliseconds,
    mistyped,
    one_of,
    switch,
    whole_number,
)
from dlog.spark.options.subscription import Assign, Subscribe, SubscribePattern, Subscription
from dlog.spark.settings import ClientSettings
from dlog.types import TopicPartition

__all__ = ["ReadOptions", "check_source_options", "client_settings", "parse_read_options"]

MAX_TRIGGER_DELAY_S = 15 * 60.0
ATTEMPT_COUNT = 3
RETRY_INTERVAL_S = 1.0
_SHOWN_MAX = 400
"""Characters of a pattern that an error shows."""

DECOMPRESSED_BATCH = "maxDecompressedBatchBytes"
_SUBSCRIPTIONS = ("assign", "subscribe", "subscribePattern")
_OPTIONS = (
    *(*_SUBSCRIPTIONS, "startingTimestamp", "startingOffsetsByTimestamp", "startingOffsets"),
    *("startingOffsetsByTimestampStrategy", "endingTimestamp", "endingOffsetsByTimestamp"),
    *("endingOffsets", "failOnDataLoss", "kafkaConsumer.pollTimeoutMs", "fetchOffset.numRetries"),
    *("fetchOffset.retryIntervalMs", "maxOffsetsPerTrigger", "minOffsetsPerTrigger"),
    *("maxTriggerDelay", "maxBytesPerTrigger", "minPartitions", "maxRecordsPerPartition"),
    "smallBatchOffsets",
    *("groupIdPrefix", "includeHeaders", "pushFilters", "bootstrap.servers", "timestampOverflow"),
    DECOMPRESSED_BATCH,
)
_KNOWN = frozenset(each.lower() for each in _OPTIONS)
_ONLY_STREAMING = (
    *("maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay", "maxBytesPerTrigger"),
    "smallBatchOffsets",
)
# Properties of Kafka's consumer that change nothing here: fetching is arranged by the client.
_WITHOUT_EFFECT = frozenset(
    f"kafka.{each}"
    for each in (
        *("group.id", "fetch.min.bytes", "fetch.max.bytes", "fetch.max.wait.ms"),
        *("max.poll.records", "max.poll.interval.ms", "session.timeout.ms", "check.crcs"),
        *("heartbeat.interval.ms", "receive.buffer.bytes", "send.buffer.bytes", "retries"),
        *("reconnect.backoff.ms", "reconnect.backoff.max.ms", "retry.backoff.ms"),
        *("retry.backoff.max.ms", "connections.max.idle.ms", "metadata.max.age.ms"),
        *("client.dns.lookup", "socket.connection.setup.timeout.max.ms", "ssl.protocol"),
        *("ssl.enabled.protocols", "exclude.internal.topics", "allow.auto.create.topics"),
    )
)
_CLIP = "clip"
_OVERFLOWS = {"error": "error", _CLIP: _CLIP}
_STARTING = "Set the source option 'startingOffsets' to 'earliest' or 'latest' instead; it only"
_STARTING += " applies when a new query is started, resuming goes on from the checkpoint."
_DECODE = "Keys and values are binary columns: decode them with DataFrame operations."
REFUSED: Mapping[str, str] = {
    "kafka.auto.offset.reset": _STARTING,
    "kafka.key.deserializer": _DECODE,
    "kafka.value.deserializer": _DECODE,
    "kafka.enable.auto.commit": "Progress is kept in the query's checkpoint.",
    "kafka.interceptor.classes": "Change the columns with DataFrame operations.",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions:
    """What one query reads, and how. Pickled to where its tasks run."""

    settings: ClientSettings
    subscription: Subscription
    starting: Bound
    ending: Bound
    """Of a batch query; streams have no end."""
    no_match: Literal["error", "latest"]
    """What a starting timestamp means where no record is that young."""
    fail_on_data_loss: bool
    attempt_count: int
    """How often an end is asked for that cannot be right, the first time among them."""
    retry_interval_s: float
    max_offsets_per_trigger: int | None
    min_offsets_per_trigger: int | None
    max_trigger_delay_s: float
    max_bytes_per_trigger: int | None
    """As stored, by each partition's average."""
    min_partitions: int | None
    max_records_per_partition: int | None
    small_batch_offsets: int | None
    """A micro-batch of so many offsets, or fewer, is read where it is planned; None: never."""
    include_headers: bool
    push_filters: bool
    clip_timestamps: bool
    """Timestamps that Spark cannot have become the nearest that it has."""
    warnings: tuple[str, ...]
    """What is said to the user once, and changes nothing."""


def parse_read_options(options: Options, *, is_streaming: bool) -> ReadOptions:
    """Return what the options mean; raises OptionError. Names may be in any case."""
    given = options
    options = lowered(options)
    _refuse(options)
    most, least = _trigger_limits(options)
    return ReadOptions(
        settings=_settings(options),
        subscription=_subscription(options),
        starting=_starting(options, is_streaming),
        ending=_ending(options, is_streaming),
        no_match=_no_match(options),
        fail_on_data_loss=switch(options, "failOnDataLoss", True),
        attempt_count=_attempt_count(options),
        retry_interval_s=milliseconds(options, "fetchOffset.retryIntervalMs", RETRY_INTERVAL_S),
        max_offsets_per_trigger=most,
        min_offsets_per_trigger=least,
        max_trigger_delay_s=duration_s(options, "maxTriggerDelay", MAX_TRIGGER_DELAY_S),
        max_bytes_per_trigger=whole_number(options, "maxBytesPerTrigger", least=1),
        min_partitions=whole_number(options, "minPartitions", least=1, most=2**31 - 1),
        max_records_per_partition=whole_number(options, "maxRecordsPerPartition", least=1),
        small_batch_offsets=whole_number(options, "smallBatchOffsets", least=0),
        include_headers=switch(options, "includeHeaders", False),
        push_filters=switch(options, "pushFilters", False),
        clip_timestamps=one_of(options, "timestampOverflow", _OVERFLOWS) == _CLIP,
        warnings=tuple(_warnings(given, options, is_streaming)),
    )


def _settings(options: Options) -> ClientSettings:
    settings = client_settings(options)
    most = whole_number(options, DECOMPRESSED_BATCH, least=1)
    return settings if most is None else replace(settings, decompressed_batch_bytes_max=most)


def _attempt_count(options: Options) -> int:
    """Return what `fetchOffset.numRetries` means: Spark's source counts the first question, too.

    (`maxOffsetFetchAttempts` of its KafkaOffsetReaderAdmin; with 0 it asks nothing and fails.)
    """
    said = whole_number(options, "fetchOffset.numRetries", least=0, most=1000)
    return ATTEMPT_COUNT if said is None else max(said, 1)


def check_source_options(options: Options) -> bool:
    """Check what does not depend on the kind of query; return whether headers are wanted."""
    options = lowered(options)
    _refuse(options)
    client_settings(options)
    _subscription(options)
    return switch(options, "includeHeaders", False)


def _refuse(options: Options) -> None:
    for name, cure in REFUSED.items():
        if name in options:
            raise OptionError(
                "DLOG_OPTION_REFUSED", f"Kafka option '{name[6:]}' is not supported.", cure
            )
    sasl = next((name for name in options if name.startswith("kafka.sasl.")), None)
    if sasl is not None:
        raise OptionError(
            "DLOG_OPTION_REFUSED",
            f"Kafka option '{sasl[6:]}' is not supported.",
            "dlog does not support SASL: use TLS with client certificates.",
        )


def _subscription(options: Options) -> Subscription:
    given = [name for name in _SUBSCRIPTIONS if name.lower() in options]
    if len(given) != 1:
        which = "One" if not given else "Only one"
        must = "must" if not given else "can"
        raise OptionError(
            "DLOG_OPTION_MISSING" if not given else "DLOG_OPTION_CONFLICT",
            f"{which} of the following options {must} be specified for the source: "
            f"{', '.join(_SUBSCRIPTIONS)}.",
            "",
        )
    (name,) = given
    text = options[name.lower()]
    if name == "assign":
        partitions = parse_partitions(name, text)
        if partitions:
            return Assign(partitions)
        raise _nothing(f"No topicpartitions to assign as specified value for option '{name}'", text)
    if name == "subscribe":
        topics = tuple(dict.fromkeys(each.strip() for each in text.split(",") if each.strip()))
        if topics:
            return Subscribe(topics)
        raise _nothing(f"No topics to subscribe to as specified value for option '{name}'", text)
    if not text:
        raise _nothing(f"Pattern to subscribe is empty as specified value for option '{name}'", "")
    try:
        compile_pattern(text)
    except PatternError as error:
        shown = text if len(text) <= _SHOWN_MAX else f"{text[:_SHOWN_MAX]}..."
        raise OptionError(
            "DLOG_OPTION_VALUE",
            f"{name} is {shown!r}: {error}.",
            "It is a pattern of Java's, as with Spark's Kafka source, which is looked for in the"
            " names of topics: write it otherwise, or name the topics with subscribe.",
        ) from error
    return SubscribePattern(text)


def _nothing(message: str, text: str) -> OptionError:
    return OptionError("DLOG_OPTION_VALUE", f"{message} is '{text}'.", "")


def _bound(options: Options, end: str, default: Bound, words: Mapping[str, Bound]) -> Bound:
    """Return where reading begins or ends; the order is that of Spark's preferences."""
    timestamp = whole_number(options, f"{end}Timestamp", least=0)
    if timestamp is not None:
        return AtTimestamp(timestamp)
    by_timestamp = options.get(f"{end}OffsetsByTimestamp".lower())
    if by_timestamp is not None:
        return AtTimestamps(parse_timestamps(f"{end}OffsetsByTimestamp", by_timestamp))
    text = options.get(f"{end}Offsets".lower())
    if text is None:
        return default
    if text.lower() in words:
        return words[text.lower()]
    return AtOffsets(parse_offsets(f"{end}Offsets", text))


_WORDS: Mapping[str, Bound] = {"earliest": Earliest(), "latest": Latest()}


def _starting(options: Options, is_streaming: bool) -> Bound:
    bound = _bound(options, "starting", Latest() if is_streaming else Earliest(), _WORDS)
    if is_streaming:
        return bound
    if isinstance(bound, Latest):
        raise _not_in_batch("starting offset can't be latest")
    if isinstance(bound, AtOffsets):
        _refuse_offsets(bound, LATEST, "startingOffsets for {} can't be latest")
    return bound


def _ending(options: Options, is_streaming: bool) -> Bound:
    if is_streaming:
        for name, what in (
            ("endingOffsets", "offset"),
            ("endingOffsetsByTimestamp", "timestamp"),
            ("endingTimestamp", "timestamp"),
        ):
            if name.lower() in options:
                raise OptionError(
                    "DLOG_OPTION_REFUSED",
                    f"ending {what} not valid in streaming queries ({name}).",
                    "Use trigger(availableNow=True) to stop at the present end.",
                )
        return Latest()
    bound = _bound(options, "ending", Latest(), _WORDS)
    if isinstance(bound, Earliest):
        raise _not_in_batch("ending offset can't be earliest")
    if isinstance(bound, AtOffsets):
        _refuse_offsets(bound, EARLIEST, "ending offset for {} can't be earliest")
    _check_bounds(_bound(options, "starting", Earliest(), _WORDS), bound)
    return bound


def _not_in_batch(what: str) -> OptionError:
    return OptionError("DLOG_OPTION_VALUE", f"{what} for batch queries.", "")


def _refuse_offsets(bound: AtOffsets, refused: int, message: str) -> None:
    for key, offset in bound.offsets.items():
        if offset == refused:
            raise _not_in_batch(message.format(key))


def _check_bounds(start: Bound, end: Bound) -> None:
    """Compare what both ends say of the same partitions, before anything is asked."""
    begins: Mapping[TopicPartition, int]
    ends: Mapping[TopicPartition, int]
    if isinstance(start, AtOffsets) and isinstance(end, AtOffsets):
        what, begins, ends = "offset", start.offsets, end.offsets
    elif isinstance(start, AtTimestamps) and isinstance(end, AtTimestamps):
        what, begins, ends = "timestamp", start.timestamps_ms, end.timestamps_ms
    else:
        return
    if begins.keys() != ends.keys():
        raise OptionError(
            "MISMATCHED_TOPIC_PARTITIONS_BETWEEN_START_OFFSET_AND_END_OFFSET",
            "The specified start offset and end offset should have the same topic-partitions. "
            f"For start offset: {describe_partitions(begins)}; "
            f"for end offset: {describe_partitions(ends)}.",
            "",
        )
    for key, first in begins.items():
        if 0 <= ends[key] < first:
            raise OptionError(
                "UNRESOLVED_START_OFFSET_GREATER_THAN_END_OFFSET",
                f"The specified start {what} {first} is greater than the end {what} {ends[key]} "
                f"for topic {key.topic} partition {key.partition}.",
                "",
            )


def _no_match(options: Options) -> Literal["error", "latest"]:
    name = "startingOffsetsByTimestampStrategy"
    found = one_of(options, name, {"error": "error", "latest": "latest"})
    return "latest" if found == "latest" else "error"


def _trigger_limits(options: Options) -> tuple[int | None, int | None]:
    most = whole_number(options, "maxOffsetsPerTrigger", least=1)
    least = whole_number(options, "minOffsetsPerTrigger", least=0)
    if most is not None and least is not None and least > most:
        raise OptionError(
            "DLOG_OPTION_CONFLICT",
            f"The value of minOffsetsPerTrigger({least}) is higher than the "
            f"maxOffsetsPerTrigger({most}).",
            "",
        )
    return most, least


def _warnings(given: Options, options: Options, is_streaming: bool) -> list[str]:
    """Return what to tell the user of options that do nothing."""
    found = []
    if not is_streaming:
        found += [
            f"{name} option ignored in batch queries"
            for name in _ONLY_STREAMING
            if name.lower() in options
        ]
    elif switch(options, "pushFilters", False):
        found.append("pushFilters option ignored in streaming queries")
    if "kafka.group.id" in options:
        found.append("kafka.group.id is ignored: no consumer group is joined")
    understood: Callable[[str], bool] = (_KNOWN | UNDERSTOOD | OWN | _WITHOUT_EFFECT).__contains__
    found += [
        f"option {name} is not known and ignored"
        for name in sorted(given)
        if name.lower().startswith(("kafka.", "dlog.")) and not understood(name.lower())
    ]
    found += [
        f"option {name} is not known and ignored: is {near} meant?"
        for name, near in mistyped(given, _OPTIONS)
    ]
    if BOOTSTRAP in options and "bootstrap.servers" in options:
        found.append(f"bootstrap.servers is ignored: {BOOTSTRAP} is given")
    return found
