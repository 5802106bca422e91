"""The manual page, made from the parser: nothing in it can be forgotten or out of date.

`docs/man/dlogctl.1` is its output (`make man`); a test compares them.
"""

import inspect
import re
from collections.abc import Iterator

import click

from dlogctl.settings import SETTINGS, CommonOption

ENVIRONMENT = (
    *((setting.variable, f"As {setting.option}.") for setting in SETTINGS.values()),
    ("DLOG_CONTEXT", "As --context."),
    ("NO_COLOR", "When set, no colours."),
    ("TERM", "With `dumb`, tables are plain and --watch appends instead of redrawing."),
    ("XDG_CONFIG_HOME", "Where dlog/contexts.yaml is; ~/.config when it is not set."),
)
EXIT_CODES = (
    ("0", "Done; for status: healthy."),
    ("1", "Any error that has no code of its own."),
    ("2", "The cluster cannot be reached."),
    ("10", "The cluster is reached and not healthy; a segment is damaged."),
    ("64", "Wrong usage."),
)
FILES = (
    ("~/.config/dlog/contexts.yaml", "The contexts; `dlogctl context` writes it."),
    ("/etc/dlog/contexts.yaml", "Contexts for all users of a host; a user's own win."),
    ("/etc/dlog/dlog.yaml", "The configuration of a node, read by dlogd."),
)


def escape(text: str) -> str:
    """Return text as roff takes it literally."""
    escaped = text.replace("\\", "\\e").replace("-", "\\-").replace("'", "\\(aq")
    return re.sub(r"^(?=[.'])", r"\\&", escaped, flags=re.MULTILINE)


def man_page(root: click.Command, version: str) -> str:
    """Return the page of `root` and all commands below it as roff (man(7))."""
    context = click.Context(root, info_name="dlogctl")
    lines = [
        '.\\" Made by `make man` from the parser; do not edit.',
        f'.TH DLOGCTL 1 "" "dlog {version}" "dlog"',
        ".SH NAME",
        "dlogctl \\- operate dlog clusters",
        ".SH SYNOPSIS",
        "\\fBdlogctl\\fR [\\fIOPTIONS\\fR] \\fICOMMAND\\fR [\\fIARGUMENTS\\fR]",
        ".SH DESCRIPTION",
        *_prose(root),
        ".SH COMMON OPTIONS",
        "Every command takes these, before or after its name; what stands later wins.",
        *_options(context, common=True),
        ".SH COMMANDS",
    ]
    for each in _leaves(context):
        lines += _command(each)
    for title, pairs in (
        ("ENVIRONMENT", ENVIRONMENT),
        ("FILES", FILES),
        ("EXIT STATUS", EXIT_CODES),
    ):
        lines.append(f".SH {title}")
        for name, text in pairs:
            lines += [".TP", f"\\fB{escape(name)}\\fR", escape(text)]
    lines += [".SH EXAMPLES", *_examples(root), ".SH SEE ALSO", "\\fBdlogd\\fR(1)"]
    return "\n".join(lines) + "\n"


def _leaves(context: click.Context) -> Iterator[click.Context]:
    """Yield a context for each command that does something, in the order of the tables."""
    command = context.command
    if not isinstance(command, click.Group):
        yield context
        return
    if command.invoke_without_command:
        yield context
    for name in command.list_commands(context):
        child = command.get_command(context, name)
        if child is not None and not child.hidden:
            yield from _leaves(click.Context(child, info_name=name, parent=context))


def _prose(command: click.Command) -> list[str]:
    lines: list[str] = []
    literal = False
    for paragraph in inspect.cleandoc(command.help or "").split("\n\n"):
        literal = paragraph.startswith("\b")
        lines.append(".PP")
        body = paragraph.removeprefix("\b\n")
        lines += [".nf", escape(body), ".fi"] if literal else [escape(body.replace("\n", " "))]
    return lines


def _command(context: click.Context) -> list[str]:
    command = context.command
    usage = " ".join(command.collect_usage_pieces(context))
    lines = [
        f".SS {escape(context.command_path.removeprefix('dlogctl '))}",
        f"\\fB{escape(context.command_path)}\\fR {escape(usage)}",
        *_prose(command),
        *_options(context, common=False),
    ]
    examples = _examples(command)
    return [*lines, ".PP", "Examples:", *examples] if examples else lines


def _options(context: click.Context, *, common: bool) -> list[str]:
    lines = []
    for parameter in context.command.get_params(context):
        if isinstance(parameter, CommonOption) is not common or "--help" in parameter.opts:
            continue
        record = parameter.get_help_record(context)
        if record is not None and isinstance(parameter, click.Option):
            lines += [".TP", f"\\fB{escape(record[0])}\\fR", escape(record[1])]
    return lines


def _examples(command: click.Command) -> list[str]:
    lines = []
    for line, meaning in getattr(command, "examples", ()):
        lines += [".TP", f"\\fB{escape(line)}\\fR", escape(meaning)]
    return lines
