"""The last part of the demo: a Spark job over the topic, and its answer as table and pictures.

How late do flights leave, by airport and hour of the day? Spark reads the topic with the data
source `dlog`, without jars; its answer is held against the events that were sent.
"""

import contextlib
import json
import os
import shutil
import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot
from rich.console import Console
from rich.table import Table
from rich.text import Text

from dlog.spark.pipelines.delays import delays_by_hour_of_day
from dlog.spark.pipelines.session import running_session
from scripts.flights import Event

ROWS = 5
COLOURS: Mapping[str, str] = {"EWR": "#c0492f", "JFK": "#2a7f62", "LGA": "#3d6fb6"}
STYLES: Mapping[str, str] = {"EWR": "red", "JFK": "green", "LGA": "blue"}
CONF = {
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.memory": "1g",
    "spark.sql.shuffle.partitions": "2",
    "spark.log.level": "ERROR",
}
_EIGHTHS = " ▁▂▃▄▅▆▇█"
Key = tuple[str, int]
"""(airport, hour)."""


@dataclass(frozen=True, slots=True)
class Answer:
    """Of an airport and an hour of the day: flights, mean delay, and that of the latest tenth."""

    flights: int
    delay: float
    p90: float


LEFT_OUT = (
    "The job on Spark is LEFT OUT: there is no Java. Install 17 or newer (as root: apt-get install "
    "openjdk-17-jre-headless), or let JAVA_HOME name one; then run the demo again."
)


def has_java() -> bool:
    """Return whether there is a Java that Spark could run on."""
    home = os.environ.get("JAVA_HOME")
    return shutil.which("java", path=f"{home}/bin" if home else None) is not None


@contextlib.contextmanager
def _said_into(path: Path) -> Iterator[None]:
    """Let what is said to standard error, by Spark's processes too, go to a file."""
    sys.stderr.flush()
    kept = os.dup(2)
    with path.open("wb") as file:
        os.dup2(file.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(kept, 2)
            os.close(kept)


def ask_spark(bootstrap: str, topic: str, said: Path) -> tuple[dict[Key, Answer], float]:
    """Return Spark's answer, and how long the query took, the start of Spark not counted."""
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    options = {"kafka.bootstrap.servers": bootstrap, "subscribe": topic}
    with _said_into(said), running_session("dlog demo", conf=CONF) as spark:
        started_s = time.monotonic()
        records = spark.read.format("dlog").options(**options).load()
        rows = delays_by_hour_of_day(records).collect()
        seconds = time.monotonic() - started_s
    found = {
        (row["origin"], row["hour"]): Answer(row["flights"], row["delay"], row["p90"])
        for row in rows
    }
    return found, seconds


def wanted(events: Sequence[Event]) -> dict[Key, tuple[int, float]]:
    """Return flights and mean delay as the events that were sent have them."""
    delays: defaultdict[Key, list[float]] = defaultdict(list)
    for event in events:
        flight: dict[str, Any] = json.loads(event.value)
        if "dep_delay" in flight:
            delays[flight["origin"], int(flight["hour"])].append(flight["dep_delay"])
    return {key: (len(each), sum(each) / len(each)) for key, each in delays.items()}


def agrees(answer: Mapping[Key, Answer], events: Sequence[Event]) -> bool:
    """Return whether Spark has counted every flight that was sent, once."""
    right = wanted(events)
    return set(answer) == set(right) and all(
        answer[key].flights == count and abs(answer[key].delay - mean) < 1e-6
        for key, (count, mean) in right.items()
    )


def _airports(answer: Mapping[Key, Answer]) -> list[str]:
    return sorted({airport for airport, _ in answer})


def _hours(answer: Mapping[Key, Answer]) -> range:
    hours = [hour for _, hour in answer]
    return range(min(hours), max(hours) + 1)


def table_of(answer: Mapping[Key, Answer]) -> Table:
    """Return the answer as a table: of each airport flights, mean, and the latest tenth."""
    table = Table(title="minutes late at departure: mean (the latest tenth: from), flights")
    table.add_column("hour", justify="right")
    for airport in _airports(answer):
        table.add_column(airport, justify="right", style=STYLES.get(airport, ""))
    for hour in _hours(answer):
        cells = []
        for airport in _airports(answer):
            each = answer.get((airport, hour))
            text = f"{each.delay:5.1f} ({each.p90:3.0f}), {each.flights:6,}" if each else "-"
            cells.append(text)
        table.add_row(f"{hour}", *cells)
    return table


def lines(answer: Mapping[Key, Answer]) -> list[Text]:
    """Return the picture for a terminal: a chart of mean delays for each airport."""
    hours = _hours(answer)
    top = max(each.delay for each in answer.values())
    found = []
    for airport in _airports(answer):
        found.append(Text(f"{airport}: mean delay by hour of the day, up to {top:.0f} min"))
        found += [Text(f"│{row}", STYLES.get(airport, "")) for row in _chart(answer, airport, top)]
        found.append(Text("└" + "".join(f"{hour:<3}" for hour in hours)))
    return found


def _chart(answer: Mapping[Key, Answer], airport: str, top: float) -> list[str]:
    heights = []
    for hour in _hours(answer):
        each = answer.get((airport, hour))
        heights.append(max(1, round(each.delay / top * ROWS * 8)) if each else 0)
    return [
        "".join(_EIGHTHS[min(8, max(0, height - row * 8))] * 2 + " " for height in heights)
        for row in reversed(range(ROWS))
    ]


def draw(answer: Mapping[Key, Answer], path: Path) -> None:
    """Write the picture as a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    figure, axes = pyplot.subplots(figsize=(10, 4.5), layout="constrained")
    for airport in _airports(answer):
        hours = [hour for name, hour in sorted(answer) if name == airport]
        means = [answer[airport, hour].delay for hour in hours]
        latest = [answer[airport, hour].p90 for hour in hours]
        colour = COLOURS.get(airport)
        axes.plot(hours, means, color=colour, marker="o", markersize=4, label=airport)
        axes.plot(hours, latest, color=colour, linestyle=":", linewidth=1)
    axes.set_xticks(_hours(answer))
    axes.set(xlabel="scheduled hour of departure", ylabel="minutes late")
    axes.set_title(
        "Departures from New York, 2013: mean delay; dotted: the latest tenth", fontsize=10
    )
    axes.legend(loc="upper left", fontsize=8)
    for spine in ("top", "right"):
        axes.spines[spine].set_visible(False)
    figure.savefig(path, dpi=120)
    pyplot.close(figure)


def show(
    bootstrap: str, topic: str, events: Sequence[Event], picture: Path, console: Console
) -> bool | None:
    """Ask Spark, show its answer, and return whether it agrees with what was sent.

    None without Java: Spark was not asked, and that was said.
    """
    if not has_java():
        console.print(LEFT_OUT, style="black on yellow")
        return None
    started_s = time.monotonic()
    console.print("starting Spark, which reads the topic without jars")
    said = picture.with_name("demo-spark.log")
    said.parent.mkdir(parents=True, exist_ok=True)
    try:
        answer, query_s = ask_spark(bootstrap, topic, said)
    except Exception:
        console.print(said.read_text(errors="replace")[-4000:], markup=False)
        raise
    console.print(table_of(answer))
    for line in lines(answer):
        console.print(line, no_wrap=True, crop=True, overflow="ellipsis")
    draw(answer, picture)
    console.print(f"the same as a picture: {picture}", soft_wrap=True)
    good = agrees(answer, events)
    verdict = "as sent" if good else "NOT what was sent"
    flights = sum(each.flights for each in answer.values())
    console.print(
        f"Spark counted {flights:,} flights with a delay, {verdict}: "
        f"{query_s:.1f} s, {time.monotonic() - started_s:.1f} s with its start",
        style="green" if good else "red",
    )
    return good
