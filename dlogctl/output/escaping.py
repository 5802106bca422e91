"""Escaping of all text that dlogctl writes: the one way out to a person.

Names, racks, configs, error messages and records come from brokers and from whoever writes to them.
A terminal takes control characters in a text for commands: it clears the screen, changes its title,
turns the line around, or shows a line that dlogctl never wrote. So every text is escaped on its way
out, on a terminal and in a pipe. Other modules call nothing else to write
(`tests/tidy/test_ways_out.py`).
"""

import sys
from collections.abc import Sequence

import click

_IN_TSV = str.maketrans({"\\": "\\\\"})


def escaped(text: str) -> str:
    """Return a text on one line: what is not printable becomes `\\n`, `\\x1b`, `\\u202e`.

    As in the daemon's log lines. A backslash of the text stays single, for people.
    """
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else _escape_of(each) for each in text)


def _escape_of(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")


def escaped_lines(text: str) -> str:
    """Do the same for a text of several lines, whose line feeds stay."""
    return "\n".join(map(escaped, text.split("\n")))


def tsv_cell(text: str) -> str:
    """Return a cell of a tsv row; backslashes are doubled, so that it can be read back."""
    return escaped(text.translate(_IN_TSV))


def escaped_json(text: str) -> str:
    """Escape inside the strings of a JSON text; it stays the same document.

    A JSON text has characters that are not printable in its strings only, line feeds apart.
    """
    if text.isprintable():
        return text
    return "".join(
        each if each.isprintable() or each == "\n" else _json_escape_of(each) for each in text
    )


def _json_escape_of(character: str) -> str:
    units = character.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[at]:02x}{units[at + 1]:02x}" for at in range(0, len(units), 2))


def escaped_record(line: bytes, *, is_json: bool) -> bytes:
    """Return a record's line as a terminal may show it; tabs stay, they part its fields."""
    text = line.decode("utf-8", "backslashreplace")
    if is_json:
        return escaped_json(text).replace("\n", "\\n").encode()
    return "\t".join(map(escaped, text.split("\t"))).encode()


def say(text: str = "", *, err: bool = False, nl: bool = True) -> None:
    """Write one line, escaped."""
    click.echo(escaped(text), err=err, nl=nl)


def say_lines(text: str, *, nl: bool = True) -> None:
    """Write several lines to standard output, escaped but for their line feeds.

    For what dlogctl has put together: a text from elsewhere in it was escaped before.
    """
    click.echo(escaped_lines(text), nl=nl)


def say_error_lines(lines: Sequence[str]) -> None:
    """Write several lines to standard error, each escaped."""
    for line in lines:
        say(line, err=True)


def say_row(cells: Sequence[str]) -> None:
    """Write a row of tsv."""
    click.echo("\t".join(map(tsv_cell, cells)))


def say_json(text: str) -> None:
    """Write a JSON document."""
    click.echo(escaped_json(text))


def say_coloured(text: str, colour: str) -> None:
    """Write one line, escaped, in a colour."""
    click.echo(click.style(escaped(text), fg=colour))


def control(sequence: str, *, err: bool = False) -> None:
    """Write a control sequence of dlogctl's own, such as one that clears the screen."""
    click.echo(sequence, err=err, nl=False)


def confirm(question: str) -> None:
    """Ask on the terminal; raise click.Abort unless the answer is yes."""
    click.confirm(escaped(question), abort=True, err=True)


def write_records(data: bytes) -> None:
    """Write records to standard output at once, as they are."""
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()
