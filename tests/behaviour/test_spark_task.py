"""What a Spark task reads from real servers, compared record by record with what was written."""

import asyncio
import random
from collections.abc import Callable

import pyarrow as pa
import pytest

from dlog.batch.records import Record
from dlog.client.admin import Resource
from dlog.client.cluster import partition_calls
from dlog.client.cluster.cluster import Cluster
from dlog.offset_specs import Isolation
from dlog.spark.errors import DataLossError
from dlog.spark.reading import task
from dlog.spark.reading.ranges import OffsetRange
from dlog.spark.reading.rows import COLUMN_TYPES
from dlog.spark.settings import ClientSettings
from tests.behaviour.scene import Scene, Work
from tests.behaviour.shapes import CODECS, numbered, shapes
from tests.behaviour.transactions import transactional, write

Check = Callable[[Work], None]
SCHEMA = pa.schema(list(COLUMN_TYPES.items()))


async def read(
    scene: Scene,
    start: int,
    end: int,
    *,
    fail: bool = True,
    isolation: Isolation = Isolation.READ_UNCOMMITTED,
    columns: tuple[str, ...] = tuple(COLUMN_TYPES),
) -> list[dict[str, object]]:
    """Return the rows that a task reads, times in milliseconds."""
    wanted = OffsetRange(topic=scene.topic, partition=0, start_offset=start, end_offset=end)
    given = ClientSettings(
        bootstrap=",".join(map(str, scene.addresses)), deadline_s=20.0, isolation=isolation
    )
    schema = pa.schema([SCHEMA.field(name) for name in columns])

    def run() -> list[dict[str, object]]:
        try:
            batches = list(task.read_range(given, wanted, schema, fail_on_data_loss=fail))
        finally:
            task.close_idle()
        table = pa.Table.from_batches(batches, schema)
        if "timestamp" in columns:
            place = columns.index("timestamp")
            times = table.column("timestamp").cast(pa.timestamp("ms", "UTC")).cast(pa.int64())
            table = table.set_column(place, "timestamp", times)
        rows: list[dict[str, object]] = table.to_pylist()
        return rows

    return await asyncio.to_thread(run)


async def fill(scene: Scene, records: list[Record], compression: str = "none") -> None:
    """Write records to the one partition."""
    async with scene.producer(compression=compression) as producer:
        await (await producer.send_many(scene.topic, records, partition=0))


@pytest.mark.parametrize("codec", CODECS)
def test_records_of_every_shape(check: Check, codec: str) -> None:
    async def work(scene: Scene) -> None:
        await scene.create(configs={"retention.ms": "-1"})
        written = shapes()
        await fill(scene, written, codec)
        found = await read(scene, 0, len(written))
        assert [each["offset"] for each in found] == list(range(len(written)))
        for got, want in zip(found, written, strict=True):
            headers = [{"key": key, "value": value} for key, value in want.headers]
            assert got == {
                "key": want.key,
                "value": want.value,
                "topic": scene.topic,
                "partition": 0,
                "offset": got["offset"],
                "timestamp": want.timestamp_ms,
                "timestampType": 0,
                "headers": headers or None,
            }
        # From and to the middle of batches, and only some columns.
        for start, end in ((1, 2), (3, len(written) - 3), (7, 8)):
            some = await read(scene, start, end, columns=("value", "offset"))
            assert some == [
                {"value": each["value"], "offset": each["offset"]} for each in found[start:end]
            ]

    check(work)


def test_the_leader_stamps_from_some_offset_on(check: Check) -> None:
    async def work(scene: Scene) -> None:
        await scene.create(configs={"retention.ms": "-1"})
        await fill(scene, numbered(range(5)))
        async with scene.admin() as admin:
            changes = {"message.timestamp.type": "LogAppendTime"}
            await admin.alter_configs(Resource.TOPIC, scene.topic, set_values=changes)
        await fill(scene, numbered(range(5, 10)))
        found = await read(scene, 0, 10)
        assert [each["timestampType"] for each in found] == [0] * 5 + [1] * 5
        assert [each["timestamp"] for each in found[:5]] == [
            each.timestamp_ms for each in numbered(range(5))
        ]
        assert len({each["timestamp"] for each in found[5:]}) == 1

    check(work)


def test_retention_was_faster(check: Check) -> None:
    async def work(scene: Scene) -> None:
        await scene.create(configs={"retention.ms": "-1"})
        await fill(scene, numbered(range(50)))
        cluster = Cluster(scene.addresses, loop=asyncio.get_running_loop(), rng=random.Random(1))
        try:
            node = await cluster.leader(scene.topic, 0)
            assert await partition_calls.delete_records(node, scene.topic, {0: 20}) == {0: 20}
        finally:
            await cluster.close()
        with pytest.raises(DataLossError, match=r"-0 \[10, 20\)"):
            await read(scene, 10, 50)
        with pytest.raises(DataLossError, match=r"-0 \[10, 15\)"):
            await read(scene, 10, 15)
        left = await read(scene, 10, 50, fail=False, columns=("offset",))
        assert [each["offset"] for each in left] == list(range(20, 50))
        assert await read(scene, 10, 15, fail=False) == []

    check(work)


def test_a_topic_that_there_is_not(check: Check) -> None:
    async def work(scene: Scene) -> None:
        with pytest.raises(DataLossError, match=r"-0 \[0, 5\)"):
            await read(scene, 0, 5)
        assert await read(scene, 0, 5, fail=False) == []

    check(work)


@pytest.mark.only("kafka")
def test_transactions(check: Check) -> None:
    async def work(scene: Scene) -> None:
        await scene.create()
        producer = transactional(scene.server.bootstrap, scene.topic)
        write(producer, scene.topic, range(10))
        producer.commit_transaction(30)  # marker: 10
        producer.begin_transaction()
        write(producer, scene.topic, range(10, 20))
        producer.abort_transaction(30)  # marker: 21
        for isolation, values in (
            (Isolation.READ_UNCOMMITTED, range(20)),
            (Isolation.READ_COMMITTED, range(10)),
        ):
            found = await read(scene, 0, 22, isolation=isolation, columns=("value",))
            assert [int(str(each["value"], "ascii")) for each in found] == list(values)  # type: ignore[call-overload]
            # Nothing but a marker.
            assert await read(scene, 21, 22, isolation=isolation) == []

    check(work)
