"""Events of the log: a sentence and fields, never parsed from each other.

    log.warning("Closed connection peer=%s client_id=%s", peer, client_id)
    log.warning("%s peer=%s", Event("Closed connection", error=error), peer)

Pure. The names come from the source text of the call, the values from its arguments. A value that
looks like `peer=10.9.8.7` therefore stays one value, in fields and, quoted, in the sentence.
`dlogd.runtime.logging_setup` renders records with it.
"""

import logging
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

PEER_CHARS_MAX = 100
TEXT_CHARS_MAX = 2000
FROM_PEERS = frozenset({"client_id", "principal", "user"})
"""Names of values that a client chooses: in sentences they are cut short."""

_SPEC = r"%[-#0 +]*\d*(?:\.\d+)?[a-zA-Z]"
_PAIR = re.compile(rf"(?<=\s)([a-z][a-z0-9_.]*)=('[^']*'|(?:{_SPEC}|%%|[^\s%])*)")
_QUOTED = frozenset(" \t'\"=\\")


class Event:
    """A sentence of the source, and fields; text of others belongs into the fields only."""

    __slots__ = ("fields", "sentence")

    def __init__(self, sentence: str, **fields: object) -> None:
        self.sentence = sentence
        self.fields = fields

    def __str__(self) -> str:
        return self.sentence + "".join(
            f" {name}={shown(name, value)}" for name, value in self.fields.items()
        )


@dataclass(frozen=True, slots=True)
class _Pair:
    name: str
    form: str  # such as `%s`, or `%s-%d`
    first: int  # of the arguments
    count: int


def escaped(text: str) -> str:
    """Return a text without line feeds and control characters, which are written as `\\n`."""
    if text.isprintable():
        return text
    return "".join(
        each if each.isprintable() else each.encode("unicode_escape").decode("ascii")
        for each in text
    )


def shown(name: str, value: object) -> object:
    """Return a value as it stands in a sentence: a text is quoted where it could be misread."""
    if not isinstance(value, str | BaseException):
        return value
    text = str(value)
    limit = PEER_CHARS_MAX if name in FROM_PEERS else TEXT_CHARS_MAX
    if len(text) > limit:
        text = f"{text[:limit]}..."
    is_plain = text and text.isprintable() and _QUOTED.isdisjoint(text)
    return text if is_plain else repr(text)


@lru_cache(maxsize=1024)
def _pairs_of(template: str) -> tuple[_Pair, ...]:
    def count(text: str) -> int:
        return len(re.findall(_SPEC, text.replace("%%", "")))

    found = (
        _Pair(match[1], match[2], count(template[: match.start(2)]), count(match[2]))
        for match in _PAIR.finditer(template)
    )
    return tuple(pair for pair in found if pair.count)


def _arguments(record: logging.LogRecord) -> tuple[Any, ...]:
    return record.args if isinstance(record.args, tuple) else ()


def message_of(record: logging.LogRecord) -> str:
    """Return a record's sentence; raise TypeError or ValueError for a call that is wrong."""
    arguments = list(_arguments(record))
    if not arguments:
        return record.getMessage()
    for pair in _pairs_of(str(record.msg)):
        if pair.form == "%s" and pair.first < len(arguments):
            arguments[pair.first] = shown(pair.name, arguments[pair.first])
    return str(record.msg) % tuple(arguments)


def fields_of(record: logging.LogRecord) -> Iterator[tuple[str, str]]:
    """Yield the fields of a record, whole and without control characters."""
    arguments = _arguments(record)
    for each in arguments:
        if isinstance(each, Event):
            yield from ((name, escaped(str(value))) for name, value in each.fields.items())
    if not arguments:
        return
    for pair in _pairs_of(str(record.msg)):
        values = arguments[pair.first : pair.first + pair.count]
        if len(values) != pair.count:
            continue
        if pair.form in ("%s", "%r") and isinstance(values[0], str):
            text = values[0]
        else:
            try:
                text = (pair.form.strip("'").rstrip(";,") % values).strip()
            except (TypeError, ValueError):
                continue
        yield pair.name, escaped(text)
