"""Arrow's columns given to a producer: the same records in the same places as one by one."""

from typing import Any

import pyarrow as pa
import pytest

from dlog.batch.header import HEADER_BYTES
from dlog.batch.records import Record, decode
from dlog.client.futures import BatchDelivery
from dlog.client.producing.accumulator import Accumulator
from dlog.client.producing.bulk_append import bulk_append
from dlog.client.producing.bulk_arrow import ArrowAppend
from dlog.client.producing.bulk_steps import Step
from tests.fakes.accumulators import PARTITIONS, accumulator

VALUES = [None if n % 7 == 0 else b"%d" % n * (n % 40) for n in range(300)]
KEYS = [None if n % 5 == 0 else b"k%d" % (n % 23) for n in range(300)]
TIMES = [1_700_000_000_000 + n for n in range(300)]
HEADERS: list[list[tuple[str, bytes | None]]] = [
    [("h", b"%d" % n), ("n", None)][: n % 3] for n in range(300)
]
HEADER_TYPE = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


def roomy() -> Accumulator:
    return accumulator(memory_bytes=1_000_000, batch_bytes=900)


def add(made: Accumulator, records: Any, keys: Any = None, **given: Any) -> BatchDelivery:
    """Take everything over."""
    delivery = BatchDelivery()
    wanted: dict[str, Any] = {"timestamp_ms": 9, "partition": None, **given}
    append = bulk_append(made, "t", records, keys, delivery=delivery, **wanted)
    assert isinstance(append, ArrowAppend) == (not isinstance(records, list))
    while append.advance(0.0) is Step.MORE:
        pass
    return delivery


def logs(made: Accumulator) -> list[list[Record]]:
    """Return the records of each partition, as they would be written."""
    topic = made.topic("t")
    assert topic is not None
    made.seal_all()
    return [
        [record._replace(offset=0) for batch in queue.waiting for record in decode(batch.encoded())]
        for queue in topic.queues
    ]


def table(**changes: Any) -> Any:
    columns = {
        "key": pa.array(KEYS, pa.binary()),
        "value": pa.array(VALUES, pa.binary()),
        "timestamp": pa.array(TIMES, pa.timestamp("ms", "UTC")),
        "headers": pa.array(HEADERS, HEADER_TYPE),
        "offset": pa.array(range(300), pa.int64()),
        **changes,
    }
    return pa.table({name: each for name, each in columns.items() if each is not None})


def expected(partition: int | None = None) -> list[list[Record]]:
    made = roomy()
    rows = zip(KEYS, VALUES, HEADERS, TIMES, strict=True)
    add(made, [Record(k, v, tuple(h), t) for k, v, h, t in rows], partition=partition)
    return logs(made)


def keyed(partitions: list[list[Record]]) -> list[list[Record]]:
    """Leave those without a key out: where they stick to is by chance."""
    return [[each for each in log if each.key is not None] for log in partitions]


@pytest.mark.parametrize("form", ["table", "batch", "slice", "chunks"])
def test_rows_go_where_records_go(form: str) -> None:
    whole = table()
    made = roomy()
    if form == "table":
        delivery = add(made, whole)
    elif form == "batch":
        delivery = add(made, whole.to_batches()[0])
    elif form == "slice":
        wider = pa.concat_tables([whole.slice(0, 13), whole]).combine_chunks()
        delivery = add(made, wider.to_batches()[0].slice(13))
    else:
        delivery = add(made, pa.concat_tables([whole.slice(0, 111), whole.slice(111)]))
    there = logs(made)
    assert keyed(there) == keyed(expected())
    assert keyless(there) == keyless(expected())
    indexes = [index for _, _, each in delivery.parts() for index in each]
    assert sorted(indexes) == list(range(300))
    for result, first, each in delivery.parts():
        batch = next(b for b in made.incomplete if b.result is result)
        records = decode(batch.encoded())[first : first + len(each)]
        assert [record.value for record in records] == [VALUES[index] for index in each]


def flat(partitions: list[list[Record]]) -> list[Record]:
    return [each for log in partitions for each in log]


def keyless(partitions: list[list[Record]]) -> list[Record]:
    found = [each for each in flat(partitions) if each.key is None]
    return sorted(found, key=lambda record: record.timestamp_ms)


@pytest.mark.parametrize("chunked", [False, True])
def test_arrays_of_values_and_keys(chunked: bool) -> None:
    values, keys = pa.array(VALUES, pa.binary()), pa.array(KEYS, pa.binary())
    if chunked:
        values = pa.chunked_array([values[:50], values[50:]])
        keys = pa.chunked_array([keys[:150], keys[150:]])
    made, other = roomy(), roomy()
    add(made, values, keys)
    add(other, VALUES, KEYS)
    assert keyed(logs(made)) == keyed(logs(other))
    made = roomy()
    add(made, values)
    assert sum(map(len, logs(made))) == 300


def test_strings_and_missing_times_are_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    made = roomy()
    add(made, pa.table({"value": ["a", None], "timestamp": pa.array([7, None], pa.int64())}))
    found = flat(logs(made))
    assert [(each.value, each.timestamp_ms) for each in found] == [(b"a", 7), (None, 9)]


def test_what_are_no_records() -> None:
    for records, keys, error in (
        (pa.table({"key": [b"k"]}), None, KeyError),
        (pa.table({"value": [b"v"]}), [b"k"], ValueError),
        (pa.array([b"v"]), [b"k", b"k"], ValueError),
        (pa.array([[1]]), None, pa.ArrowNotImplementedError),
        (pa.schema([]), None, TypeError),
    ):
        made = roomy()
        with pytest.raises(error):
            add(made, records, keys)
        assert not made.incomplete
    assert add(roomy(), pa.array([], pa.binary())).done()


def test_memory_that_is_short_is_waited_for() -> None:
    made = accumulator()
    delivery = BatchDelivery()
    append = bulk_append(
        made, "t", table(), None, timestamp_ms=1, partition=None, delivery=delivery
    )
    taken = []
    while (step := append.advance(0.0)) is not Step.DONE:
        assert made.used_bytes <= made.batching.memory_bytes
        if step is Step.SHORT:
            for batch in made.seal_all():
                taken.append(decode(batch.encoded()))
                batch.queue.waiting.remove(batch)
                made.release(batch)
                batch.result.settle(base_offset=0)
    taken += [decode(batch.encoded()) for batch in made.seal_all()]
    assert len(taken) > PARTITIONS
    assert sum(map(len, taken)) == 300


@pytest.mark.parametrize("chunks", [1, 3])
def test_rows_go_where_a_column_says(chunks: int) -> None:
    said = [None if n % 3 == 0 else n % PARTITIONS for n in range(300)]
    made = roomy()
    whole = table()
    if chunks > 1:
        whole = pa.concat_tables([whole.slice(n * 100, 100) for n in range(chunks)])
    delivery = add(made, whole, partition=pa.chunked_array([said[:77], said[77:]], pa.int32()))
    assert delivery.record_count == 300
    by_key = {record.key: partition for partition, log in enumerate(expected()) for record in log}
    found = logs(made)
    placed = 0
    for number, (key, value, at) in enumerate(zip(KEYS, VALUES, said, strict=True)):
        if at is None and key is None:
            continue  # wherever keyless records go
        partition = by_key[key] if at is None else at
        assert any(each.timestamp_ms == TIMES[number] for each in found[partition])
        assert any((each.key, each.value) == (key, value) for each in found[partition])
        placed += 1
    assert placed > 250
    # The order within a partition is that of the rows, but for those that go anywhere.
    for log in found:
        times = [each.timestamp_ms for each in log if each.key is not None]
        assert times == sorted(times)


def test_partitions_that_are_not_there() -> None:
    whole = table().slice(0, 3)
    for said in ([0, PARTITIONS, 1], [0, -1, None]):
        with pytest.raises(ValueError, match=f"0 to {PARTITIONS - 1}, and no {said[1]}"):
            add(roomy(), whole, partition=pa.array(said, pa.int32()))
    with pytest.raises(ValueError, match="2 partitions for 3 records"):
        add(roomy(), whole, partition=pa.array([0, 0], pa.int32()))
    with pytest.raises(TypeError, match="Arrow"):
        add(roomy(), [b""], partition=pa.array([0], pa.int32()))


@pytest.mark.parametrize("kind", [list, pa.array])
def test_batches_of_no_size_hold_a_record_each(kind: Any) -> None:
    """As Kafka's producers have it with `batch.size` 0; only tiny ones may share what is spare."""
    made = accumulator(memory_bytes=1_000_000, batch_bytes=HEADER_BYTES)
    values = [b"%d" % number * 99 for number in range(5)]
    add(made, kind(values), partition=1)
    made.seal_all()
    topic = made.topic("t")
    assert topic is not None
    found = [[each.value for each in decode(one.encoded())] for one in topic.queues[1].waiting]
    assert found == [[value] for value in values]
