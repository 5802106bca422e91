"""Commands that show examples, and groups that load a command when it is asked for.

A group knows its commands from a table of `name: (module:attribute, first line of its help)`, so
that `--help` and completion of names load none of them.
"""

import importlib
import re
from collections.abc import Mapping, Sequence
from typing import Any

import click

from dlogctl.settings import CommonOption

Table = Mapping[str, tuple[str, str]]
Examples = Sequence[tuple[str, str]]
"""(command line, what it does) each."""

WATCH = "--watch"
WATCH_INTERVAL = "2s"


class _Exemplary(click.Command):
    """What commands and groups share: examples; the common options in their own section."""

    def __init__(self, *args: Any, examples: Examples = (), **attributes: Any) -> None:
        super().__init__(*args, **attributes)
        self.examples = tuple(examples)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the command's own options, then those that every command has."""
        own: list[tuple[str, str]] = []
        common: list[tuple[str, str]] = []
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record is not None and not isinstance(parameter, click.Argument):
                (common if isinstance(parameter, CommonOption) else own).append(record)
        for title, records in (("Options", own), ("Common options", common)):
            if records:
                with formatter.section(title):
                    formatter.write_dl(records)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the examples."""
        super().format_epilog(ctx, formatter)
        if self.examples:
            with formatter.section("Examples"):
                for line, meaning in self.examples:
                    formatter.write(f"{'':>{formatter.current_indent}}{line}\n")
                    with formatter.indentation():
                        formatter.write_text(meaning)


def fill_watch(words: Sequence[str]) -> list[str]:
    """Return the words with an interval behind each `--watch`.

    What follows it is its interval only if it looks like one: `topic describe --watch events`.
    """
    filled: list[str] = []
    intervals = re.compile(r"[0-9.]+(ms|s|min)?")
    for position, word in enumerate(words):
        following = words[position + 1] if position + 1 < len(words) else ""
        lacks = word == WATCH and not intervals.fullmatch(following)
        filled.append(f"{WATCH}={WATCH_INTERVAL}" if lacks else word)
    return filled


class ExampleCommand(_Exemplary):
    """A command with examples; `--watch` may stand without its interval."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the arguments."""
        return super().parse_args(ctx, fill_watch(args))


class LazyGroup(_Exemplary, click.Group):
    """A group whose commands stand in a table and are loaded one by one."""

    def __init__(self, *args: Any, table: Table | None = None, **attributes: Any) -> None:
        super().__init__(*args, **attributes)
        self.table = table or {}

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names in the order of the table."""
        return [*self.table, *super().list_commands(ctx)]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Load and return a command."""
        if cmd_name not in self.table:
            return super().get_command(ctx, cmd_name)
        module, _, attribute = self.table[cmd_name][0].partition(":")
        command: click.Command = getattr(importlib.import_module(module), attribute)
        return command

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands before the options: they are what one looks for here."""
        self.format_commands(ctx, formatter)
        _Exemplary.format_options(self, ctx, formatter)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write names and first lines without loading what the table names."""
        docs = {name: doc for name, (_, doc) in self.table.items()}
        for name in super().list_commands(ctx):
            command = super().get_command(ctx, name)
            docs[name] = command.get_short_help_str(90) if command is not None else ""
        if docs:
            with formatter.section("Commands"):
                formatter.write_dl(list(docs.items()))

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[Any]:
        """Complete names of commands, with their first lines."""
        completion = importlib.import_module("click.shell_completion")
        names = [
            completion.CompletionItem(name, help=doc)
            for name, (_, doc) in self.table.items()
            if name.startswith(incomplete)
        ]
        if not self.table:
            return super().shell_complete(ctx, incomplete)
        return [*names, *click.Command.shell_complete(self, ctx, incomplete)]
