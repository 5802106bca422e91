"""Options that every command takes, before or after its name, and where their values come from.

    dlogctl --bootstrap h:9092 topic list -o json
    dlogctl topic list --bootstrap h:9092 -o json

Both end in the one `Settings` of the invocation; what stands later wins. A setting that no option
gives comes from the environment, else from the context in use (`dlogctl.contexts`), else it has its
default. Light: `--help` and completion load this.
"""

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

import click

from dlog.address import Address
from dlogctl.contexts import Contexts, check_name, known_contexts
from dlogctl.output.escaping import say

FORMATS = ("table", "wide", "json", "yaml", "tsv")
CONTEXT_VARIABLE = "DLOG_CONTEXT"

TIMEOUT_S_MIN = 0.1
TIMEOUT_S_MAX = 366 * 86_400
SHOWN_MAX = 40
"""Letters of a wrong value."""
_UNITS_S = {None: 1.0, "s": 1.0, "ms": 0.001, "min": 60.0}

Command = TypeVar("Command", bound=Callable[..., Any])


def parse_seconds(text: str) -> float:
    """Parse `2`, `2s`, `500ms`, `1min`; raise ValueError with a message for people."""
    found = re.fullmatch(r"(\d+(?:\.\d*)?|\.\d+)\s*(ms|s|min)?", text.strip())
    if found is None:
        raise ValueError(f"{text!r} is not a duration; examples: 2, 2s, 500ms, 1min")
    seconds = float(found[1]) * _UNITS_S[found[2]]
    if seconds < TIMEOUT_S_MIN:
        raise ValueError(f"{text!r} is below {TIMEOUT_S_MIN} s")
    if seconds > TIMEOUT_S_MAX:
        shown = text if len(text) < SHOWN_MAX else f"{text[:SHOWN_MAX]}..."
        raise ValueError(f"{shown!r} is above {TIMEOUT_S_MAX} s, a year")
    return seconds


def take_seconds(
    _context: click.Context, _option: click.Parameter, text: str | None
) -> float | None:
    """Do what `parse_seconds` does, for an option; raise click.BadParameter."""
    try:
        return None if text is None else parse_seconds(text)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


def parse_addresses(text: str) -> tuple[Address, ...]:
    """Parse `host:port,host:port`; raise ValueError with a message for people."""
    addresses = tuple(Address.parse(part) for part in text.split(",") if part.strip())
    if not addresses:
        raise ValueError("no address")
    return addresses


def _parse_address(text: str) -> Address:
    found = parse_addresses(text)
    if len(found) != 1:
        raise ValueError(f"{text!r} is not one host:port")
    return found[0]


def _parse_output(text: str) -> str:
    if text not in FORMATS:
        raise ValueError(f"{text!r} is not one of {', '.join(FORMATS)}")
    return text


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting: its option, its variable, its default, how its text is read."""

    option: str
    variable: str
    default: str | None
    parse: Callable[[str], Any]


SETTINGS: Mapping[str, Setting] = {
    "bootstrap": Setting("--bootstrap", "DLOG_BOOTSTRAP", "127.0.0.1:9092", parse_addresses),
    "http": Setting("--http", "DLOG_HTTP", None, _parse_address),
    "output": Setting("--output", "DLOG_OUTPUT", "table", _parse_output),
    "timeout": Setting("--timeout", "DLOG_TIMEOUT", "5s", parse_seconds),
}


@dataclass(slots=True)
class Settings:
    """What the common options, the environment and the context say."""

    environ: Mapping[str, str] = field(default_factory=lambda: os.environ)
    given: dict[str, str] = field(default_factory=dict)
    """Texts of options, by the name of the setting."""
    context_option: str | None = None
    headers: bool = True
    explain: bool = False
    debug: bool = False
    _contexts: Contexts | None = None

    @property
    def bootstrap(self) -> tuple[Address, ...]:
        """Nodes to ask first."""
        addresses: tuple[Address, ...] = self._value("bootstrap")
        return addresses

    @property
    def http(self) -> Address | None:
        """Where a node's /status is, when somebody says so."""
        address: Address | None = self._value("http")
        return address

    @property
    def output(self) -> str:
        """Output format, one of `FORMATS`."""
        return str(self._value("output"))

    @property
    def timeout_s(self) -> float:
        """How long to try, seconds."""
        return float(self._value("timeout"))

    @property
    def contexts(self) -> Contexts:
        """The contexts of the user and of the host, read once."""
        if self._contexts is None:
            self._contexts = known_contexts(self.environ)
        return self._contexts

    def context_name(self) -> tuple[str | None, str]:
        """Return which context is in use and who says so."""
        if self.context_option is not None:
            return self.context_option, "--context"
        if name := self.environ.get(CONTEXT_VARIABLE):
            return name, CONTEXT_VARIABLE
        return self.contexts.current, str(self.contexts.where or self.contexts.path)

    def text_of(self, name: str) -> tuple[str | None, str]:
        """Return a setting's text and where it comes from."""
        setting = SETTINGS[name]
        if name in self.given:
            return self.given[name], setting.option
        if text := self.environ.get(setting.variable):
            return text, setting.variable
        context, where = self.context_name()
        if context is not None:
            kept = self.contexts.named(context, where)
            if name in kept and not (name == "http" and self._is_elsewhere()):
                return kept[name], f"context {context}"
        return setting.default, "default"

    def _is_elsewhere(self) -> bool:
        """Whether another cluster is named than that of the context, whose nodes are not there."""
        return "bootstrap" in self.given or bool(self.environ.get(SETTINGS["bootstrap"].variable))

    def _value(self, name: str) -> Any:
        text, origin = self.text_of(name)
        if text is None:
            return None
        try:
            return SETTINGS[name].parse(text)
        except ValueError as error:
            raise click.UsageError(f"{origin}: {error}") from None

    def suggest(self, command: str) -> None:
        """With --explain, name the command that one would run next."""
        if self.explain:
            say(f"next: {command}", err=True)


def settings_of(context: click.Context) -> Settings:
    """Return the invocation's settings."""
    return context.ensure_object(Settings)


class CommonOption(click.Option):
    """An option that every command has; help and manual show them apart from the others."""


def _take(name: str) -> Callable[[click.Context, click.Parameter, str | None], None]:
    """Return a callback that notes an option's text; raises click.BadParameter."""

    def callback(context: click.Context, _option: click.Parameter, text: str | None) -> None:
        if text is None:
            return
        try:
            SETTINGS[name].parse(text)
        except ValueError as error:
            raise click.BadParameter(str(error)) from None
        settings_of(context).given[name] = text

    return callback


def _set_context(context: click.Context, _option: click.Parameter, value: str | None) -> None:
    if value is not None:
        settings_of(context).context_option = check_name(value)


def _set_no_headers(context: click.Context, _option: click.Parameter, value: bool) -> None:
    if value:
        settings_of(context).headers = False


def _set_explain(context: click.Context, _option: click.Parameter, value: bool) -> None:
    if value:
        settings_of(context).explain = True


def _set_debug(context: click.Context, _option: click.Parameter, value: bool) -> None:
    if value:
        settings_of(context).debug = True


def complete_contexts(context: click.Context, _parameter: click.Parameter, text: str) -> list[str]:
    """Return the names of contexts that begin with `text`."""
    try:
        names = settings_of(context).contexts.contexts
    except click.ClickException:
        return []
    return [name for name in names if name.startswith(text)]


def _option(*names: str, **attributes: Any) -> Callable[[Command], Command]:
    return click.option(*names, cls=CommonOption, expose_value=False, **attributes)


_OPTIONS = (
    _option(
        "--bootstrap", metavar="HOST:PORT,...", callback=_take("bootstrap"),
        help="Nodes to ask first (DLOG_BOOTSTRAP; default 127.0.0.1:9092).",
    ),
    _option(
        "--context", metavar="NAME", callback=_set_context, shell_complete=complete_contexts,
        help="Settings kept by `dlogctl context` (DLOG_CONTEXT).",
    ),
    _option(
        "--http", metavar="HOST:PORT", callback=_take("http"),
        help="Where the node's /status is, when what the node says cannot be reached from here "
        "(DLOG_HTTP).",
    ),
    _option(
        "-o", "--output", type=click.Choice(FORMATS), callback=_take("output"),
        help="Output format (DLOG_OUTPUT; default table).",
    ),
    _option(
        "--no-headers", is_flag=True, callback=_set_no_headers,
        help="Leave the header line of table, wide and tsv out.",
    ),
    _option(
        "--timeout", metavar="SECONDS", callback=_take("timeout"),
        help="How long to try; 2s, 500ms are understood as well (DLOG_TIMEOUT; default 5s).",
    ),
    _option(
        "--explain", is_flag=True, callback=_set_explain,
        help="Say what things mean, and which command one would run next.",
    ),
    _option("--debug", is_flag=True, callback=_set_debug, help="Show tracebacks."),
)  # fmt: skip


def common_options(command: Command) -> Command:
    """Add the common options to a command or group."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command
