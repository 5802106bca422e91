"""`dlogctl context`: settings of several clusters, kept under names."""

from typing import Any

import click

from dlogctl import exit_codes
from dlogctl.contexts import HOST_PATH, changing, check_name, contexts_path
from dlogctl.groups import ExampleCommand, LazyGroup
from dlogctl.output.documents import Column, Output
from dlogctl.output.escaping import say
from dlogctl.settings import (
    SETTINGS,
    Settings,
    common_options,
    complete_contexts,
    settings_of,
)

COLUMNS = (
    Column("CURRENT", "current"),
    Column("CONTEXT", "context"),
    *(Column(name.upper(), name) for name in SETTINGS),
)
SETTING_COLUMNS = (
    Column("SETTING", "setting"),
    Column("VALUE", "value"),
    Column("FROM", "origin"),
)


def _check(_context: click.Context, _parameter: click.Parameter, name: str | None) -> str | None:
    return None if name is None else check_name(name)


@click.group(
    cls=LazyGroup,
    examples=(
        ("dlogctl context set prod --bootstrap n1:9092,n2:9092 --timeout 10s", "Keep it."),
        ("dlogctl context use prod", "Every command is about that cluster now."),
        ("dlogctl --context test topic list", "But for this one."),
    ),
)
def context() -> None:
    """Keep settings of several clusters under names.

    An option counts more than the environment (DLOG_BOOTSTRAP, DLOG_HTTP, DLOG_OUTPUT,
    DLOG_TIMEOUT), that more than the context, that more than the default. The context is that of
    --context, else DLOG_CONTEXT, else the one in use.
    """


@context.command(
    "list",
    cls=ExampleCommand,
    examples=(("dlogctl context list", "All contexts; the one in use is marked."),),
)
@common_options
@click.pass_context
def list_contexts(context: click.Context) -> int:
    """List the contexts."""
    settings = settings_of(context)
    contexts = settings.contexts
    in_use, _ = settings.context_name()
    output = Output(settings)
    rows: list[dict[str, Any]] = [
        {
            "context": name,
            "current": ("*" if name == in_use else "") if output.for_people else name == in_use,
            **dict.fromkeys(SETTINGS),
            **kept,
        }
        for name, kept in contexts.contexts.items()
    ]
    output.rows(rows, COLUMNS)
    if not rows and output.for_people:
        say("no context yet; make one: dlogctl context set NAME --bootstrap HOST:PORT",
                   err=True)  # fmt: skip
    settings.suggest("dlogctl context use NAME")
    return exit_codes.OK


@context.command(
    cls=ExampleCommand,
    examples=(("dlogctl context use prod", "From now on commands are about prod."),),
)
@click.argument("name", shell_complete=complete_contexts)
@common_options
@click.pass_context
def use(context: click.Context, name: str) -> int:
    """Use context NAME from now on."""
    settings = settings_of(context)
    settings.contexts.named(name, "asked for")
    with changing(contexts_path(settings.environ)) as contexts:
        contexts.current = name
    Output(settings).done(f"context {name} is in use", context=name, result="in use")
    settings.suggest("dlogctl status")
    return exit_codes.OK


@context.command(
    "set",
    cls=ExampleCommand,
    examples=(
        ("dlogctl context set prod --bootstrap n1:9092,n2:9092 --use", "Make it and use it."),
        ("dlogctl context set prod --timeout 10s -o wide", "Add to what it holds."),
        ("dlogctl context set prod --unset output", "Take something out."),
    ),
)
@click.argument("name", callback=_check, shell_complete=complete_contexts)
@click.option("--use", "in_use", is_flag=True, help="Use it from now on.")
@click.option("--unset", multiple=True, type=click.Choice(tuple(SETTINGS)), metavar="SETTING",
              help="Take a setting out; may be given many times.")  # fmt: skip
@common_options
@click.pass_context
def set_context(context: click.Context, name: str, in_use: bool, unset: tuple[str, ...]) -> int:
    """Make or change context NAME: it keeps the common options that are given here.

    The first context there is is used at once. A context of the host, in /etc/dlog/contexts.yaml,
    is copied and stays as it is there.
    """
    settings = settings_of(context)
    known = settings.contexts.contexts
    with changing(contexts_path(settings.environ)) as contexts:
        is_new = name not in known
        if is_new and "bootstrap" not in settings.given:
            raise click.UsageError(f"--bootstrap is missing: where cluster {name} is", context)
        if not settings.given and not unset and not in_use:
            raise click.UsageError("nothing to change: give --bootstrap, --timeout, ...", context)
        kept = {**known.get(name, {}), **contexts.contexts.get(name, {}), **settings.given}
        contexts.contexts[name] = {
            key: kept[key] for key in SETTINGS if key in kept and key not in unset
        }
        if in_use or (is_new and not known):
            contexts.current = name
    used = contexts.current == name
    text = f"context {name} {'made' if is_new else 'changed'}{', in use' if used else ''}"
    Output(Settings(environ={})).done(text)
    settings.suggest(f"dlogctl {'status' if used else f'context use {name}'}")
    return exit_codes.OK


@context.command(
    cls=ExampleCommand,
    examples=(("dlogctl context remove test", "Forget it; the cluster stays as it is."),),
)
@click.argument("name", shell_complete=complete_contexts)
@common_options
@click.pass_context
def remove(context: click.Context, name: str) -> int:
    """Forget context NAME. Nothing happens to the cluster."""
    settings = settings_of(context)
    current = settings.contexts.current
    output = settings.output if current != name else None
    settings.contexts.named(name, "asked for")
    with changing(contexts_path(settings.environ)) as contexts:
        if name not in contexts.contexts:
            raise click.ClickException(f"context {name} is the host's: edit {HOST_PATH} as root")
        del contexts.contexts[name]
        was_used = contexts.current == name
        if was_used:
            contexts.current = None
    text = f"context {name} removed{'; none is in use now' if was_used else ''}"
    shown = Settings(environ={}, given={"output": output} if output else settings.given)
    Output(shown).done(text, context=name, result="removed")
    settings.suggest("dlogctl context list")
    return exit_codes.OK


@context.command(
    cls=ExampleCommand,
    examples=(
        ("dlogctl context show", "Settings that commands would use now, and their origin."),
        ("dlogctl context show prod", "Settings with --context prod."),
    ),
)
@click.argument("name", required=False, shell_complete=complete_contexts)
@common_options
@click.pass_context
def show(context: click.Context, name: str | None) -> int:
    """Show the settings that hold, and where each comes from."""
    settings = settings_of(context)
    if name is not None:
        settings.context_option = name
    used, where = settings.context_name()
    rows: list[dict[str, Any]] = [
        {"setting": "context", "value": used, "origin": where if used is not None else "default"}
    ]
    for each in SETTINGS:
        text, origin = settings.text_of(each)
        rows.append({"setting": each, "value": text, "origin": origin})
    Output(settings).rows(rows, SETTING_COLUMNS)
    settings.suggest("dlogctl context list")
    return exit_codes.OK
