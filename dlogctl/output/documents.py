"""Rows and documents in the five output formats.

`table` and `wide` are for people: rich on a terminal, plain aligned columns in a pipe. `tsv` has
the columns of `wide`; `json` and `yaml` have everything, under stable names. rich and yaml are
loaded when they are used. In all of them a character that is not printable is escaped, in the way
of the format (`dlogctl.output.escaping`).
"""

import importlib
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, TextIO

from dlogctl.output.escaping import escaped, say, say_coloured, say_json, say_lines, say_row
from dlogctl.settings import Settings

Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Column:
    """One column: its title, the key in the row, whether only `wide` shows it."""

    title: str
    key: str
    wide: bool = False
    right: bool = False


def format_cell(value: Any) -> str:
    """Format a value for people; nothing is a dash."""
    if value is None or value == "":
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list | tuple):
        return ",".join(map(format_cell, value)) or "-"
    return str(value)


def format_bytes(count: int | None) -> str | None:
    """Format a number of bytes with a binary unit; None stays None."""
    if count is None or count < 0:
        return None
    value, units = float(count), ["B", "KiB", "MiB", "GiB", "TiB"]
    while value >= 1024 and len(units) > 1:
        value /= 1024
        units.pop(0)
    return f"{count} B" if units[0] == "B" else f"{value:.1f} {units[0]}"


def format_time(timestamp_ms: int) -> str:
    """Format a moment in UTC, to the second."""
    moment = datetime.fromtimestamp(timestamp_ms // 1000, UTC)
    return f"{moment.isoformat()[:-6]}Z"


def format_duration(seconds: float | None) -> str | None:
    """Format seconds as people say them; None stays None."""
    if seconds is None:
        return None
    if seconds < 1:
        return f"{seconds * 1000:.3g} ms"
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"


def format_count(count: int, noun: str) -> str:
    """Format a number of things: `1 partition`, `2 partitions`."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def _plain(cells: Sequence[Sequence[str]], right: Sequence[bool]) -> str:
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = []
    for row in cells:
        padded = [
            cell.rjust(width) if is_right else cell.ljust(width)
            for cell, width, is_right in zip(row, widths, right, strict=True)
        ]
        lines.append("  ".join(padded).rstrip())
    return "\n".join(lines)


def _yaml_text(dump: Callable[..., str], document: Any) -> str:
    text = dump(document, sort_keys=False, allow_unicode=True)
    if not text.replace("\n", "").isprintable():
        # YAML escapes in double quotes only: leave it to the dumper, for all that is not ASCII.
        text = dump(document, sort_keys=False, allow_unicode=False)
    return text.rstrip("\n")


def is_terminal(stream: TextIO | None) -> bool:
    """Return whether a standard stream is a terminal; None is one that was closed."""
    return stream is not None and stream.isatty()


def has_abilities(environ: Mapping[str, str]) -> bool:
    """Return whether standard output is a terminal that can do more than append lines."""
    return is_terminal(sys.stdout) and (environ.get("TERM") or "dumb") != "dumb"


def has_colours(environ: Mapping[str, str]) -> bool:
    """Return whether to use colours there (https://no-color.org)."""
    return has_abilities(environ) and not environ.get("NO_COLOR")


class Output:
    """Writes what a command found to standard output, in the format asked for."""

    def __init__(self, settings: Settings, *, compact: bool = False) -> None:
        self._settings = settings
        self._compact = compact  # a JSON document on one line: many follow each other

    @property
    def for_people(self) -> bool:
        """Whether the format is one that people read."""
        return self._settings.output in ("table", "wide")

    @property
    def has_documents(self) -> bool:
        """Whether the format shows nested documents."""
        return self._settings.output in ("json", "yaml")

    def rows(self, rows: Sequence[Row], columns: Sequence[Column], title: str = "") -> None:
        """Write rows; the machine formats get the rows' own keys."""
        if self.has_documents:
            self.document([dict(row) for row in rows])
            return
        shown = [c for c in columns if not c.wide or self._settings.output != "table"]
        header = [column.title for column in shown] if self._settings.headers else None
        cells = [[format_cell(row.get(column.key)) for column in shown] for row in rows]
        if self._settings.output == "tsv":
            for line in [header, *cells] if header else cells:
                say_row(line)
            return
        shown_cells = [[escaped(cell) for cell in line] for line in cells]
        self._table(header, shown_cells, [column.right for column in shown], escaped(title))

    def _table(
        self,
        header: Sequence[str] | None,
        cells: Sequence[Sequence[str]],
        right: Sequence[bool],
        title: str,
    ) -> None:
        if has_abilities(self._settings.environ):
            importlib.import_module("dlogctl.output.terminal").show_table(
                header, cells, right, title
            )
            return
        if title and self._settings.headers:
            say(f"{title}:")
        if lines := [header, *cells] if header else list(cells):
            say_lines(_plain(lines, right))

    def document(self, document: Any) -> None:
        """Write a nested document as JSON or YAML."""
        if self._settings.output == "yaml":
            yaml = importlib.import_module("yaml")
            say_lines(_yaml_text(yaml.safe_dump, document))
        else:
            indent = None if self._compact else 2
            say_json(json.dumps(document, indent=indent, ensure_ascii=False))

    def pairs(self, pairs: Sequence[tuple[str, Any]]) -> None:
        """Write names and values below each other; tsv: one pair per line."""
        cells = [[name, format_cell(value)] for name, value in pairs]
        if self._settings.output == "tsv":
            for name, value in cells:
                say_row([name, value])
            return
        shown = [[f"{escaped(name)}:", escaped(value)] for name, value in cells]
        say_lines(_plain(shown, (False, False)))

    def done(self, text: str, **fields: Any) -> None:
        """Say what was done: a line for people, a row for programs."""
        if self.for_people:
            say(text)
        else:
            self.rows([fields], [Column(key.upper(), key) for key in fields])

    def line(self, text: str, *, good: bool | None = None) -> None:
        """Write one line for people, green or red where the terminal has colours."""
        coloured = good is not None and has_colours(self._settings.environ)
        if coloured:
            say_coloured(text, "green" if good else "red")
        else:
            say(text)
