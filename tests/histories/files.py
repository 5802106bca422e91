"""Histories as files: one JSON object in a line, with its kind; written while things happen.

    {"kind": "Send", "client": "own1", "key": ["0b8e…", "plain", 0], "numbers": [7], …}

What is written is what was added: `load` gives an equal history. Times are nanoseconds.
"""

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields
from enum import Enum
from pathlib import Path
from typing import Any, TextIO
from uuid import UUID

from tests.histories.history import (
    EpochSeen,
    FinalLog,
    Follower,
    History,
    LogFacts,
    LogKey,
    Outcome,
    Poll,
    Seen,
    Send,
    Trim,
    WatermarkTold,
)


@dataclass(frozen=True, slots=True)
class Facts:
    """What may happen to one log."""

    key: LogKey
    facts: LogFacts


@dataclass(frozen=True, slots=True)
class Strike:
    """What was done to whom; for people."""

    at_ns: int
    what: str


@dataclass(frozen=True, slots=True)
class Violation:
    """A breach that was seen at once."""

    text: str


Event = (
    Send
    | Poll
    | WatermarkTold
    | Trim
    | EpochSeen
    | Follower
    | FinalLog
    | Facts
    | Strike
    | Violation
)
KINDS: dict[str, type[Event]] = {
    each.__name__: each
    for each in (
        Send,
        Poll,
        WatermarkTold,
        Trim,
        EpochSeen,
        Follower,
        FinalLog,
        Facts,
        Strike,
        Violation,
    )
}


def add(history: History, event: Event) -> None:
    """Put what happened where the judges look for it."""
    if isinstance(event, Send):
        history.sends.append(event)
    elif isinstance(event, Poll):
        history.polls.append(event)
    elif isinstance(event, WatermarkTold):
        history.watermarks.append(event)
    elif isinstance(event, Trim):
        history.trims.append(event)
    elif isinstance(event, EpochSeen):
        history.epochs.append(event)
    elif isinstance(event, Follower):
        history.followers.append(event)
    elif isinstance(event, FinalLog):
        history.finals[event.key] = event
    elif isinstance(event, Facts):
        history.facts[event.key] = event.facts
    elif isinstance(event, Violation):
        history.violations.append(event.text)


def to_line(event: Event) -> str:
    """Return an event as one line, without its end."""
    values = {each.name: _plain(getattr(event, each.name)) for each in fields(event)}
    return json.dumps({"kind": type(event).__name__, **values}, separators=(",", ":"))


def _plain(value: Any) -> Any:
    if isinstance(value, LogKey):
        return [value.topic_id.hex, value.topic, value.partition]
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, LogFacts):
        return asdict(value)
    if isinstance(value, tuple):
        return [
            [each.offset, each.number, each.timestamp_ms] if isinstance(each, Seen) else each
            for each in value
        ]
    return value


def from_line(line: str) -> Event:
    """Return the event of a line; raise ValueError, KeyError or TypeError for anything else."""
    found = json.loads(line)
    kind = KINDS[found.pop("kind")]
    return kind(**{name: _value(name, plain) for name, plain in found.items()})


def _value(name: str, plain: Any) -> Any:
    if name == "key":
        return LogKey(UUID(plain[0]), plain[1], plain[2])
    if name == "outcome":
        return Outcome(plain)
    if name == "facts":
        return LogFacts(**plain)
    if name == "records":
        return tuple(Seen(*each) for each in plain)
    return tuple(plain) if isinstance(plain, list) else plain


class Recorder:
    """A history that grows in memory and in a file. Owner: one thread. Life: until `close`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.history = History()
        self._file: TextIO = path.open("w", encoding="ascii")

    def add(self, event: Event) -> None:
        """Note an event; a send when it is over, for it must not change any more."""
        add(self.history, event)
        self._file.write(to_line(event) + "\n")

    def close(self) -> None:
        """Let the file be whole."""
        self._file.close()


def load(paths: Iterable[Path]) -> History:
    """Return the history of some files together."""
    history = History()
    for path in paths:
        with path.open(encoding="ascii") as file:
            for line in file:
                add(history, from_line(line))
    return history
