"""Offsets of partitions as options and checkpoints of Spark's Kafka source write them.

Pure. An offset of a stream is JSON, `{"topic": {"0": 123}}`: of each partition the next offset to
read. Partitions are in order always: Spark compares offsets as strings.
"""

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from dlog.offset_specs import EARLIEST
from dlog.spark.errors import OptionError
from dlog.types import PartitionId, TopicPartition

PartitionOffsets = Mapping[TopicPartition, int]
JsonOffsets = dict[str, dict[str, int]]
"""What Spark turns into JSON and back."""

OFFSET_MAX = 2**63 - 1
PARTITION_MAX = 2**31 - 1
_NUMBER = re.compile(r"-?[0-9]{1,19}")
_SHOWN = 400  # so many letters of a text are in a message


@dataclass(frozen=True, slots=True)
class Earliest:
    """The first record that there is."""


@dataclass(frozen=True, slots=True)
class Latest:
    """What will be written next."""


@dataclass(frozen=True, slots=True)
class AtOffsets:
    """Of each partition an offset, or EARLIEST or LATEST."""

    offsets: PartitionOffsets


@dataclass(frozen=True, slots=True)
class AtTimestamps:
    """Of each partition the first record that is not older, in ms since 1970."""

    timestamps_ms: PartitionOffsets


@dataclass(frozen=True, slots=True)
class AtTimestamp:
    """Of every partition the first record that is not older, in ms since 1970."""

    timestamp_ms: int


Bound = Earliest | Latest | AtOffsets | AtTimestamps | AtTimestamp
"""Where a read begins or ends, as an option says it."""


def parse_partitions(option: str, text: str) -> tuple[TopicPartition, ...]:
    """Return the partitions of `{"a": [0, 1]}`, in order and each once."""
    example = '{"topicA":[0,1],"topicB":[0,1]}'
    found: dict[TopicPartition, None] = {}
    for topic, partitions in _object(option, text, example).items():
        if not isinstance(partitions, list):
            raise _wrong(option, text, example)
        for each in partitions:
            found[_partition(option, text, example, topic, each)] = None
    return tuple(sorted(found))


def parse_offsets(option: str, text: str) -> dict[TopicPartition, int]:
    """Return the offsets of `{"a": {"0": 23, "1": -1}}`; -2 is the earliest, -1 the latest."""
    example = '{"topicA":{"0":23,"1":-1},"topicB":{"0":-2}}'
    return _numbers(option, text, example, EARLIEST)


def parse_timestamps(option: str, text: str) -> dict[TopicPartition, int]:
    """Return the times of `{"a": {"0": 1000}}`, in ms since 1970."""
    example = '{"topicA": {"0": 123456789, "1": 123456789}, "topicB": {"0": 123456789}}'
    return _numbers(option, text, example, 0)


def _numbers(option: str, text: str, example: str, least: int) -> dict[TopicPartition, int]:
    found = {}
    for topic, partitions in _object(option, text, example).items():
        if not isinstance(partitions, dict):
            raise _wrong(option, text, example)
        for partition, value in partitions.items():
            number = _integer(option, text, example, value)
            if not least <= number <= OFFSET_MAX:
                raise OptionError(
                    "DLOG_OPTION_VALUE",
                    f"{option} has {number} for {topic}-{partition}.",
                    f"It is at least {least}, and at most {OFFSET_MAX}.",
                )
            found[_partition(option, text, example, topic, partition)] = number
    return dict(sorted(found.items()))


def _object(option: str, text: str, example: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise _wrong(option, text, example) from error
    if not isinstance(found, dict):
        raise _wrong(option, text, example)
    return found


def _partition(option: str, text: str, example: str, topic: str, value: object) -> TopicPartition:
    number = _integer(option, text, example, value)
    if not topic or not _is_text(topic) or not 0 <= number <= PARTITION_MAX:
        raise _wrong(option, text, example)
    return TopicPartition(topic, PartitionId(number))


def _is_text(topic: str) -> bool:
    """Return whether a name can be sent: JSON can have halves of letters, which are no UTF-8."""
    try:
        topic.encode()
    except UnicodeEncodeError:
        return False
    return True


def _integer(option: str, text: str, example: str, value: object) -> int:
    """Return a whole number, also of a string, as Spark's reader of JSON takes it."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    if isinstance(value, str) and _NUMBER.fullmatch(value.strip()):
        return int(value)
    raise _wrong(option, text, example)


def _wrong(option: str, text: str, example: str) -> OptionError:
    message = f"{option}: expected e.g. {example}, got {_shown(text)}."
    return OptionError("DLOG_OPTION_VALUE", message, "")


def _shown(text: str) -> str:
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


def to_json(offsets: PartitionOffsets) -> JsonOffsets:
    """Return offsets as Spark keeps them, always in the same order."""
    found: JsonOffsets = {}
    for key, offset in sorted(offsets.items()):
        found.setdefault(key.topic, {})[str(key.partition)] = offset
    return found


def from_json(offsets: Mapping[str, Mapping[str, int]]) -> dict[TopicPartition, int]:
    """Return what a checkpoint holds; raises OptionError for what is no offset of ours."""
    text = json.dumps(offsets)
    try:
        found = parse_offsets("the checkpoint", text)
    except OptionError as error:
        raise _no_checkpoint(text) from error
    if any(offset < 0 for offset in found.values()):
        raise _no_checkpoint(text)
    return found


def _no_checkpoint(text: str) -> OptionError:
    return OptionError(
        "DLOG_CHECKPOINT",
        f"The checkpoint has {_shown(text)} where offsets of this source should be.",
        "It is of another query or was damaged: begin with a new checkpointLocation, and with "
        "startingOffsets where the old query was.",
    )


def describe(offsets: PartitionOffsets) -> str:
    """Return offsets in few words, for messages."""
    return json.dumps(to_json(offsets))


def describe_partitions(partitions: Iterable[TopicPartition], count_max: int = 20) -> str:
    """Return partitions in order, for messages; not all of very many."""
    names = [str(each) for each in sorted(partitions)]
    more = f" and {len(names) - count_max} more" if len(names) > count_max else ""
    return ", ".join(names[:count_max]) + more
