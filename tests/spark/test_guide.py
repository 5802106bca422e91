"""The examples of docs/spark.md, run as they stand, one after the other."""

import json
import re
from pathlib import Path

from pyspark.sql import SparkSession

from dlog.client.blocking import Admin, Consumer, Producer

GUIDE = Path(__file__).resolve().parents[2] / "docs" / "spark.md"
EXAMPLE = re.compile(r"^```python\n(.*?)^```$", re.DOTALL | re.MULTILINE)
ADDRESS = "127.0.0.1:9092"
FOLDERS = re.compile(r'"(checkpoints|lake)/')
FLIGHTS = [
    {"origin": origin, "dep_delay": delay} for delay in range(20) for origin in ("EWR", "JFK")
]


def test_the_guide(
    spark: SparkSession,
    bootstrap: str,
    admin: Admin,
    tmp_path: Path,
) -> None:
    examples = EXAMPLE.findall(GUIDE.read_text())
    assert len(examples) >= 10
    assert sum(ADDRESS in each for each in examples) >= 8
    assert FOLDERS.findall(GUIDE.read_text())
    admin.create_topic("flights", partitions=2)
    admin.create_topic("copies", partitions=2)
    admin.create_topic("hourly", partitions=1)
    with Producer(bootstrap) as producer:
        for flight in FLIGHTS:
            for partition in range(2):
                producer.send("flights", json.dumps(flight).encode(), partition=partition)
    names: dict[str, object] = {"spark": spark}
    for number, code in enumerate(examples, 1):
        # The JVM's own folder is where the tests run, and its checkpoints would stay there.
        text = FOLDERS.sub(rf'"{tmp_path}/\1/', code.replace(ADDRESS, bootstrap))
        exec(compile(text, f"example {number} of docs/spark.md", "exec"), names)
    with Consumer(bootstrap, "copies") as consumer:
        values: list[bytes | None] = []
        while len(values) < 2 * len(FLIGHTS) + 2:
            records = consumer.poll(timeout_ms=20_000)
            assert records, values
            values += [each.value for each in records]
    # A stream's copies, and two rows.
    copies = [json.dumps(each).encode() for each in FLIGHTS] * 2
    assert sorted(map(str, values)) == sorted(map(str, [*copies, b"first", b"second"]))
    check_hourly(bootstrap)
    # Both batches of that stream are read: a query that begins anew there has nothing to read.
    anew = json.loads(str(names["where"]))
    assert anew == {"flights": {"0": len(FLIGHTS), "1": len(FLIGHTS)}}
    assert names["anew"].isStreaming  # type: ignore[attr-defined]


def check_hourly(bootstrap: str) -> None:
    """Each flight is counted once in the newest records of all keys; older ones had fewer."""
    newest: dict[bytes | None, bytes | None] = {}
    count = 0
    with Consumer(bootstrap, "hourly") as consumer:
        while sum(each["flights"] for each in map(json.loads, filter(None, newest.values()))) < (
            2 * len(FLIGHTS)
        ):
            records = consumer.poll(timeout_ms=20_000)
            assert records, newest
            count += len(records)
            newest.update((each.key, each.value) for each in records)
    assert {json.loads(key or b"")["origin"] for key in newest} == {"EWR", "JFK"}
    assert count > len(newest), "no update came after the first"
