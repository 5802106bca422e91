"""docs/spark.md names every error of the data source and every option that it reads."""

import re

from bench.load import spark_compare
from dlog.spark import compile_pyspark
from dlog.spark.options import connection_options, options, write_options
from tests.tidy import sources

ROOT = sources.ROOT
GUIDE = (ROOT / "docs" / "spark.md").read_text()
SOURCES = "".join(path.read_text() for path in sorted((ROOT / "dlog" / "spark").rglob("*.py")))
CLASS = re.compile(r'"((?:DLOG|KAFKA|MISMATCHED|RESOLVED|UNRESOLVED)_[A-Z_.]+[A-Z])"')
LOSS = re.compile(r'(?:lose|_unreadable)\(\s*"([A-Z_]+)"')


def test_every_error_is_documented() -> None:
    classes = set(CLASS.findall(SOURCES)) | {
        f"KAFKA_DATA_LOSS.{name}" for name in LOSS.findall(SOURCES)
    }
    assert len(classes) > 30
    assert not [name for name in sorted(classes) if f"`{name}`" not in GUIDE]


def test_no_error_is_documented_that_is_not_there() -> None:
    named = set(re.findall(r"`((?:DLOG|KAFKA|MISMATCHED|RESOLVED|UNRESOLVED)_[A-Z_.]+)`", GUIDE))
    known = SOURCES.replace('"KAFKA_DATA_LOSS.', '"')
    assert not [
        name for name in sorted(named) if f'"{name.removeprefix("KAFKA_DATA_LOSS.")}"' not in known
    ]


def test_every_error_that_is_documented_is_called_by_its_name_in_a_test() -> None:
    """Else it might become another one, and only its words be looked at."""
    tests = "".join(path.read_text() for path in sorted((ROOT / "tests").rglob("*.py")))
    named = set(re.findall(r"`((?:DLOG|KAFKA|MISMATCHED|RESOLVED|UNRESOLVED)_[A-Z_.]+)`", GUIDE))
    assert not [
        name for name in sorted(named) if name.removeprefix("KAFKA_DATA_LOSS.") not in tests
    ]


def test_a_host_that_is_too_busy_is_documented_with_its_cure() -> None:
    (row,) = [line for line in GUIDE.splitlines() if spark_compare._TOO_BUSY in line]
    for each in ("CANNOT_OPEN_SOCKET", "10 s", "dlog.spark.compile_pyspark", "checkpoint"):
        assert each in row


def test_a_stream_on_connect_without_dlog_is_documented_with_its_cure() -> None:
    """What tests/spark/test_connect.py sees, and what helps there."""
    (row,) = [line for line in GUIDE.splitlines() if "| Spark's own: `No module named" in line]
    for each in ("'dlog'", "Spark Connect", "install it there", "PYTHONPATH=/srv/dlog.zip"):
        assert each in row


def test_what_compiling_pyspark_costs_is_the_same_wherever_it_is_told() -> None:
    told = re.compile(r"compiles? PySpark [^.]*?for (?:some )?([0-9.]+) s of CPU")
    texts = [(ROOT / "docs" / "performance.md").read_text(), str(compile_pyspark.__doc__)]
    costs = [told.findall(" ".join(text.split())) for text in texts]
    assert costs == [costs[0]] * 2 and len(costs[0]) == 1
    assert not told.findall(GUIDE), "figures stand in docs/performance.md"


def test_every_option_is_documented() -> None:
    understood = [*connection_options.UNDERSTOOD, *connection_options.OWN]
    ours = [*options._OPTIONS, *write_options._OPTIONS]
    names = [*ours, *options.REFUSED, *write_options._PRODUCER, *understood]
    words = GUIDE.lower()
    missing = [
        name
        for name in names
        if name.lower() not in words and name.lower().removeprefix("kafka.") not in words
    ]
    assert not [
        name for name in missing if "deserializer" not in name and "interceptor" not in name
    ]
