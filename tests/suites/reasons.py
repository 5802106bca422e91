"""Reasons why foreign tests fail on dlog; each names the tests by a pattern (fnmatch).

The first reason that fits a test counts. A reason that no test needs any more fails a test.
"""

from typing import NamedTuple


class Reason(NamedTuple):
    """Why some tests of a suite do not pass on dlog."""

    suite: str
    tests: str
    why: str


_GROUPS = "dlog has no consumer groups yet"
_SHARE = "dlog has no share groups; the test is skipped without them"
_TRANSACTIONS = "dlog has no transactions yet"

REASONS: tuple[Reason, ...] = (
    Reason("franz-go", "TestTxnEtl", _TRANSACTIONS),
    Reason("franz-go", "TestGroupETL", _GROUPS),
    Reason("franz-go", "TestGroupSimple", _GROUPS),
    Reason("franz-go", "TestIssue523", _GROUPS),
    Reason("franz-go", "Test848*", _GROUPS),
    Reason("franz-go", "TestShareGroup*", _SHARE),
    Reason("franz-go", "TestConsumeRegexShareSkipsInternal", _SHARE),
    Reason("franz-go", "TestConsumeRegex", "The test expects Kafka's topic `__consumer_offsets`"),
    Reason("kafka-python", "test_transactional_*", _TRANSACTIONS),
    Reason("kafka-python", "test_group", _GROUPS),
    Reason("kafka-python", "test_heartbeat_thread", _GROUPS),
    Reason("kafka-python", "test_describe_group*", _GROUPS),
    Reason("kafka-python", "test_delete_groups*", _GROUPS),
    Reason("kafka-python", "test_kafka_consumer*", _GROUPS),
    Reason(
        "kafka-python",
        "test_create_describe_delete_acls",
        "The test needs an authorizer, which a node at its defaults does not have",
    ),
    Reason(
        "old-clients",
        "sarama-1.22.1_zstd_*",
        "sarama 1.22 sends zstd with Produce version 3; both servers want version 7 (KIP-110)",
    ),
    Reason("kafka-python", "test_create_partitions", "The test expects the node id 0"),
)
