"""What `bench.compare_spark` writes through both sinks: by batches, and by streams."""

from typing import NamedTuple

from bench.load.spark_cases import Options


class Write(NamedTuple):
    """What is written: columns of a range of ids, and options; `{topic}` is one of its own.

    `mode`: by a stream, in this output mode. For the rest see `bench.load.spark_cases.Case`.
    """

    name: str
    columns: tuple[str, ...]
    options: Options
    fails: bool = False
    intended: str = ""
    differs: tuple[str, ...] = ("error",)
    unseen: bool = False
    least_s: float = 0.0
    mode: str = ""


_TOPIC = {"topic": "{topic}"}
_ID = "cast(id as string)"
_IDEMPOTENT = {"kafka.enable.idempotence": "true"}
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
_LONG = "repeat('x', 500) as value"
_LARGE = "repeat('x', 10000) as value"
_COPY = ("key", "value")
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
    Write("topic between blanks", (_KEY, _VALUE), {"topic": " {topic} "}),
    Write("columns in another case", (_KEY, f"{_ID} as VALUE"), _TOPIC, fails=True),
    Write("compression, none", (_KEY, _LONG), {**_TOPIC, "kafka.compression.type": "none"}),
    Write("compression, zstd", (_KEY, _LONG), {**_TOPIC, "kafka.compression.type": "zstd"}),
    Write("compression, lz4", (_KEY, _LONG), {**_TOPIC, "kafka.compression.type": "lz4"}),
    Write("compression, gzip", (_KEY, _LONG), {**_TOPIC, "kafka.compression.type": "gzip"}),
    Write("compression, snappy", (_KEY, _LONG), {**_TOPIC, "kafka.compression.type": "snappy"}),
    Write(
        "compression, unknown",
        (_KEY, _LONG),
        {**_TOPIC, "kafka.compression.type": "rar"},
        fails=True,
    ),
    # One dlogd has one replica of each: nobody waits for others, whatever is asked for.
    *(
        Write(f"acks={acks}", (_KEY, _VALUE), {**_TOPIC, "kafka.acks": acks}, unseen=True)
        for acks in ("0", "1", "all")
    ),
    # Whoever asks for idempotence needs all acks; who only has fewer does without.
    Write("idempotent", (_KEY, _VALUE), {**_TOPIC, **_IDEMPOTENT}, unseen=True),
    *(
        Write(
            f"idempotent, acks={acks}",
            (_KEY, _VALUE),
            {**_TOPIC, **_IDEMPOTENT, "kafka.acks": acks},
            fails=True,
        )
        for acks in ("0", "1")
    ),
    Write("batch.size=0", (_KEY, _VALUE), {**_TOPIC, "kafka.batch.size": "0"}, unseen=True),
    Write("batch.size=-1", (_KEY, _VALUE), {**_TOPIC, "kafka.batch.size": "-1"}, fails=True),
    # The end of a task sends what lingers.
    Write("linger.ms", (_KEY, _VALUE), {**_TOPIC, "kafka.linger.ms": "5000"}, unseen=True),
    Write("linger.ms=-1", (_KEY, _VALUE), {**_TOPIC, "kafka.linger.ms": "-1"}, fails=True),
    # 400 KB of values in all: a part of them waits for memory, or for a request of its own.
    Write("buffer.memory", (_KEY, _LARGE), {**_TOPIC, "kafka.buffer.memory": "50000"}, unseen=True),
    Write(
        "buffer.memory, a larger record",
        (_KEY, _LARGE),
        {**_TOPIC, "kafka.buffer.memory": "5000"},
        fails=True,
    ),
    Write(
        "buffer.memory, no number",
        (_KEY, _VALUE),
        {**_TOPIC, "kafka.buffer.memory": "x"},
        fails=True,
    ),
    Write(
        "max.request.size",
        (_KEY, _LARGE),
        {**_TOPIC, "kafka.max.request.size": "30000"},
        unseen=True,
    ),
    Write(
        "max.request.size, a larger record",
        (_KEY, _LARGE),
        {**_TOPIC, "kafka.max.request.size": "5000"},
        intended="it bounds requests; how large a record may be is the topic's max.message.bytes",
    ),
    Write(
        "max.request.size=-1",
        (_KEY, _VALUE),
        {**_TOPIC, "kafka.max.request.size": "-1"},
        fails=True,
    ),
    Write("acks, unknown", (_KEY, _VALUE), {**_TOPIC, "kafka.acks": "7"}, fails=True),
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

# By a stream, which reads `cmp-a` through the same source.
STREAM_WRITES = (
    Write("append", _COPY, _TOPIC, mode="append"),
    Write("value alone", ("value",), _TOPIC, mode="append"),
    Write("topic column", ("'{topic}' as topic", *_COPY), {}, mode="append"),
    Write("option wins over column", ("'cmp-b' as topic", *_COPY), _TOPIC, mode="append"),
    Write("partition column", (*_COPY, "partition"), _TOPIC, mode="append"),
    Write("headers", (*_COPY, "headers"), _TOPIC, mode="append"),
    Write("other columns", (*_COPY, "offset as more"), _TOPIC, mode="append"),
    Write("complete mode", ("key", "value"), _TOPIC, mode="complete"),
    Write(
        "update mode",
        ("key", "value"),
        _TOPIC,
        mode="update",
        intended="Spark lets no sink in Python have it: foreachBatch is in the guide",
    ),
    Write("no topic", ("value",), {}, fails=True, mode="append"),
    Write(
        "null topic",
        ("if(offset = 7, null, '{topic}') as topic", "value"),
        {},
        fails=True,
        mode="append",
    ),
    Write("no value", ("key",), _TOPIC, fails=True, mode="append"),
    Write("value of a wrong type", ("offset as value",), _TOPIC, fails=True, mode="append"),
    Write("key.serializer", _COPY, {**_TOPIC, "kafka.key.serializer": "x"}, True, mode="append"),
)
