"""`dlogctl maintenance`: the lock that keeps two operations from running beside each other."""

from typing import Any
from uuid import UUID, uuid4

import click

from dlogctl import exit_codes
from dlogctl.cluster.cluster_view import look
from dlogctl.cluster.maintenance import (
    LIFETIME_S_MAX,
    OWNER_LENGTH_MAX,
    facts_of,
    held_back,
    line_of,
    token_option,
)
from dlogctl.groups import ExampleCommand, LazyGroup
from dlogctl.output.documents import Column, Output
from dlogctl.output.escaping import say
from dlogctl.session import connected
from dlogctl.settings import common_options, settings_of, take_seconds
from dlogctl.shell.completion import complete_nodes

LIFETIME = "10min"
FACTS = ("owner", "node", "since", "expires")
HOLD_COLUMNS = tuple(Column(key.upper(), key) for key in ("token", *FACTS))
SHOW_COLUMNS = tuple(Column(key.upper(), key) for key in ("held", *FACTS))


@click.group(
    cls=LazyGroup,
    examples=(
        ('dlogctl maintenance hold --owner "upgrade by ann"', "Take it; prints the token."),
        ("dlogctl maintenance show", "Who works on the cluster?"),
        ("dlogctl maintenance release --force", "End a lock that its holder left behind."),
    ),
)
def maintenance() -> None:
    """Keep two operations from running beside each other on one cluster.

    The holder of the lock has a token. Without it no operator can hold the lock, drain a node or
    remove one, until the lock is released or has expired. An undrain is always possible.

    \b
    For a script:
      export DLOG_MAINTENANCE_TOKEN=$(dlogctl maintenance hold --owner "upgrade by ann")
      dlogctl node restart 2 && dlogctl maintenance hold --owner "upgrade by ann"
      dlogctl node restart 3 && dlogctl maintenance release
    """


def _take_owner(_context: click.Context, _option: click.Parameter, text: str) -> str:
    if not 1 <= len(text) <= OWNER_LENGTH_MAX or not text.isprintable():
        raise click.BadParameter(f"it is one line of 1 to {OWNER_LENGTH_MAX} letters")
    return text


def _take_lifetime(context: click.Context, option: click.Parameter, text: str) -> float:
    seconds = take_seconds(context, option, text)
    if seconds is None or seconds > LIFETIME_S_MAX:
        raise click.BadParameter("at most 60min; hold it again, before that, to work on")
    return seconds


@maintenance.command(
    "hold",
    cls=ExampleCommand,
    examples=(
        ('dlogctl maintenance hold --owner "upgrade by ann"', "For 10 minutes; prints the token."),
        ('dlogctl maintenance hold --owner "upgrade by ann" --for 60min', "For an hour."),
        (
            "dlogctl maintenance hold --owner ann --node 2"
            " --token 6a0f8c1e-0b5d-4a53-9c7e-3f1d2b4a5c6d",
            "Hold it on, and say that node 2 is next.",
        ),
    ),
)
@click.option("--owner", required=True, callback=_take_owner, metavar="TEXT",
              help="What is done, by whom; shown to all who have to wait.")  # fmt: skip
@token_option("--token", "Hold it on with the token from before")
@click.option("--node", "node_id", type=click.IntRange(min=0), metavar="NODE",
              shell_complete=complete_nodes, help="The node that is worked on.")  # fmt: skip
@click.option("--for", "lifetime_s", default=LIFETIME, show_default=True, callback=_take_lifetime,
              metavar="TIME", help="It expires after so long, unless it is held on.")  # fmt: skip
@common_options
@click.pass_context
def hold(
    context: click.Context, owner: str, token: UUID | None, node_id: int | None, lifetime_s: float
) -> int:
    """Take the lock, or hold it on with its token. Prints the token.

    Exit code 10 when another operator holds it; standard error says who.
    """
    settings = settings_of(context)
    token = token or uuid4()
    with connected(settings) as client:
        if node_id is not None:
            client.run(lambda: look(client)).node(node_id)
        with held_back():
            lock = client.run(
                lambda: client.admin.hold_maintenance(owner, token, node_id, lifetime_s)
            )
    facts = facts_of(lock)
    _write({"token": str(token), **facts}, HOLD_COLUMNS, Output(settings), str(token))
    if Output(settings).for_people:
        say(f"held by {line_of(facts)}", err=True)
    settings.suggest("dlogctl maintenance release")
    return exit_codes.OK


@maintenance.command(
    "release",
    cls=ExampleCommand,
    examples=(
        ("dlogctl maintenance release", "With the token in DLOG_MAINTENANCE_TOKEN."),
        (
            "dlogctl maintenance release --token 6a0f8c1e-0b5d-4a53-9c7e-3f1d2b4a5c6d",
            "With this token.",
        ),
        ("dlogctl maintenance release --force", "Of any holder: look who that is first."),
    ),
)
@token_option("--token", "The token that it is held with")
@click.option("--force", is_flag=True, help="End the lock of any holder.")
@common_options
@click.pass_context
def release(context: click.Context, token: UUID | None, force: bool) -> int:
    """End the lock. Nothing happens when it is free.

    Exit code 10 when another operator holds it; standard error says who.
    """
    settings = settings_of(context)
    if token is None and not force:
        raise click.UsageError("say which lock: --token UUID, or --force for any holder's")
    with connected(settings) as client, held_back():
        client.run(lambda: client.admin.release_maintenance(None if force else token))
    Output(settings).done("the maintenance lock is free", result="released")
    settings.suggest("dlogctl status")
    return exit_codes.OK


@maintenance.command(
    "show",
    cls=ExampleCommand,
    examples=(
        ("dlogctl maintenance show", "Who works on the cluster, since when, until when?"),
        ("dlogctl maintenance show -o json | jq .owner", "For a script."),
    ),
)
@common_options
@click.pass_context
def show(context: click.Context) -> int:
    """Show who holds the lock. Exit code 0 it is free, 10 it is held."""
    settings = settings_of(context)
    with connected(settings) as client:
        lock = client.run(client.admin.describe_maintenance)
    facts = dict.fromkeys(FACTS) if lock is None else facts_of(lock)
    text = "the maintenance lock is free" if lock is None else f"held by {line_of(facts)}"
    _write({"held": lock is not None, **facts}, SHOW_COLUMNS, Output(settings), text)
    settings.suggest("dlogctl status")
    return exit_codes.OK if lock is None else exit_codes.UNHEALTHY


def _write(
    document: dict[str, Any], columns: tuple[Column, ...], output: Output, text: str
) -> None:
    if output.for_people:
        say(text)
    elif output.has_documents:
        output.document(document)
    else:
        output.rows([document], columns)
