"""`dlogctl node pre-restart`: what a restart of a node would do, before it is done."""

import asyncio
from typing import Any
from uuid import UUID

import click

from dlog.client.blocking import BlockingClient
from dlogctl import exit_codes
from dlogctl.cluster.cluster_view import look_closely
from dlogctl.cluster.lock_holding import renewed
from dlogctl.cluster.maintenance import permit_option
from dlogctl.cluster.risks import Risks, risks_of
from dlogctl.groups import ExampleCommand
from dlogctl.output.documents import Output
from dlogctl.output.escaping import say
from dlogctl.output.watch import Waiting
from dlogctl.session import connected
from dlogctl.settings import common_options, settings_of, take_seconds
from dlogctl.shell.completion import complete_nodes

NAMES_SHOWN = 20
LOOK_AGAIN_S = 0.5
LISTS = {
    "would_go_offline": "no other replica is in sync: offline while the node is down",
    "would_refuse_ack_all": "too few would be in sync: producers with ack all would have to wait",
    "could_lose_ack_leader": (
        "led here: uncopied records with ack leader are lost if the node does not"
        " return; a drain moves the leaders first"
    ),
    "replication_factor_1": "one copy only, and it is here",
}


async def _judge(client: BlockingClient, node_id: int) -> Risks:
    cluster = await look_closely(client)
    cluster.node(node_id)
    return risks_of(cluster, node_id)


async def await_restartable(
    client: BlockingClient, node_id: int, patience_s: float | None
) -> Risks:
    """Judge once, or until it may be restarted, or nothing changes any more; tell each change."""
    waiting, told = Waiting(patience_s or 0.0), ""
    while True:
        risks = await _judge(client, node_id)
        waiting.note(tuple(risks.reasons))
        if patience_s is None or risks.may_restart or waiting.is_over:
            return risks
        words = "; ".join(risks.reasons)
        if words != told:
            say(f"node {node_id} must not be restarted yet: {words}", err=True)
            told = words
        await asyncio.sleep(LOOK_AGAIN_S)


def show(output: Output, node_id: int, risks: Risks) -> None:
    """Say whether a node may be restarted, and what that would do."""
    lists: dict[str, list[str]] = {key: getattr(risks, key) for key in LISTS}
    if not output.for_people:
        document: dict[str, Any] = {
            "node": node_id,
            "may_restart": risks.may_restart,
            "reasons": risks.reasons,
            **lists,
        }
        if output.has_documents:
            output.document(document)
        else:
            output.pairs(list(document.items()))
        return
    verdict = "may be restarted" if risks.may_restart else "must not be restarted now"
    output.line(f"node {node_id} {verdict}", good=risks.may_restart)
    for reason in risks.reasons:
        output.line(f"  - {reason}")
    for key, names in lists.items():
        output.line(f"{key.replace('_', ' ')}: {len(names)}")
        if names:
            more = f", and {len(names) - NAMES_SHOWN} more" if len(names) > NAMES_SHOWN else ""
            output.line(f"  ({LISTS[key]})")
            output.line(f"  {', '.join(names[:NAMES_SHOWN])}{more}")


@click.command(
    "pre-restart",
    cls=ExampleCommand,
    examples=(
        ("dlogctl node pre-restart 2", "May it be restarted, and what would happen?"),
        ("dlogctl node pre-restart 2 && dlogctl node drain 2", "For a script: only if it may."),
        ("dlogctl node pre-restart 2 --patience 5min", "Wait until it may."),
        ("dlogctl node pre-restart 2 -o json | jq .would_go_offline", "One of the four lists."),
    ),
)
@click.argument(
    "node_id", type=click.IntRange(min=0), metavar="NODE", shell_complete=complete_nodes
)
@click.option("--patience", callback=take_seconds, metavar="TIME",
              help="Wait until it may; give up after so long without a change.")  # fmt: skip
@permit_option
@common_options
@click.pass_context
def pre_restart(
    context: click.Context, node_id: int, patience: float | None, token: UUID | None
) -> int:
    """Say whether NODE may be restarted, and what that would do to which partitions.

    Partitions whose replication factor is not above their min.insync.replicas are listed and do not
    count against it: nothing can be done about them. The wait renews the maintenance lock of a
    token. Exit code 0 it may, 10 not now.
    """
    settings = settings_of(context)
    with renewed(settings, token), connected(settings) as client:
        risks = client.run(lambda: await_restartable(client, node_id, patience))
    show(Output(settings), node_id, risks)
    if risks.may_restart:
        settings.suggest(f"dlogctl node drain {node_id}")
        return exit_codes.OK
    settings.suggest("dlogctl status")
    return exit_codes.UNHEALTHY
