"""Kinds of failures of the two sources, told from the texts of their errors. Pure.

Both name the same thing in words of their own: Spark's Kafka source often has no error class, and
fails an assertion. A text that says nothing that is known here is of no kind, and then two failures
cannot be called the same.
"""

import re

KINDS: tuple[tuple[str, str], ...] = (
    ("data loss", r"KAFKA_DATA_LOSS|[Ss]ome data may have been lost|Cannot fetch (offset|record)"),
    ("no such topic", r"UnknownTopicOrPartitionException|DLOG_UNKNOWN_TOPIC_OR_PARTITION"),
    ("too young", r"No offset matched from request|DLOG_NO_OFFSET_FOR_TIMESTAMP"),
    (
        "other partitions",
        r"must specify all TopicPartitions|offsets don't match what are assigned|"
        r"(START|TIMESTAMP)_OFFSET_DOES_NOT_MATCH_ASSIGNED|"
        r"should have the same topic-partitions|MISMATCHED_TOPIC_PARTITIONS_BETWEEN_START",
    ),
    (
        "start behind end",
        r"START_OFFSET_GREATER_THAN_END_OFFSET|start (offset|timestamp) \S+ is greater than",
    ),
    ("timestamp", r"overflows when converting|KAFKA_MALFORMED_RECORD_TIMESTAMP"),
    (
        "null topic",
        r"null topic present in the data|contains a null topic|KAFKA_NULL_TOPIC_IN_DATA",
    ),
    (
        "columns",
        r"Required attribute|attribute unsupported type|topic option required|"
        r"DLOG_INVALID_SINK_SCHEMA",
    ),
    ("not written", r"not present in metadata|RecordTooLargeException|DLOG_WRITE_FAILED"),
    ("nothing named", r"One of the following options must be|DLOG_OPTION_MISSING"),
    (
        "contradiction",
        r"Only one of the following options can be|is higher than the maxOffsetsPerTrigger|"
        r"Must set acks to all in order to use the idempotent producer|"
        r"DLOG_OPTION_CONFLICT",
    ),
    (
        "not supported",
        r"Kafka option '\S+' is not supported|not valid in streaming queries|DLOG_OPTION_REFUSED",
    ),
    (
        "wrong value",
        r"as specified value for option|can't be (latest|earliest)|Expected e\.g\.|"
        r"must be positive|For input string|No value found for|Time must be specified as|"
        r"Invalid value \S+ for configuration|PatternSyntaxException|"
        r"[A-Z][a-z ]+ near index [0-9]+|DLOG_OPTION_VALUE",
    ),
)
"""Of each kind what its texts have: the first that is found counts."""

_OF_A_QUERY = re.compile(
    r"\[STREAM_FAILED\] Query \[id = \S+, runId = \S+\] terminated with exception: "
)


def kind_of(text: str) -> str:
    """Return the kind of a failure; empty when its text says nothing that is known."""
    return next((kind for kind, pattern in KINDS if re.search(pattern, text)), "")


def telling(text: str) -> str:
    """Return the line of a long error that says what it was, without the names of a query."""
    lines = [_OF_A_QUERY.sub("", line.strip()) for line in text.splitlines() if line.strip()]
    patterns = dict(KINDS)
    kind = kind_of(text)
    if kind:
        return next(line for line in lines if re.search(patterns[kind], line))
    said = [line for line in lines if "Error" in line or "Exception" in line or "[" in line]
    return (said or lines or [""])[0]
