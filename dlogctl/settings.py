"""Options that every command takes, before or after its name.

    dlogctl --bootstrap h:9092 topic list -o json
    dlogctl topic list --bootstrap h:9092 -o json

Both end in the one `Settings` of the invocation; what stands later wins.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

import click

from dlog.transport import Address

DEFAULT_BOOTSTRAP = "127.0.0.1:9092"
FORMATS = ("table", "wide", "json", "yaml", "tsv")

TIMEOUT_S_MIN = 0.1
_UNITS_S = {None: 1.0, "s": 1.0, "ms": 0.001, "min": 60.0}

Command = TypeVar("Command", bound=Callable[..., Any])


@dataclass(slots=True)
class Settings:
    """What the common options say."""

    bootstrap: tuple[Address, ...] = field(
        default_factory=lambda: parse_addresses(DEFAULT_BOOTSTRAP)
    )
    http: Address | None = None
    output: str = "table"
    headers: bool = True
    timeout_s: float = 5.0
    explain: bool = False
    debug: bool = False

    def suggest(self, command: str) -> None:
        """With --explain, name the command that one would run next."""
        if self.explain:
            click.echo(f"next: {command}", err=True)


def parse_addresses(text: str) -> tuple[Address, ...]:
    """Parse `host:port,host:port`; raise click.BadParameter."""
    try:
        addresses = tuple(Address.parse(part) for part in text.split(",") if part.strip())
    except ValueError as error:
        raise click.BadParameter(str(error)) from None
    if not addresses:
        raise click.BadParameter("no address")
    return addresses


def settings_of(context: click.Context) -> Settings:
    """Return the invocation's settings."""
    return context.ensure_object(Settings)


def _set_bootstrap(context: click.Context, _option: click.Parameter, value: str | None) -> None:
    if value is not None:
        settings_of(context).bootstrap = parse_addresses(value)


def _set_http(context: click.Context, _option: click.Parameter, value: str | None) -> None:
    if value is not None:
        (settings_of(context).http,) = parse_addresses(value)


def _set_output(context: click.Context, _option: click.Parameter, value: str | None) -> None:
    if value is not None:
        settings_of(context).output = value


def _set_no_headers(context: click.Context, _option: click.Parameter, value: bool) -> None:
    if value:
        settings_of(context).headers = False


def _set_timeout(context: click.Context, _option: click.Parameter, value: str | None) -> None:
    if value is None:
        return
    found = re.fullmatch(r"(\d+(?:\.\d*)?|\.\d+)\s*(ms|s|min)?", value.strip())
    if found is None:
        raise click.BadParameter(f"{value!r} is no time: 2, 2s, 500ms and 1min are")
    timeout_s = float(found[1]) * _UNITS_S[found[2]]
    if timeout_s < TIMEOUT_S_MIN:
        raise click.BadParameter(f"{value!r} is below {TIMEOUT_S_MIN} s")
    settings_of(context).timeout_s = timeout_s


def _set_explain(context: click.Context, _option: click.Parameter, value: bool) -> None:
    if value:
        settings_of(context).explain = True


def _set_debug(context: click.Context, _option: click.Parameter, value: bool) -> None:
    if value:
        settings_of(context).debug = True


_OPTIONS = (
    click.option(
        "--bootstrap",
        metavar="HOST:PORT,...",
        callback=_set_bootstrap,
        expose_value=False,
        help=f"Nodes to ask first (also DLOG_BOOTSTRAP; default {DEFAULT_BOOTSTRAP}).",
    ),
    click.option(
        "--http",
        metavar="HOST:PORT",
        callback=_set_http,
        expose_value=False,
        help="Where the node's /status is, when what the node says cannot be reached from here.",
    ),
    click.option(
        "-o",
        "--output",
        type=click.Choice(FORMATS),
        callback=_set_output,
        expose_value=False,
        help="Output format (default table).",
    ),
    click.option(
        "--no-headers",
        is_flag=True,
        callback=_set_no_headers,
        expose_value=False,
        help="Leave the header line of table, wide and tsv out.",
    ),
    click.option(
        "--timeout",
        metavar="SECONDS",
        callback=_set_timeout,
        expose_value=False,
        help="How long to try; 2s, 500ms are understood as well (default 5).",
    ),
    click.option(
        "--explain",
        is_flag=True,
        callback=_set_explain,
        expose_value=False,
        help="Say which command one would run next.",
    ),
    click.option(
        "--debug",
        is_flag=True,
        callback=_set_debug,
        expose_value=False,
        help="Show tracebacks.",
    ),
)


def common_options(command: Command) -> Command:
    """Add the common options to a command or group."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command
