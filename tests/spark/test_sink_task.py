"""One task of the sink against a real `dlogd`, without a JVM: what is written, and what is said."""

import pickle
import signal
import threading
import time
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from dlog.batch.native import murmur2
from dlog.spark.errors import SparkSourceError
from dlog.spark.options.write_options import WriteOptions
from dlog.spark.settings import ClientSettings
from dlog.spark.writing import producers
from dlog.spark.writing.promises import AtLeastOnce
from dlog.spark.writing.sink_task import write_task
from dlog.spark.writing.tokens import Attempt, PartitionWritten, TaskWritten, Token
from tests.daemon.process import DaemonProcess, daemon
from tests.spark.reading import Topics

ATTEMPT = Attempt(token=Token("q", 3), task=1, attempt=0)
HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaemonProcess]:
    with daemon(tmp_path_factory.mktemp("node")) as process:
        process.start()
        yield process


@pytest.fixture
def topics(node: DaemonProcess) -> Iterator[Topics]:
    with Topics(node.status()["listeners"][0]) as made:
        yield made
    while producers._kept:
        producers._kept.popitem()[1].producer.close()


def write(topics: Topics, *batches: Any, **options: Any) -> TaskWritten:
    settings = ClientSettings(bootstrap=topics.bootstrap)
    return written_by(iter(batches), settings, WriteOptions(**options))


def written_by(
    batches: Iterator[Any], settings: ClientSettings, options: WriteOptions
) -> TaskWritten:
    return write_task(ATTEMPT, batches, settings, options, AtLeastOnce(settings, options))


def test_all_columns(topics: Topics) -> None:
    topics.create("columns-a", 3)
    topics.create("columns-b", 2)
    rows = [
        # key, value, topic, partition, headers
        (b"k1", b"v1", "columns-a", None, [("h", b"1"), ("n", None)]),
        (None, b"v2", "columns-b", 1, []),
        (b"k1", None, "columns-a", 2, None),
        (b"k2", b"", "columns-b", 0, [("h", b"")]),
        (b"", b"v5", "columns-a", None, None),
    ]
    names = ["key", "value", "topic", "partition", "headers"]
    types = [pa.binary(), pa.binary(), pa.string(), pa.int32(), HEADERS]
    columns = [
        pa.array(col, kind) for col, kind in zip(zip(*rows, strict=True), types, strict=True)
    ]
    batch = pa.record_batch(columns, names)
    written = write(topics, batch, batch.slice(2))
    assert pickle.loads(pickle.dumps(written)) == written
    assert (written.token, written.task, written.record_count) == (Token("q", 3), 1, 8)
    expected: dict[tuple[str, int], list[Any]] = {}
    for key, value, topic, partition, headers in [*rows, *rows[2:]]:
        if partition is None:
            partition = (murmur2(key or b"") & 0x7FFF_FFFF) % 3
        record = (key, value, tuple(headers or ()))
        expected.setdefault((topic, partition), []).append(record)
    for (topic, partition), records in expected.items():
        read = topics.read(topic, partition)
        assert [(each.key, each.value, each.headers) for each in read] == records
    assert written.partitions == tuple(
        PartitionWritten(topic, partition, len(records), 0, len(records) - 1)
        for (topic, partition), records in sorted(expected.items())
    )


def test_the_option_wins_over_the_column(topics: Topics) -> None:
    topics.create("option")
    batch = pa.record_batch({"value": ["é", None], "topic": ["nowhere", None], "other": [1, 2]})
    assert write(topics, batch, topic="option").record_count == 2
    assert [each.value for each in topics.read("option")] == ["é".encode(), None]


@pytest.mark.parametrize("kept", [False, True])
def test_timestamps(topics: Topics, kept: bool) -> None:
    topic = topics.create(f"timestamps-{kept}")
    started_ms = time.time_ns() // 1_000_000
    times = pa.array([5_000, None], pa.timestamp("us", "Europe/Paris"))
    batch = pa.record_batch({"value": ["a", "b"], "timestamp": times})
    write(topics, batch, topic=topic, with_timestamps=kept)
    first, second = (each.timestamp_ms for each in topics.read(topic))
    assert second >= started_ms
    assert first == 5 if kept else first >= started_ms


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
@pytest.mark.parametrize("acks", [None, "none", "leader", "all"])
def test_codecs_and_acks(topics: Topics, codec: str, acks: str | None) -> None:
    topic = topics.create(f"codec-{codec}-{acks}")
    values = [b"%d" % n * 50 for n in range(2000)]
    batch = pa.record_batch({"value": values})
    written = write(topics, batch, topic=topic, compression=codec, acks=acks)
    told = (-1, -1) if acks == "none" else (0, 1999)
    assert written.partitions == (PartitionWritten(topic, 0, 2000, *told),)
    if acks == "none":  # on its way, once the connection is closed as well
        while producers._kept:
            producers._kept.popitem()[1].producer.close()
        deadline = time.monotonic() + 30
        while len(topics.read(topic)) < 2000:
            assert time.monotonic() < deadline
    assert [each.value for each in topics.read(topic)] == values


def test_nothing_to_write(topics: Topics) -> None:
    schema = pa.schema([("value", pa.binary())])
    empty = pa.record_batch([pa.array([], pa.binary())], schema=schema)
    settings = ClientSettings(bootstrap="127.0.0.1:1")  # nobody is there, nobody is asked
    for batches in ([], [empty, empty]):
        written = written_by(iter(batches), settings, WriteOptions(topic="t"))
        assert (written.record_count, written.partitions) == (0, ())


def test_the_producer_is_kept(topics: Topics) -> None:
    topic = topics.create("kept")
    batch = pa.record_batch({"value": ["a"]})
    write(topics, batch, topic=topic)
    (kept,) = producers._kept.values()
    write(topics, batch, topic=topic)
    (again,) = producers._kept.values()
    assert again.producer is kept.producer
    # Other options, another producer; there is an end to how many.
    for linger_ms in range(1, 7):
        write(topics, batch, topic=topic, linger_ms=linger_ms)
    assert len(producers._kept) == producers.KEPT_MAX
    # One that is old is made anew.
    for each in producers._kept.values():
        each.opened_s -= producers.AGE_S_MAX
    last = list(producers._kept.values())[-1].producer
    write(topics, batch, topic=topic, linger_ms=6)
    assert list(producers._kept.values())[-1].producer is not last
    assert len(topics.read(topic)) == 9


@pytest.mark.parametrize("partitions", [1, 2, 4])
def test_a_kept_producer_whose_topic_was_made_anew_meanwhile(
    topics: Topics, partitions: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it had numbered for the former topic is no repetition, no gap and no old place."""
    topic = topics.create(f"anew-{partitions}", 2)
    batch = pa.record_batch({"key": [b"%d" % n for n in range(40)], "value": ["x"] * 40})
    write(topics, batch, topic=topic)
    (kept,) = producers._kept.values()
    topics.delete(topic)
    topics.create(topic, partitions)
    monkeypatch.setattr(producers, "REST_S_MAX", 0)  # as if a while had passed
    for count in (1, 2):
        assert write(topics, batch, topic=topic).record_count == 40
        logs = topics.read_all(topic, partitions)
        wanted: list[list[bytes]] = [[] for _ in range(partitions)]
        for key in batch["key"].to_pylist() * count:
            wanted[(murmur2(key) & 0x7FFF_FFFF) % partitions].append(key)
        assert [[each.key for each in log] for log in logs] == wanted
    assert next(iter(producers._kept.values())).producer is kept.producer


def test_memory_is_bounded(node: DaemonProcess, topics: Topics) -> None:
    """Batches are let go as they are acknowledged, while the node answers late."""
    topic = topics.create("bounded", 2)
    allocated: list[int] = []
    before = pa.total_allocated_bytes()

    def batches() -> Iterator[Any]:
        for number in range(60):
            allocated.append(pa.total_allocated_bytes() - before)
            if number % 20 == 10:  # all that memory allows is given to the producer meanwhile
                node.signal(signal.SIGSTOP)
                threading.Timer(0.3, node.signal, [signal.SIGCONT]).start()
            yield pa.record_batch({"value": [b"%02d" % number * 20_000] * 10})

    settings = ClientSettings(bootstrap=topics.bootstrap)
    options = WriteOptions(topic=topic, memory_bytes=1_000_000, batch_bytes=100_000)
    written = written_by(batches(), settings, options)
    assert written.record_count == 600
    # What is kept, what was handed over last, what is being made.
    assert 700_000 < max(allocated) < 1_000_000 + 3 * 400_000
    assert sum(len(each) for each in topics.read_all(topic, 2)) == 600


def failed(topics: Topics, *batches: Any, **options: Any) -> str:
    with pytest.raises(SparkSourceError) as caught:
        write(topics, *batches, **options)
    # What fails leaves no producer behind, and travels as text.
    assert not producers._kept and not producers._opened_s
    error = pickle.loads(pickle.dumps(caught.value))
    assert str(error) == str(caught.value)
    return str(error)


def test_a_null_topic(topics: Topics) -> None:
    topic = topics.create("t")
    before = pa.record_batch({"key": ["k"] * 40, "value": ["v"] * 40, "topic": [topic] * 40})
    batch = pa.record_batch({"key": ["a", "b"], "value": ["a", "bc"], "topic": ["t", None]})
    text = failed(topics, before, batch)
    assert text.startswith("[KAFKA_NULL_TOPIC_IN_DATA] null topic present in the data, first in")
    assert "first in row 41 of the task, key b'b', a value of 2 bytes." in text


def test_a_topic_that_is_not_there(topics: Topics) -> None:
    text = failed(topics, pa.record_batch({"value": ["a"]}), topic="nowhere")
    assert text.startswith("[DLOG_WRITE_FAILED] task 1 of q/3: a record for topic nowhere")
    assert "UNKNOWN_TOPIC_OR_PARTITION" in text and "Create the topic first" in text
    assert "The first one is row 0 of the task, a value of 1 bytes. Create" in text


def test_rows_of_a_topic_that_is_not_there(topics: Topics) -> None:
    there = topics.create("there")
    before = pa.record_batch({"key": ["k"] * 40, "value": ["v"] * 40, "topic": [there] * 40})
    names = [there, "nowhere", there, "nowhere"]
    batch = pa.record_batch({"key": [*"abcd"], "value": ["v"] * 4, "topic": names})
    text = failed(topics, before, batch)
    assert "task 1 of q/3: 2 records for topic nowhere could not be sent (UNKNOWN_TOPIC" in text
    assert "The first one is row 41 of the task, key b'b', a value of 1 bytes. Create" in text


def test_a_partition_that_is_not_there(topics: Topics) -> None:
    topic = topics.create("three", 3)
    places = pa.array([0, None, 3, -1, 3], pa.int32())
    batch = pa.record_batch({"key": [*"abcde"], "value": ["v"] * 5, "partition": places})
    before = pa.record_batch({"key": ["k"] * 40, "value": ["v"] * 40, "partition": [0] * 40})
    text = failed(topics, before, batch, topic=topic)
    assert f"task 1 of q/3: a record for topic {topic} could not be sent" in text
    assert "partitions 0 to 2, and no 3" in text
    assert "The first one is row 42 of the task, key b'c', a value of 1 bytes." in text


def test_a_partition_that_was_added_behind_a_kept_producer(
    topics: Topics, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(producers, "REST_S_MAX", 1000)
    topic = topics.create("grows")
    write(topics, pa.record_batch({"value": ["a"]}), topic=topic)
    (kept,) = producers._kept.values()
    topics.grow(topic, 2)
    places = pa.array([1, None, 0], pa.int32())
    batch = pa.record_batch({"key": [None, "k", None], "value": [*"bcd"], "partition": places})
    assert write(topics, batch, topic=topic).record_count == 3
    assert next(iter(producers._kept.values())).producer is kept.producer
    assert b"b" in [each.value for each in topics.read(topic, 1)]


def test_a_partition_that_one_topic_of_several_has_not(topics: Topics) -> None:
    small, wide = topics.create("one-partition"), topics.create("two-partitions", 2)
    columns = {
        "key": [*"abcd"],
        "value": ["v"] * 4,
        "topic": [small, wide, wide, small],
        "partition": pa.array([0, 1, 0, 1], pa.int32()),
    }
    text = failed(topics, pa.record_batch(columns))
    assert f"{small} has partitions 0 to 0, and no 1" in text
    assert "The first one is row 3 of the task, key b'd'" in text


def test_a_record_that_is_too_large(topics: Topics) -> None:
    topic = topics.create("small", 1, max_message_bytes="5000")
    before = pa.record_batch({"key": ["k"] * 40, "value": [b"x" * 90] * 40})
    batch = pa.record_batch({"key": ["a", "b" * 50, "c"], "value": [b"x", b"y" * 6000, b"z"]})
    text = failed(topics, before, batch, topic=topic)
    assert text.startswith("[DLOG_WRITE_FAILED] task 1 of q/3: a record was refused: small-0")
    assert "MESSAGE_TOO_LARGE" in text
    shown = "b" * 40
    assert f"row 41 of the task, key b'{shown}'... (50 bytes), a value of 6000 bytes" in text
    assert "max.message.bytes" in text
    # The others are there: at least once, and the repetition writes them again.
    assert {each.key for each in topics.read(topic)} == {b"k", b"a", b"c"}


def test_a_record_that_never_fits(topics: Topics) -> None:
    topic = topics.create("memory")
    batch = pa.record_batch({"key": ["a", "b", "c"], "value": [b"x", b"y" * 20_000, None]})
    text = failed(topics, batch, topic=topic, memory_bytes=10_000, batch_bytes=5000)
    assert "20" in text and "kafka.buffer.memory" in text
    assert "a record for topic memory could not be sent (MESSAGE_TOO_LARGE: a record of" in text
    assert "The largest one is row 1 of the task, key b'b', a value of 20000 bytes. Raise" in text


def test_a_record_whose_headers_never_fit(topics: Topics) -> None:
    topic = topics.create("memory-of-headers")
    large = [{"key": "h", "value": None}, {"key": "i", "value": b"y" * 20_000}]
    headers = pa.array([None, [{"key": "h", "value": b"v"}], [], large, None], HEADERS)
    columns = [pa.array([b"a", None, b"c", b"d", b"e" * 9000]), headers]
    batch = pa.record_batch(columns, ["value", "headers"])
    for rows, number in ((batch, 3), (batch.slice(2), 1)):
        text = failed(topics, rows, topic=topic, memory_bytes=10_000, batch_bytes=5000)
        assert f"The largest one is row {number} of the task, a value of 1 bytes." in text


def test_a_header_without_a_name(topics: Topics) -> None:
    topic = topics.create("headers")
    headers = pa.array([None, [{"key": None, "value": b"v"}]], HEADERS)
    batch = pa.record_batch([pa.array([b"a", b"bc"]), headers], ["value", "headers"])
    text = failed(topics, batch, topic=topic)
    assert "a record for topic headers could not be sent" in text and "header" in text
    assert "The first one is row 1 of the task, a value of 2 bytes. Such rows" in text
    assert b"bc" not in [each.value for each in topics.read(topic)]


def test_nobody_is_there() -> None:
    settings = ClientSettings(bootstrap="127.0.0.1:1", deadline_s=0.2)
    batch = pa.record_batch({"value": ["a"]})
    with pytest.raises(SparkSourceError, match=r"DLOG_CLUSTER_UNREACHABLE.*127.0.0.1:1"):
        written_by(iter([batch]), settings, WriteOptions(topic="t"))


def test_a_node_that_goes_silent(node: DaemonProcess, topics: Topics) -> None:
    topic = topics.create("silent")
    settings = ClientSettings(bootstrap=topics.bootstrap, request_timeout_s=0.5)
    options = WriteOptions(
        topic=topic,
        memory_bytes=200_000,
        batch_bytes=50_000,
        request_timeout_ms=500,
        delivery_timeout_ms=1_500,
        block_ms=4_000,
    )

    def batches() -> Iterator[Any]:
        yield pa.record_batch({"key": ["first"], "value": [b"0"]})
        node.signal(signal.SIGSTOP)
        for _ in range(100):
            yield pa.record_batch({"key": ["k"], "value": [b"x" * 40_000]})

    try:
        with pytest.raises(SparkSourceError) as caught:
            written_by(batches(), settings, options)
    finally:
        node.signal(signal.SIGCONT)
    text = str(caught.value)
    assert "DLOG_WRITE_FAILED" in text and "in time" in text
    assert "The first one is row 0 of the task, key b'first'" in text or "key b'k'" in text
