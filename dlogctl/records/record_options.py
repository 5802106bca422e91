"""Options that say how records stand in lines, the same for `produce` and `consume`."""

import re
from collections.abc import Callable
from typing import Any, TypeVar

import click

from dlogctl.records.json_lines import JsonLines
from dlogctl.records.record_formats import (
    CellFormat,
    FormatError,
    LineFormat,
    PlainLines,
    parse_delimiter,
)

Command = TypeVar("Command", bound=Callable[..., Any])
LINES, JSON = "lines", "json"
# What headers themselves are made of, and the digits of `%2C`.
_IN_HEADERS = re.compile(rb"[,=%0-9A-Fa-f]")


def _delimiter(_context: click.Context, _option: click.Parameter, text: str | None) -> bytes | None:
    try:
        return None if text is None else parse_delimiter(text)
    except FormatError as error:
        raise click.BadParameter(str(error)) from None


def _header_delimiter(
    context: click.Context, option: click.Parameter, text: str | None
) -> bytes | None:
    delimiter = _delimiter(context, option, text)
    if delimiter is not None and _IN_HEADERS.search(delimiter):
        raise click.BadParameter(f"{text!r} has a character that headers are written with")
    return delimiter


def _cell(_context: click.Context, _option: click.Parameter, text: str) -> CellFormat:
    return CellFormat(text)


_CELLS = click.Choice([each.value for each in CellFormat])
_OPTIONS = (
    click.option(
        "--format", "form", type=click.Choice((LINES, JSON)), default=None,
        help="A record as a line of text (the default), or as a JSON object on a line.",
    ),
    click.option("--key-format", type=_CELLS, default="text", callback=_cell, show_default=True,
                 help="How the bytes of keys are written."),
    click.option("--value-format", type=_CELLS, default="text", callback=_cell, show_default=True,
                 help="How the bytes of values are written."),
    click.option("-K", "--key-delimiter", metavar="TEXT", callback=_delimiter,
                 help=r"Lines have a key, and this behind it; \t, \x1f and the like are escapes."),
    click.option("-D", "--delimiter", metavar="TEXT", callback=_delimiter, default=r"\n",
                 show_default=True, help="Text after each record."),
    click.option("--header-delimiter", metavar="TEXT", callback=_header_delimiter,
                 help="Lines begin with headers, name=value,name=value, and this behind them."),
    click.option("--null", "null_marker", metavar="TEXT",
                 help="The key or value that stands for null; a null value is a tombstone."),
)  # fmt: skip


def record_options(command: Command) -> Command:
    """Add the options that `line_format` takes, and `delimiter`."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def line_format(
    *,
    form: str,
    key_format: CellFormat,
    value_format: CellFormat,
    key_delimiter: bytes | None,
    header_delimiter: bytes | None,
    null_marker: str | None,
    with_place: bool = False,
) -> LineFormat:
    """Return the form of lines that the options mean; raise click.UsageError."""
    if form == JSON:
        if key_delimiter or header_delimiter or null_marker is not None or with_place:
            raise click.UsageError(
                "JSON has names for keys, headers, nulls and places: leave --key-delimiter, "
                "--header-delimiter, --null, --place out"
            )
        return JsonLines(key_format=key_format, value_format=value_format)
    return PlainLines(
        key_format=key_format,
        value_format=value_format,
        key_delimiter=key_delimiter,
        header_delimiter=header_delimiter,
        null_marker=None if null_marker is None else null_marker.encode(),
        with_place=with_place,
    )
