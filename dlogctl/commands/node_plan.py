"""`dlogctl node plan-restart`: who has to be restarted, in which order."""

import re
from datetime import UTC, datetime
from typing import Any

import click

from dlogctl import exit_codes
from dlogctl.cluster.cluster_view import look
from dlogctl.cluster.restart_plan import EVERY, Plan, Target, plan_of
from dlogctl.commands.node_return import statuses_of
from dlogctl.groups import ExampleCommand
from dlogctl.output.documents import Column, Output
from dlogctl.output.escaping import say
from dlogctl.session import connected
from dlogctl.settings import common_options, settings_of
from dlogd.config.config_digest import LENGTH

COLUMNS = (
    Column("NODE", "node", right=True),
    Column("RACK", "rack"),
    Column("CONTROLLER", "controller"),
    Column("WHY", "reasons"),
)
_DIGEST = re.compile(rf"(?:(\d+)=)?([0-9a-f]{{{LENGTH}}})")


def _digests(
    _context: click.Context, _parameter: click.Parameter, texts: tuple[str, ...]
) -> dict[int, str]:
    found = {}
    for text in texts:
        match = _DIGEST.fullmatch(text)
        if match is None:
            raise click.BadParameter(
                f"{text!r} is no digest: 16 hexadecimal digits, or NODE=DIGEST; see: dlogctl config"
                " check FILE"
            )
        found[EVERY if match[1] is None else int(match[1])] = match[2]
    return found


def _moment(_context: click.Context, _parameter: click.Parameter, text: str | None) -> int | None:
    if text is None:
        return None
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        raise click.BadParameter(f"{text!r} is no time: write 2026-11-27T23:00:00Z") from error
    return int((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1000)


@click.command(
    "plan-restart",
    cls=ExampleCommand,
    examples=(
        ("dlogctl node plan-restart", "Nodes with changed keys that wait for a restart."),
        ("dlogctl node plan-restart --target-version 0.2.0", "Who runs another version?"),
        ("dlogctl node plan-restart --config-digest 2=0123456789abcdef", "Node 2 alone."),
        ("dlogctl node plan-restart --started-before 2026-11-27T23:00:00Z", "All of them, once."),
    ),
)
@click.option("--target-version", metavar="VERSION", help="What every node shall run.")
@click.option("--config-digest", "digests", multiple=True, callback=_digests,
              metavar="[NODE=]DIGEST", help="What its configuration shall be.")  # fmt: skip
@click.option("--started-before", "started_ms", callback=_moment, metavar="TIME",
              help="Who was started before is due, for whatever reason.")  # fmt: skip
@common_options
@click.pass_context
def plan_restart(
    context: click.Context,
    target_version: str | None,
    digests: dict[int, str],
    started_ms: int | None,
) -> int:
    """Say who has to be restarted, in which order, and why: the controller last.

    Exit code 10 when a node does not tell what it runs: it is down, or its HTTP address cannot be
    reached from here.
    """
    settings = settings_of(context)
    target = Target(version=target_version, digests=digests, started_after_ms=started_ms)

    async def gather() -> Plan:
        cluster = await look(client)
        return plan_of(cluster, await statuses_of(client, settings, cluster), target)

    with connected(settings) as client:
        plan = client.run(gather)
    output = Output(settings)
    rows: list[dict[str, Any]] = [
        {
            "node": each.node_id,
            "rack": each.rack,
            "controller": each.is_controller,
            "reasons": list(each.reasons),
        }
        for each in plan.due
    ]
    if output.has_documents:
        output.document({"due": rows, "unknown": list(plan.unknown)})
    else:
        output.rows(rows, COLUMNS)
    if output.for_people and not rows and not plan.unknown:
        say("no node has to be restarted", err=True)
    for node_id in plan.unknown:
        say(f"node {node_id} does not tell what it runs; see: dlogctl node describe {node_id}",
            err=True)  # fmt: skip
    if plan.due:
        settings.suggest(f"dlogctl node pre-restart {plan.due[0].node_id}")
    return exit_codes.UNHEALTHY if plan.unknown else exit_codes.OK
