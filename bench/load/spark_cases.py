"""What `bench.compare_spark` asks of both sources: options of reads and streams, what to write.

Topics are made by `bench.compare_spark`: `cmp-a` (3 partitions, records of every shape, timestamps
1,000 s apart from 1,700,000,000 s on, one per record of a partition), `cmp-b` (1 partition),
`cmp-stamped` (stamped by the leader), `cmp-trimmed` (begins at offset 40).
"""

import json
from typing import Any, NamedTuple

FIRST_MS, STEP_MS = 1_700_000_000_000, 1_000_000
Options = dict[str, Any]


class Case(NamedTuple):
    """Options, and whether rows or an error is what they should give."""

    name: str
    options: Options
    fails: bool = False


def _at(number: int) -> str:
    return str(FIRST_MS + number * STEP_MS)


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
    Case("assign", {"assign": '{"cmp-a":[2,0],"cmp-b":[0]}'}),
    Case("names in any case", {"SUBSCRIBE": "cmp-b", "startingoffsets": "earliest"}),
    Case("stamped by the leader", {"subscribe": "cmp-stamped"}),
    Case("includeHeaders", {**A, "includeHeaders": "true"}),
    Case("startingOffsets, numbers", {**A, "startingOffsets": _each(5)}),
    Case("startingOffsets, -2", {**A, "startingOffsets": _each(-2)}),
    Case("endingOffsets, numbers", {**A, "endingOffsets": _each(7)}),
    Case("endingOffsets, -1", {**A, "endingOffsets": _each(-1)}),
    Case("both", {**A, "startingOffsets": _each(3), "endingOffsets": _each(9)}),
    Case("nothing between", {**A, "startingOffsets": _each(9), "endingOffsets": _each(9)}),
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
    ),
    Case("endingTimestamp, too young", {**A, "endingTimestamp": _at(9_000)}),
    Case("minPartitions", {**A, "minPartitions": "11"}),
    Case("maxRecordsPerPartition", {**A, "maxRecordsPerPartition": "7"}),
    Case("both splits", {**A, "maxRecordsPerPartition": "30", "minPartitions": "9"}),
    Case("maxOffsetsPerTrigger is for streams", {**A, "maxOffsetsPerTrigger": "5"}),
    Case("read_committed", {**A, "kafka.isolation.level": "read_committed"}),
    Case("client.id, fetch sizes", {**A, "kafka.client.id": "x", "kafka.fetch.max.bytes": "5000"}),
    Case("groupIdPrefix", {**A, "groupIdPrefix": "mine"}),
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
    Case("start behind the log", {**A, "startingOffsets": _each(900)}, fails=True),
    Case("failOnDataLoss, not a bool", {**A, "failOnDataLoss": "perhaps"}, fails=True),
    Case("minPartitions 0", {**A, "minPartitions": "0"}, fails=True),
    Case("maxRecordsPerPartition 0", {**A, "maxRecordsPerPartition": "0"}, fails=True),
    Case("auto.offset.reset", {**A, "kafka.auto.offset.reset": "latest"}, fails=True),
    Case("enable.auto.commit", {**A, "kafka.enable.auto.commit": "true"}, fails=True),
    Case("key.deserializer", {**A, "kafka.key.deserializer": "x"}, fails=True),
)

_EARLIEST = {"startingOffsets": "earliest"}
STREAMS = (
    Case("earliest", {**A, **_EARLIEST}),
    Case("latest", A),
    Case("two topics", {"subscribe": "cmp-a,cmp-b", **_EARLIEST}),
    Case("pattern", {"subscribePattern": "cmp-[ab]", **_EARLIEST}),
    Case("assign", {"assign": '{"cmp-a":[1]}', **_EARLIEST}),
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
    Case("minPartitions", {**A, **_EARLIEST, "minPartitions": "8"}),
    Case("trimmed", {**TRIMMED, **_EARLIEST}),
    Case("endingOffsets", {**A, "endingOffsets": _each(5)}, fails=True),
    Case("endingTimestamp", {**A, "endingTimestamp": _at(5)}, fails=True),
    Case(
        "min above max", {**A, "minOffsetsPerTrigger": "9", "maxOffsetsPerTrigger": "5"}, fails=True
    ),
    Case("unknown topic", {"subscribe": "cmp-nowhere", **_EARLIEST}, fails=True),
    Case("trimmed, from 0", {**TRIMMED, "startingOffsets": '{"cmp-trimmed":{"0":0}}'}, fails=True),
)


class Write(NamedTuple):
    """What is written: columns of a range of ids, and options; `{topic}` is one of its own."""

    name: str
    columns: tuple[str, ...]
    options: Options
    fails: bool = False


_TOPIC = {"topic": "{topic}"}
_ID = "cast(id as string)"
_TIMES = ("kafka.max.block.ms", "kafka.delivery.timeout.ms", "kafka.request.timeout.ms")
_SHORT = dict(zip(_TIMES, ("2000", "4000", "2000"), strict=True))
_KEY, _VALUE = f"{_ID} as key", f"{_ID} as value"
_HEADERS = (
    "if(id % 4 = 0, null, array(named_struct('key', 'k', 'value', cast('v' as binary)),"
    f" named_struct('key', {_ID}, 'value', cast(null as binary)))) as headers"
)
_NULL_KEY = f"if(id % 3 = 0, null, {_ID}) as key"
_NULL_VALUE = f"if(id % 5 = 0, null, {_ID}) as value"
_NULL_PLACE = "if(id % 2 = 0, 1, cast(null as int)) as partition"
_NULL_TOPIC = "if(id = 7, null, '{topic}') as topic"
WRITES = (
    Write("key and value", (_KEY, "repeat('x', cast(id as int)) as value"), _TOPIC),
    Write("binary", (f"cast({_ID} as binary) as key", f"cast({_ID} as binary) as value"), _TOPIC),
    Write("value alone", (_VALUE,), _TOPIC),
    Write("null keys and values", (_NULL_KEY, _NULL_VALUE), _TOPIC),
    Write("topic column", ("'{topic}' as topic", _KEY, _VALUE), {}),
    Write("option wins over column", ("'cmp-b' as topic", _KEY, _VALUE), _TOPIC),
    Write("partition column", (_KEY, _VALUE, "cast(id % 3 as int) as partition"), _TOPIC),
    Write("partition column with nulls", (_KEY, _VALUE, _NULL_PLACE), _TOPIC),
    Write("headers", (_KEY, _VALUE, _HEADERS), {**_TOPIC, "includeHeaders": "true"}),
    Write("other columns", (_KEY, _VALUE, "id as more"), _TOPIC),
    Write("compression", (_KEY, _VALUE), {**_TOPIC, "kafka.compression.type": "zstd"}),
    Write("acks", (_KEY, _VALUE), {**_TOPIC, "kafka.acks": "all"}),
    Write("no topic", (_VALUE,), {}, fails=True),
    Write("null topic", (_NULL_TOPIC, _VALUE), {}, fails=True),
    Write("no value", (_KEY,), _TOPIC, fails=True),
    Write("value of a wrong type", ("id as value",), _TOPIC, fails=True),
    Write("key of a wrong type", ("id as key", _VALUE), _TOPIC, fails=True),
    Write("topic of a wrong type", ("id as topic", _VALUE), {}, fails=True),
    Write("partition of a wrong type", (_VALUE, "id as partition"), _TOPIC, fails=True),
    Write("headers of a wrong type", (_VALUE, "'h' as headers"), _TOPIC, fails=True),
    Write(
        "partition that is not there", (_VALUE, "99 as partition"), {**_TOPIC, **_SHORT}, fails=True
    ),
    Write("key.serializer", (_VALUE,), {**_TOPIC, "kafka.key.serializer": "x"}, fails=True),
)
