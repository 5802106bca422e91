"""When two failures count as the same in the comparison with Spark's Kafka source."""

from typing import Any

import pytest

from bench.compare_spark import markdown
from bench.load.spark_cases import BATCHES, Case
from bench.load.spark_compare import _error
from bench.load.spark_failures import kind_of, telling
from bench.load.spark_verdict import difference, is_meant, short, verdict


@pytest.mark.parametrize(
    ("theirs", "ours", "kind"),
    [
        (
            "org.x.UnknownTopicOrPartitionException: This server does not host this.",
            "[DLOG_UNKNOWN_TOPIC_OR_PARTITION] The cluster at h:1 has no t.",
            "no such topic",
        ),
        (
            "assertion failed: If startingOffsets contains specific offsets, you must specify all "
            "TopicPartitions.\nUse -1 for latest",
            "[KAFKA_START_OFFSET_DOES_NOT_MATCH_ASSIGNED] If startingOffsets ...",
            "other partitions",
        ),
        (
            "KafkaIllegalStateException: Partitions specified for Kafka start offsets don't match "
            "what are assigned. Maybe topic partitions are created",
            "[KAFKA_START_OFFSET_DOES_NOT_MATCH_ASSIGNED] If startingOffsets ...",
            "other partitions",
        ),
        (
            "The specified start offset 9 is greater than the end offset 3 for topic t.",
            "[UNRESOLVED_START_OFFSET_GREATER_THAN_END_OFFSET] The specified start offset 9 ...",
            "start behind end",
        ),
        (
            "The specified start timestamp 9 is greater than the end timestamp 3 for topic t.",
            "[UNRESOLVED_START_OFFSET_GREATER_THAN_END_OFFSET] The specified start timestamp 9 ...",
            "start behind end",
        ),
        (
            "The specified start offset and end offset should have the same topic-partitions.",
            "[MISMATCHED_TOPIC_PARTITIONS_BETWEEN_START_OFFSET_AND_END_OFFSET] The specified ...",
            "other partitions",
        ),
        (
            "Record at topic t partition 0 offset 0 has timestamp value 4611686018427387904 that "
            "overflows when converting to Spark's microsecond-precision TimestampType.",
            "[KAFKA_MALFORMED_RECORD_TIMESTAMP] The record at offset 0 of t-0 has the timestamp 1.",
            "timestamp",
        ),
        (
            "minPartitions must be positive",
            "[DLOG_OPTION_VALUE] minPartitions is '0'.",
            "wrong value",
        ),
        (
            'Expected e.g. {"topicA":{"0":23}}, got soon',
            "[DLOG_OPTION_VALUE] startingOffsets: expected e.g. x, got soon.",
            "wrong value",
        ),
        (
            "Kafka option 'key.deserializer' is not supported as keys are deserialized as bytes.",
            "[DLOG_OPTION_REFUSED] Kafka option 'key.deserializer' is not supported.",
            "not supported",
        ),
        (
            "Partition 99 of topic w with partition count 3 is not present in metadata after 2 s.",
            "[DLOG_WRITE_FAILED] task 1: 20 records for topic w could not be sent.",
            "not written",
        ),
        (
            "org.apache.kafka.common.errors.RecordTooLargeException: The message is 10088 bytes.",
            "[DLOG_WRITE_FAILED] task 1: a record for topic w could not be sent.",
            "not written",
        ),
    ],
)
def test_the_same_failure_in_two_ways_of_saying_it(theirs: str, ours: str, kind: str) -> None:
    for text in (theirs, ours):
        long = f"Job aborted:\n\tat org.x.Y\n  {text}\n\tat org.x.Z(Z.scala:7)"
        assert kind_of(long) == kind
        assert telling(long) == text.splitlines()[0]


def test_what_says_nothing_is_the_same_as_nothing() -> None:
    assert kind_of("java.lang.NullPointerException: oh") == ""
    assert telling("first\n java.lang.NullPointerException: oh\nat x") == (
        "java.lang.NullPointerException: oh"
    )
    assert telling("") == ""
    failed = "[STREAM_FAILED] Query [id = 1-2, runId = 3-4] terminated with exception: "
    assert telling(f"{failed}minPartitions must be positive") == "minPartitions must be positive"


def test_failures_are_compared_by_their_kind() -> None:
    wrong = _error(Exception("minPartitions must be positive"))
    refused = _error(Exception("[DLOG_OPTION_REFUSED] no"))
    odd = _error(Exception("oh"))
    ours = _error(Exception("[PYTHON_DATA_SOURCE_ERROR] x\n[DLOG_OPTION_VALUE] minPartitions"))
    assert ours["error"] == "DLOG_OPTION_VALUE"
    rows: dict[str, Any] = {"rows": [[1]]}
    failing = Case("a", {}, fails=True)
    assert verdict(failing, wrong, ours) == "both fail alike"
    assert verdict(failing, wrong, refused) == "both refuse"
    assert verdict(failing, odd, odd) == "both refuse"
    assert verdict(failing, wrong, rows) == verdict(failing, rows, wrong) == "differs"
    assert verdict(BATCHES[0], rows, rows) == "same"
    # Both fail where none should.
    assert verdict(BATCHES[0], wrong, ours) == verdict(BATCHES[0], wrong, wrong) == "differs"


def test_what_shows_nothing_is_not_called_the_same() -> None:
    rows: dict[str, Any] = {"rows": [[1]]}
    unseen = Case("a", {}, unseen=True)
    assert verdict(unseen, rows, rows) == "taken alike"
    assert verdict(unseen, rows, {"rows": []}) == "differs"
    assert verdict(unseen, _error(Exception("oh")), _error(Exception("oh"))) == "differs"


def test_what_has_to_wait_and_does_not_differs_from_what_is_asked() -> None:
    slow = Case("a", {}, least_s=3)
    waited, hurried = ({"rows": [[1]], "waited": each} for each in (True, False))
    assert verdict(slow, waited, waited) == "same"
    assert verdict(slow, waited, hurried) == verdict(slow, hurried, hurried) == "differs"
    assert difference(waited, hurried) == "waited: True / False"
    assert difference(hurried, hurried) == "neither waited"
    failed = _error(Exception("minPartitions must be positive"))
    failing = slow._replace(fails=True)
    assert verdict(failing, {**failed, "waited": True}, failed) == "differs"
    assert verdict(failing, *[{**failed, "waited": True}] * 2) == "both fail alike"


def test_what_tasks_read_counts() -> None:
    one = {"rows": [[1], [2]], "tasks": [["t", 0, 0, 2]], "ends": [{}]}
    two = {**one, "tasks": [["t", 0, 0, 1], ["t", 0, 1, 1]]}
    assert verdict(Case("a", {}), one, two) == "differs"
    assert short(two) == "2 rows in 1 batches, 2 tasks"
    assert difference(one, two).startswith("tasks: ")


def test_a_difference_that_is_meant_excuses_no_other() -> None:
    case = Case("a", {}, intended="so", differs=("partitions",))
    theirs = {"rows": [[1]], "partitions": 3}
    assert is_meant(case, theirs, {"rows": [[1]], "partitions": 0})
    assert not is_meant(case, theirs, {"rows": [[2]], "partitions": 0})
    assert not is_meant(case, theirs, theirs)
    failed = _error(Exception("oh"))
    assert not is_meant(case, theirs, failed)
    refused = Case("a", {}, intended="so")
    assert is_meant(refused, theirs, failed) and not is_meant(refused, failed, failed)


def test_what_both_refuse_is_listed_as_such() -> None:
    line = {"kind": "batch", "theirs": "a|b", "ours": "c", "failure": "", "intended": ""}
    lines: list[dict[str, object]] = [
        {**line, "name": "one", "verdict": "same", "difference": ""},
        {
            **line,
            "name": "two",
            "verdict": "both fail alike",
            "failure": "too young",
            "difference": "",
        },
        {**line, "name": "three", "verdict": "both refuse", "difference": ""},
        {**line, "name": "four", "verdict": "differs", "difference": "rows: x|y"},
        {**line, "name": "five", "verdict": "differs", "intended": "so", "difference": "z"},
    ]
    text = markdown(lines)
    for count in ("5 cases:", "- same: 1.", "- both fail alike: 1.", "- both refuse: 1."):
        assert count in text
    assert "- meant to differ: 1." in text and "- not meant to differ: 1." in text
    for row in (
        "| batch | one | a\\|b | c | same |",
        "| batch | two | a\\|b | c | both fail alike: too young |",
        "| batch | three | a\\|b | c | both refuse |",
        "| batch | four | a\\|b | c | **differs** rows: x\\|y |",
        "| batch | five | a\\|b | c | differs: so |",
    ):
        assert row in text
