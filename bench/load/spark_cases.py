"""What `bench.compare_spark` asks of both sources: options of reads and streams, what to write.

Topics are made by `bench.compare_spark`: `cmp-a` (3 partitions, records of every shape, timestamps
1,000 s apart from 1,700,000,000 s on, one per record of a partition), `cmp-b` (1 partition),
`cmp-stamped` (stamped by the leader), `cmp-trimmed` (begins at offset 40); `odd` has a record with
a timestamp that Spark cannot hold; `__transaction_state` is what nodes call internal.
"""

import json
from typing import Any, NamedTuple

FIRST_MS, STEP_MS = 1_700_000_000_000, 1_000_000
Options = dict[str, Any]


class Case(NamedTuple):
    """Options, and whether rows or an error is what they should give.

    `intended` says why the two differ, where they are meant to, and `differs` in what. `unseen`:
    nothing of what the options do shows in what is compared, only that they are taken and harm
    nothing. `least_s`: it has to take so long, for waiting is what the options are about.
    """

    name: str
    options: Options
    fails: bool = False
    intended: str = ""
    differs: tuple[str, ...] = ("error",)
    unseen: bool = False
    least_s: float = 0.0


def _at(number: int) -> str:
    return str(FIRST_MS + number * STEP_MS)


_EMPTY = "no task is planned that reads nothing; Spark's plans one for each empty partition"
_NOT_CUT = (
    "Spark's guide has it for batches, its source heeds it there only when minPartitions is more "
    "than there are partitions"
)
_NOT_THERE = (
    "a partition that is named and not there is an error; Spark's passes over it where its topic is"
)
_INTERNAL = "an internal topic that is named is read; Spark's reads nothing of it, without a word"
_JAVA_ALONE = "what only Java's patterns have is refused, with its cause"
_REST = (
    "with availableNow all that is there is read; Spark's leaves what is less than "
    "minOffsetsPerTrigger to the next run"
)
_OTHER_ROWS = ("partitions", "tasks", "rows")
A, B, TRIMMED = {"subscribe": "cmp-a"}, {"subscribe": "cmp-b"}, {"subscribe": "cmp-trimmed"}
_ALL = ("0", "1", "2")


def _each(value: int, **others: int) -> str:
    return json.dumps({"cmp-a": {**dict.fromkeys(_ALL, value), **others}})


BATCHES = (
    Case("subscribe", A),
    Case("subscribe, two", {"subscribe": "cmp-a, cmp-b"}),
    Case("subscribePattern", {"subscribePattern": "cmp-[ab]"}),
    Case("subscribePattern, all", {"subscribePattern": "cmp-.*"}),
    Case("subscribePattern, none", {"subscribePattern": "nothing.*"}),
    Case("subscribePattern, part of a name", {"subscribePattern": "mp-b"}),
    Case("subscribePattern, from the beginning", {"subscribePattern": "^mp-b|^cmp-(a|b)$"}),
    *(
        Case(f"subscribePattern, {each}", {"subscribePattern": each})
        for each in (
            *(r"\Qcmp-\E[ac-z]$", r"(?i)^CMP-A\Z", r"^[a-z]+-\ba\z", r"c(?i:MP)-[ab]\b"),
            *(r"^[\w-]+b$", r"__", r"^(?!cmp|odd)"),
        )
    ),
    *(
        Case(f"subscribePattern, {each}", {"subscribePattern": each}, intended=_JAVA_ALONE)
        for each in ("cmp-[a-z&&[^b]]", r"^\p{Lower}+-a", "c(?i)MP-[AB]", "cmp-a++")
    ),
    Case("subscribePattern, an internal topic", {"subscribePattern": "^(__.*|cmp-b)$"}),
    *(
        Case(f"{how}, an internal topic", {how: what}, intended=_INTERNAL, differs=_OTHER_ROWS)
        for how, what in (
            ("subscribe", "__transaction_state"),
            ("assign", '{"__transaction_state":[0]}'),
        )
    ),
    Case("subscribePattern, none of Java's", {"subscribePattern": "(?P<n>cmp)"}, fails=True),
    Case("subscribePattern, not closed", {"subscribePattern": "cmp-[a"}, fails=True),
    Case("assign", {"assign": '{"cmp-a":[2,0],"cmp-b":[0]}'}),
    Case("assign, one not there", {"assign": '{"cmp-a":[0,9]}'}, intended=_NOT_THERE),
    Case("assign, a topic not there", {"assign": '{"cmp-a":[0],"cmp-no":[0]}'}, fails=True),
    Case("names in any case", {"SUBSCRIBE": "cmp-b", "startingoffsets": "earliest"}),
    Case("stamped by the leader", {"subscribe": "cmp-stamped"}),
    Case("includeHeaders", {**A, "includeHeaders": "true"}),
    Case("startingOffsets, numbers", {**A, "startingOffsets": _each(5)}),
    Case("startingOffsets, -2", {**A, "startingOffsets": _each(-2)}),
    Case("endingOffsets, numbers", {**A, "endingOffsets": _each(7)}),
    Case("endingOffsets, -1", {**A, "endingOffsets": _each(-1)}),
    Case("both", {**A, "startingOffsets": _each(3), "endingOffsets": _each(9)}),
    Case(
        "nothing between",
        {**A, "startingOffsets": _each(9), "endingOffsets": _each(9)},
        intended=_EMPTY,
        differs=("partitions",),
    ),
    Case("startingTimestamp", {**A, "startingTimestamp": _at(4)}),
    Case("startingTimestamp, between", {**A, "startingTimestamp": str(FIRST_MS + 4_500_000)}),
    Case("endingTimestamp", {**A, "endingTimestamp": _at(6)}),
    Case("startingOffsetsByTimestamp", {**A, "startingOffsetsByTimestamp": _each(int(_at(7)))}),
    Case("endingOffsetsByTimestamp", {**A, "endingOffsetsByTimestamp": _each(int(_at(7)))}),
    Case(
        "timestamps win over offsets",
        {**A, "startingTimestamp": _at(4), "startingOffsets": _each(8)},
    ),
    Case("startingTimestamp, too young", {**A, "startingTimestamp": _at(9_000)}, fails=True),
    Case(
        "too young, strategy latest",
        {
            **A,
            "startingTimestamp": _at(9_000),
            "startingOffsetsByTimestampStrategy": "latest",
        },
        intended=_EMPTY,
        differs=("partitions",),
    ),
    Case("endingTimestamp, too young", {**A, "endingTimestamp": _at(9_000)}),
    Case("minPartitions", {**A, "minPartitions": "11"}),
    Case(
        "maxRecordsPerPartition",
        {**A, "maxRecordsPerPartition": "7"},
        intended=_NOT_CUT,
        differs=("partitions", "tasks"),
    ),
    Case("both splits", {**A, "maxRecordsPerPartition": "30", "minPartitions": "9"}),
    Case("maxOffsetsPerTrigger is for streams", {**A, "maxOffsetsPerTrigger": "5"}),
    # No record of dlogd's is in a transaction yet.
    Case("read_committed", {**A, "kafka.isolation.level": "read_committed"}, unseen=True),
    Case("isolation.level, unknown", {**A, "kafka.isolation.level": "sometimes"}, fails=True),
    Case(
        "client.id, fetch sizes",
        {
            **A,
            "kafka.client.id": "x",
            "kafka.fetch.max.bytes": "5000",
            "kafka.max.partition.fetch.bytes": "300",
        },
        unseen=True,
    ),
    # No group is joined, and no node is told its name.
    Case("groupIdPrefix", {**A, "groupIdPrefix": "mine"}, unseen=True),
    Case("kafka.group.id", {**A, "kafka.group.id": "mine"}, unseen=True),
    # One dlogd has no other rack to read in.
    Case("kafka.client.rack", {**A, "kafka.client.rack": "r1"}, unseen=True),
    # Nobody has to wait for a record so long.
    Case("pollTimeoutMs", {**A, "kafkaConsumer.pollTimeoutMs": "30000"}, unseen=True),
    Case("pollTimeoutMs, not a number", {**A, "kafkaConsumer.pollTimeoutMs": "x"}, fails=True),
    Case("trimmed, from earliest", TRIMMED),
    Case(
        "trimmed, from 0, failOnDataLoss=false",
        {**TRIMMED, "startingOffsets": '{"cmp-trimmed":{"0":0}}', "failOnDataLoss": "false"},
    ),
    Case(
        "trimmed, from 0",
        {**TRIMMED, "startingOffsets": '{"cmp-trimmed":{"0":0}}'},
        fails=True,
    ),
    Case("no subscription", {}, fails=True),
    Case("two subscriptions", {**A, "assign": '{"cmp-a":[0]}'}, fails=True),
    Case("empty subscribe", {"subscribe": ""}, fails=True),
    Case("bad assign", {"assign": "cmp-a"}, fails=True),
    Case("unknown topic", {"subscribe": "cmp-nowhere"}, fails=True),
    Case("startingOffsets latest", {**A, "startingOffsets": "latest"}, fails=True),
    Case("endingOffsets earliest", {**A, "endingOffsets": "earliest"}, fails=True),
    Case("startingOffsets -1", {**A, "startingOffsets": _each(-1)}, fails=True),
    Case("endingOffsets -2", {**A, "endingOffsets": _each(-2)}, fails=True),
    Case("startingOffsets, not JSON", {**A, "startingOffsets": "soon"}, fails=True),
    Case("startingOffsets, one missing", {**A, "startingOffsets": '{"cmp-a":{"0":1}}'}, fails=True),
    Case(
        "startingOffsets, one too many", {**A, "startingOffsets": _each(1, **{"3": 1})}, fails=True
    ),
    Case(
        "start behind end",
        {**A, "startingOffsets": _each(9), "endingOffsets": _each(3)},
        fails=True,
    ),
    Case(
        "times, start behind end",
        {
            **A,
            "startingOffsetsByTimestamp": _each(int(_at(7))),
            "endingOffsetsByTimestamp": _each(int(_at(3))),
        },
        fails=True,
    ),
    Case(
        "a time behind a time",
        {**A, "startingTimestamp": _at(7), "endingTimestamp": _at(3)},
        fails=True,
    ),
    Case(
        "other partitions at the end",
        {**A, "startingOffsets": _each(1), "endingOffsets": '{"cmp-a":{"0":5}}'},
        fails=True,
    ),
    Case(
        "endingOffsetsByTimestamp, one missing",
        {**A, "endingOffsetsByTimestamp": json.dumps({"cmp-a": {"0": int(_at(7))}})},
        fails=True,
    ),
    Case("end behind the log", {**A, "endingOffsets": _each(5, **{"1": 900})}, fails=True),
    Case(
        "end behind the log, failOnDataLoss=false",
        {**A, "endingOffsets": _each(5, **{"1": 900}), "failOnDataLoss": "false"},
    ),
    Case("a timestamp beyond Spark's", {"subscribe": "odd"}, fails=True),
    Case("start behind the log", {**A, "startingOffsets": _each(900)}, fails=True),
    Case("failOnDataLoss, not a bool", {**A, "failOnDataLoss": "perhaps"}, fails=True),
    Case("minPartitions 0", {**A, "minPartitions": "0"}, fails=True),
    Case("maxRecordsPerPartition 0", {**A, "maxRecordsPerPartition": "0"}, fails=True),
    Case("auto.offset.reset", {**A, "kafka.auto.offset.reset": "latest"}, fails=True),
    Case("enable.auto.commit", {**A, "kafka.enable.auto.commit": "true"}, fails=True),
    Case("key.deserializer", {**A, "kafka.key.deserializer": "x"}, fails=True),
    Case("value.deserializer", {**A, "kafka.value.deserializer": "x"}, fails=True),
    Case("interceptor.classes", {**A, "kafka.interceptor.classes": "x"}, fails=True),
    Case("includeHeaders, not a bool", {**A, "includeHeaders": "perhaps"}, fails=True),
)

_EARLIEST = {"startingOffsets": "earliest"}
_RETRIES = {"fetchOffset.numRetries": "3", "fetchOffset.retryIntervalMs": "1500"}
_RETRIES_S = 3.0
STREAMS = (
    Case("earliest", {**A, **_EARLIEST}),
    Case("latest", A),
    Case("two topics", {"subscribe": "cmp-a,cmp-b", **_EARLIEST}),
    Case("pattern", {"subscribePattern": "cmp-[ab]", **_EARLIEST}),
    Case("pattern, part of a name", {"subscribePattern": "mp-b", **_EARLIEST}),
    Case("assign", {"assign": '{"cmp-a":[1]}', **_EARLIEST}),
    Case("assign, one not there", {"assign": '{"cmp-a":[0,9]}', **_EARLIEST}, intended=_NOT_THERE),
    Case("headers", {**A, **_EARLIEST, "includeHeaders": "true"}),
    Case("JSON", {**A, "startingOffsets": _each(5, **{"1": -2, "2": -1})}),
    Case("startingTimestamp", {**A, "startingTimestamp": _at(4)}),
    Case("startingOffsetsByTimestamp", {**A, "startingOffsetsByTimestamp": _each(int(_at(7)))}),
    Case("maxOffsetsPerTrigger", {**A, **_EARLIEST, "maxOffsetsPerTrigger": "50"}),
    Case(
        "maxOffsetsPerTrigger, two topics",
        {"subscribe": "cmp-a,cmp-b", **_EARLIEST, "maxOffsetsPerTrigger": "37"},
    ),
    Case("maxOffsetsPerTrigger, few", {**A, **_EARLIEST, "maxOffsetsPerTrigger": "20"}),
    Case(
        "min and max",
        {**A, **_EARLIEST, "minOffsetsPerTrigger": "10", "maxOffsetsPerTrigger": "60"},
    ),
    Case(
        "min and max, a rest",
        {**A, **_EARLIEST, "minOffsetsPerTrigger": "40", "maxOffsetsPerTrigger": "60"},
        intended=_REST,
        differs=("ends", "tasks", "rows"),
    ),
    Case("minPartitions", {**A, **_EARLIEST, "minPartitions": "8"}),
    Case("maxRecordsPerPartition", {**A, **_EARLIEST, "maxRecordsPerPartition": "30"}),
    Case(
        "maxRecordsPerPartition, many batches",
        {**A, **_EARLIEST, "maxRecordsPerPartition": "15", "maxOffsetsPerTrigger": "90"},
    ),
    Case(
        "both splits",
        {**A, **_EARLIEST, "maxRecordsPerPartition": "30", "minPartitions": "12"},
    ),
    Case("startingTimestamp, too young", {**A, "startingTimestamp": _at(9_000)}, fails=True),
    Case(
        "startingTimestamp, too young for some",
        {**A, "startingTimestamp": _at(30), "startingOffsetsByTimestampStrategy": "latest"},
    ),
    Case(
        "startingTimestamp, too young, strategy latest",
        {**A, "startingTimestamp": _at(9_000), "startingOffsetsByTimestampStrategy": "latest"},
    ),
    Case(
        "startingTimestamp, too young, strategy error",
        {**A, "startingTimestamp": _at(9_000), "startingOffsetsByTimestampStrategy": "error"},
        fails=True,
    ),
    Case(
        "startingOffsetsByTimestamp, too young for some, strategy latest",
        {
            **A,
            "startingOffsetsByTimestamp": _each(int(_at(40))),
            "startingOffsetsByTimestampStrategy": "latest",
        },
    ),
    Case(
        "startingOffsetsByTimestamp, too young for some",
        {**A, "startingOffsetsByTimestamp": _each(int(_at(40)))},
        fails=True,
    ),
    Case(
        "startingOffsetsByTimestamp, one missing",
        {**A, "startingOffsetsByTimestamp": json.dumps({"cmp-a": {"0": int(_at(7))}})},
        fails=True,
    ),
    Case(
        "strategy, unknown",
        {**A, "startingTimestamp": _at(4), "startingOffsetsByTimestampStrategy": "sometimes"},
        fails=True,
    ),
    Case(
        "timestamps win over offsets",
        {**A, "startingTimestamp": _at(4), "startingOffsets": _each(8)},
    ),
    Case(
        "a timestamp wins over timestamps",
        {
            **A,
            "startingTimestamp": _at(4),
            "startingOffsetsByTimestamp": _each(int(_at(7))),
        },
    ),
    # Where a query begins behind the end, both ask again so often, and so long apart.
    Case(
        "fetchOffset.numRetries, retryIntervalMs",
        {**A, "startingOffsets": _each(900), **_RETRIES},
        fails=True,
        least_s=_RETRIES_S,
    ),
    Case(
        "fetchOffset.numRetries, retryIntervalMs, failOnDataLoss=false",
        {**A, "startingOffsets": _each(900), **_RETRIES, "failOnDataLoss": "false"},
        least_s=_RETRIES_S,
    ),
    Case("fetchOffset.numRetries, not a number", {**A, "fetchOffset.numRetries": "x"}, fails=True),
    Case(
        "fetchOffset.retryIntervalMs, not a number",
        {**A, "fetchOffset.retryIntervalMs": "x"},
        fails=True,
    ),
    Case(
        "maxTriggerDelay, no time",
        {**A, "minOffsetsPerTrigger": "5", "maxTriggerDelay": "x"},
        fails=True,
    ),
    Case("kafka.group.id", {**A, **_EARLIEST, "kafka.group.id": "mine"}, unseen=True),
    Case("kafka.client.rack", {**A, **_EARLIEST, "kafka.client.rack": "r1"}, unseen=True),
    Case("pollTimeoutMs", {**A, **_EARLIEST, "kafkaConsumer.pollTimeoutMs": "30000"}, unseen=True),
    Case("trimmed", {**TRIMMED, **_EARLIEST}),
    Case(
        "trimmed, from 0, failOnDataLoss=false",
        {**TRIMMED, "startingOffsets": '{"cmp-trimmed":{"0":0}}', "failOnDataLoss": "false"},
    ),
    Case(
        "trimmed, from 0, failOnDataLoss=false, many batches",
        {
            **TRIMMED,
            "startingOffsets": '{"cmp-trimmed":{"0":0}}',
            "failOnDataLoss": "false",
            "maxOffsetsPerTrigger": "30",
        },
    ),
    Case("startingOffsets, one missing", {**A, "startingOffsets": '{"cmp-a":{"0":1}}'}, fails=True),
    Case("a timestamp beyond Spark's", {"subscribe": "odd", **_EARLIEST}, fails=True),
    Case("endingOffsets", {**A, "endingOffsets": _each(5)}, fails=True),
    Case("endingOffsetsByTimestamp", {**A, "endingOffsetsByTimestamp": _each(5)}, fails=True),
    Case(
        "endingTimestamp",
        {**A, "endingTimestamp": _at(5)},
        intended="a stream has no end: refused as endingOffsets is, not passed over in silence",
    ),
    Case(
        "min above max", {**A, "minOffsetsPerTrigger": "9", "maxOffsetsPerTrigger": "5"}, fails=True
    ),
    Case("unknown topic", {"subscribe": "cmp-nowhere", **_EARLIEST}, fails=True),
    Case("trimmed, from 0", {**TRIMMED, "startingOffsets": '{"cmp-trimmed":{"0":0}}'}, fails=True),
)
