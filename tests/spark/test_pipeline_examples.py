"""The examples: windows over flights, values decoded, a pipeline below spark-submit."""

import io
import json
import os
import random
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import pyspark
import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession
from rich.console import Console

from dlog.spark.pipelines.delays import delays, delays_by_hour_of_day
from dlogctl.__main__ import main
from examples.spark.decoding import CONFLUENT_HEAD, decode_json, decode_protobuf
from examples.spark.delays_stream import start
from scripts.delays import Answer, agrees, draw, lines, show, table_of
from scripts.flights import Event
from tests.spark.archives import assert_same, make_topic, rows_of_archive, rows_of_topic
from tests.spark.conftest import ROOT, environment_of_workers
from tests.spark.log import Log

PROCESS_S = 240
AVRO = "org.apache.spark:spark-avro_2.13:4.0.0"
Flight = dict[str, Any]


def flights(count: int, *, first_day: int = 1) -> list[Flight]:
    """Return flights of two days as the demo writes them; some were cancelled."""
    rng = random.Random(3)
    made = []
    for number in range(count):
        flight: Flight = {"number": number, "year": 2013.0, "month": 3.0}
        flight |= {
            "day": float(first_day + number * 2 // count),
            "hour": float(rng.randrange(5, 9)),
        }
        flight |= {"minute": float(rng.randrange(60)), "origin": rng.choice(["EWR", "JFK"])}
        if rng.random() < 0.9:
            flight["dep_delay"] = float(rng.randrange(-10, 90))
        made.append(flight)
    return made


def values(made: list[Flight]) -> list[bytes]:
    return [json.dumps(each).encode() for each in made]


def by_window(made: list[Flight]) -> dict[tuple[str, int, int], tuple[int, float, int]]:
    """Return flights, mean delay and number of late ones by airport, day and hour."""
    found: defaultdict[tuple[str, int, int], list[float]] = defaultdict(list)
    for each in made:
        if "dep_delay" in each:
            found[each["origin"], int(each["day"]), int(each["hour"])].append(each["dep_delay"])
    return {
        key: (len(late), sum(late) / len(late), sum(each > 15 for each in late))
        for key, late in found.items()
    }


def as_windows(rows: list[dict[str, Any]]) -> dict[tuple[str, int, int], tuple[int, float, int]]:
    return {
        (row["origin"], row["start"].day, row["start"].hour): (
            row["flights"],
            pytest.approx(row["delay"]),
            row["late"],
        )
        for row in rows
    }


def test_windows_count_every_flight_once(
    spark: SparkSession, log: Log, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    made = flights(400)
    log.create(2)
    for partition in range(2):
        log.write(partition, [*values(made[partition::2]), b"no flight", b'{"origin": "EWR"}'])
    rows = delays(log.read(spark)).toArrow().to_pylist()
    assert by_window(made) == as_windows(rows)
    assert [(row["origin"], row["start"]) for row in rows] == sorted(
        (row["origin"], row["start"]) for row in rows
    )
    assert main(["--bootstrap", log.bootstrap, "-o", "json", "pipeline", "delays", log.topic]) == 0
    told = json.loads(capsys.readouterr().out)
    assert [each["flights"] for each in told] == [row["flights"] for row in rows]
    assert told[0]["start"] == "2013-03-01T05:00"
    folder = tmp_path / "delays"
    words = ["pipeline", "delays", log.topic, "--to", str(folder), "--window", "1 day"]
    assert main(["--bootstrap", log.bootstrap, *words]) == 0
    assert spark.read.parquet(str(folder)).count() == 4


def test_times_that_do_not_exist_are_left_out(spark: SparkSession) -> None:
    (good,) = flights(1)
    odd = [
        {**good, name: value} for name, value in (("month", 13.0), ("day", 32.0), ("hour", 1e12))
    ]
    rows = spark.createDataFrame([(each,) for each in values([*odd, good])], "value binary")
    assert as_windows(delays(rows).toArrow().to_pylist()) == by_window([good])


def test_a_stream_of_windows_gives_each_once_it_is_whole(
    spark: SparkSession, log: Log, tmp_path: Path
) -> None:
    made = flights(200)
    log.create(1)
    log.write(0, values(made))
    folder = str(tmp_path / "delays")
    start(spark, log.bootstrap, log.topic, folder).awaitTermination()
    # It is later than all windows, and leaves its own open.
    log.write(0, values(flights(1, first_day=20)))
    start(spark, log.bootstrap, log.topic, folder).awaitTermination()
    rows = spark.read.parquet(folder).toArrow().to_pylist()
    assert by_window(made) == as_windows(rows)


def test_the_demo_shows_what_spark_says(spark: SparkSession, log: Log, tmp_path: Path) -> None:
    made = flights(300)
    log.create(2)
    log.write(1, values(made))
    rows = delays_by_hour_of_day(log.read(spark)).collect()
    answer = {
        (row["origin"], row["hour"]): Answer(row["flights"], row["delay"], row["p90"])
        for row in rows
    }
    events = [Event(b"k", value) for value in values(made)]
    assert agrees(answer, events)
    # One flight less, a cancelled one less, one a minute later: only the second changes nothing.
    flown = next(number for number, each in enumerate(made) if "dep_delay" in each)
    cancelled = next(number for number, each in enumerate(made) if "dep_delay" not in each)
    assert not agrees(answer, [*events[:flown], *events[flown + 1 :]])
    assert agrees(answer, [*events[:cancelled], *events[cancelled + 1 :]])
    late = {**made[flown], "dep_delay": made[flown]["dep_delay"] + 1}
    changed = [*made[:flown], late, *made[flown + 1 :]]
    assert not agrees(answer, [Event(b"k", value) for value in values(changed)])
    assert not agrees({}, events)
    assert len(table_of(answer).rows) == 4
    shown = [each.plain for each in lines(answer)]
    assert shown[0].startswith("EWR: mean delay") and shown[-1] == "└5  6  7  8  "
    draw(answer, tmp_path / "delays.png")
    assert (tmp_path / "delays.png").read_bytes().startswith(b"\x89PNG")


def test_a_demo_without_java_says_so_and_how_to_mend_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    console = Console(record=True, width=300, file=io.StringIO())
    assert show("127.0.0.1:1", "flights", [], tmp_path / "delays.png", console) is None
    told = console.export_text()
    assert "LEFT OUT" in told and "apt-get install openjdk-17" in told and "JAVA_HOME" in told


def test_json_values_become_columns(spark: SparkSession, log: Log) -> None:
    log.create(1)
    log.write(0, [b'{"a": 1, "b": "x"}', b"{", b'{"b": "y"}'])
    rows = decode_json(log.read(spark), "a int, b string").sort("offset").collect()
    assert [(row["offset"], row["a"], row["b"], row["problem"]) for row in rows] == [
        (0, 1, "x", None),
        (1, None, None, "{"),
        (2, None, "y", None),
    ]


AVRO_PROGRAM = """
import json, sys
from examples.spark.decoding import decode_avro
from dlog.spark.pipelines.session import running_session
bootstrap, topic, jar, schema, head = sys.argv[1:]
conf = {"spark.jars": jar, "spark.driver.bindAddress": "127.0.0.1", "spark.driver.memory": "1g"}
with running_session("avro", master="local[1]", conf=conf) as spark:
    options = {"kafka.bootstrap.servers": bootstrap, "subscribe": topic}
    records = spark.read.format("dlog").options(**options).load()
    rows = decode_avro(records, schema, int(head)).sort("offset").collect()
    print(json.dumps([[row["offset"], row["a"], row["b"]] for row in rows]))
"""


def _jar(artifact: str) -> Path:
    """Fetch a jar from Maven Central, once."""
    command = ["mvn", "-q", "-B", "dependency:get", f"-Dartifact={artifact}", "-Dtransitive=false"]
    group, name, version = artifact.split(":")
    path = Path.home() / ".m2" / "repository" / Path(*group.split(".")) / name / version
    jar = path / f"{name}-{version}.jar"
    if not jar.exists():
        subprocess.run(command, check=True, timeout=PROCESS_S)
    return jar


def _run(program: str, *arguments: str) -> Any:
    """Run a program in a process of its own; return the JSON in its last line."""
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments],
        env={**os.environ, **environment_of_workers()},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=PROCESS_S,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.strip().splitlines()[-1])


def test_avro_values_become_columns_with_sparks_jar(log: Log) -> None:
    fields = [{"name": "a", "type": "int"}, {"name": "b", "type": "string"}]
    schema = json.dumps({"type": "record", "name": "r", "fields": fields})
    log.create(1)
    head = b"\0\0\0\0\7"
    # Zigzag 1 is 2, and a string is its length and its bytes.
    log.write(0, [head + b"\x02\x02x", head + b"\x03\x04yz", head + b"\xff"])
    jar = str(_jar(AVRO))
    found = _run(AVRO_PROGRAM, log.bootstrap, log.topic, jar, schema, str(CONFLUENT_HEAD))
    assert found == [[0, 1, "x"], [1, -2, "yz"], [2, None, None]]


PROTOBUF_PROGRAM = """
import json, sys
from examples.spark.decoding import decode_protobuf
from dlog.spark.pipelines.session import running_session
bootstrap, topic, jar, descriptor = sys.argv[1:]
conf = {"spark.jars": jar, "spark.driver.bindAddress": "127.0.0.1", "spark.driver.memory": "1g"}
with running_session("protobuf", master="local[1]", conf=conf) as spark:
    options = {"kafka.bootstrap.servers": bootstrap, "subscribe": topic}
    records = spark.read.format("dlog").options(**options).load()
    rows = decode_protobuf(records, "r", bytes.fromhex(descriptor)).sort("offset").collect()
    print(json.dumps([[row["offset"], row["a"], row["b"]] for row in rows]))
"""


def _part(number: int, data: bytes | int) -> bytes:
    """Return a field of a Protobuf message: bytes, or a small number."""
    if isinstance(data, int):
        return bytes([number << 3, data])
    return bytes([number << 3 | 2, len(data)]) + data


def _descriptor() -> bytes:
    """Return what protoc writes of `message r { optional int32 a = 1; optional string b = 2; }`."""
    int32, string = 5, 9
    fields = [
        _part(1, name) + _part(3, number) + _part(4, 1) + _part(5, kind)
        for number, (name, kind) in enumerate(((b"a", int32), (b"b", string)), 1)
    ]
    message = _part(1, b"r") + b"".join(_part(2, each) for each in fields)
    file = _part(1, b"r.proto") + _part(4, message) + _part(12, b"proto2")
    return _part(1, file)


def _protobuf_jar() -> Path | None:
    """Return Spark's jar where somebody has it; Maven Central's mirrors may lack it."""
    named = os.environ.get("DLOG_SPARK_PROTOBUF_JAR")
    there = Path.home() / ".m2" / "repository" / "org" / "apache" / "spark"
    found = sorted(there.glob("spark-protobuf_2.13/*/spark-protobuf_2.13-*.jar"))
    return Path(named) if named else found[-1] if found else None


def _write_messages(log: Log) -> None:
    log.create(1)
    log.write(0, [_part(1, 1) + _part(2, b"x"), _part(2, b"yz"), b"\xff"])


def test_protobuf_values_become_columns_with_sparks_jar(log: Log) -> None:
    jar = _protobuf_jar()
    if jar is None:
        pytest.skip("spark-protobuf is not at hand: DLOG_SPARK_PROTOBUF_JAR names it")
    _write_messages(log)
    found = _run(PROTOBUF_PROGRAM, log.bootstrap, log.topic, str(jar), _descriptor().hex())
    assert found == [[0, 1, "x"], [1, None, "yz"], [2, None, None]]


def test_protobuf_needs_nothing_but_the_jar(spark: SparkSession, log: Log) -> None:
    _write_messages(log)
    with pytest.raises(AnalysisException, match="PROTOBUF_NOT_LOADED"):
        decode_protobuf(log.read(spark), "r", _descriptor())


def test_a_pipeline_below_spark_submit(spark: SparkSession, log: Log, tmp_path: Path) -> None:
    make_topic(log, 50)
    submit = Path(pyspark.__file__).parent / "bin" / "spark-submit"
    command = [str(submit), "--master", "local[1]", "--driver-memory", "1g"]
    command += ["--conf", "spark.driver.bindAddress=127.0.0.1", "--conf", "spark.ui.enabled=false"]
    command += ["--conf", "spark.sql.session.timeZone=Asia/Tokyo"]
    command += [str(ROOT / "examples" / "spark" / "pipeline.py"), "--bootstrap", log.bootstrap]
    done = subprocess.run(
        [*command, "archive", log.topic, "--to", str(tmp_path / "archive")],
        env={**os.environ, **environment_of_workers()},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=PROCESS_S,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert "archived 100 records in 1 batch" in done.stdout
    assert_same(rows_of_archive(tmp_path / "archive"), rows_of_topic(spark, log))
