"""`dlogctl node post-restart`: whether a node is back in everything, waited for by progress."""

import asyncio
import time
from uuid import UUID

import click

from dlog.client.blocking import BlockingClient
from dlog.errors import NONE, DlogError, TransportError
from dlogctl import exit_codes
from dlogctl.cluster.cluster_view import Cluster, look
from dlogctl.cluster.http_status import ask_all
from dlogctl.cluster.lock_holding import renewed
from dlogctl.cluster.maintenance import permit_option
from dlogctl.cluster.returns import Left, Progress, Statuses, left_of
from dlogctl.groups import ExampleCommand
from dlogctl.output.documents import Output, format_duration
from dlogctl.output.escaping import say
from dlogctl.output.watch import Waiting
from dlogctl.session import connected
from dlogctl.settings import Settings, common_options, settings_of, take_seconds
from dlogctl.shell.completion import complete_nodes

LOOK_AGAIN_S = 0.5
PATIENCE = "5min"


async def statuses_of(client: BlockingClient, settings: Settings, cluster: Cluster) -> Statuses:
    """Ask all nodes for their status."""
    asked = await ask_all(client, settings, cluster.nodes.values())
    return {node_id: each.status for node_id, each in asked.items()}


async def _failed_directories(client: BlockingClient, node_id: int) -> list[str]:
    try:
        views = await client.admin.describe_log_dirs(node_id)
    except DlogError:
        return []  # it does not answer: that shows elsewhere
    return [f"{each.path} is out of service" for each in views if each.error_code != NONE]


async def _look(
    client: BlockingClient, settings: Settings, node_id: int, since: int | None
) -> Left:
    cluster = await look(client)
    cluster.node(node_id)
    statuses = await statuses_of(client, settings, cluster)
    failed = await _failed_directories(client, node_id)
    return left_of(cluster, node_id, statuses, failed, since)


async def wait_back(
    client: BlockingClient, settings: Settings, node_id: int, since: int | None, patience_s: float
) -> Left:
    """Return when the node is back, or when nothing has moved for `patience_s`; 0: look once."""
    progress, waiting, told = Progress(), Waiting(patience_s), ""
    while True:
        is_late = waiting.is_over
        try:
            left = await _look(client, settings, node_id, since)
        except TransportError as error:
            # The node that was asked may be the one that restarts.
            if is_late:
                raise
            words = str(error)
        else:
            if left.is_back:
                return left
            if progress.note(left):
                waiting.move()
            elif is_late:
                return left
            if patience_s == 0:
                return left
            words = "; ".join(left.reasons)
        if words != told:
            say(f"node {node_id}: {words}", err=True)
            told = words
        await asyncio.sleep(LOOK_AGAIN_S)


@click.command(
    "post-restart",
    cls=ExampleCommand,
    examples=(
        ("dlogctl node post-restart 2", "Wait until node 2 is back in everything."),
        ("dlogctl node post-restart 2 --since 17", "It must have registered after epoch 17."),
        ("dlogctl node post-restart 2 --no-wait", "Only look."),
    ),
)
@click.argument(
    "node_id", type=click.IntRange(min=0), metavar="NODE", shell_complete=complete_nodes
)
@click.option("--since", type=click.IntRange(min=-1), metavar="EPOCH",
              help="The epoch that it had before; see: dlogctl node describe.")  # fmt: skip
@click.option("--no-wait", is_flag=True, help="Look once.")
@click.option("--patience", default=PATIENCE, show_default=True, callback=take_seconds,
              metavar="TIME", help="Give up when nothing has moved for so long.")  # fmt: skip
@permit_option
@common_options
@click.pass_context
def post_restart(
    context: click.Context,
    node_id: int,
    since: int | None,
    no_wait: bool,
    patience: float,
    token: UUID | None,
) -> int:
    """Wait until NODE is back: registered, in the ISR of all its partitions, its disks online.

    It waits as long as there is progress: partitions and bytes that are left shrink, recovery
    counts. What is wrong with other nodes is named and does not count. The wait renews the
    maintenance lock of a token. Exit code 0 it is back, 10 it is not, and nothing moves.
    """
    settings = settings_of(context)
    output = Output(settings)
    begun = time.monotonic()
    with renewed(settings, token), connected(settings) as client:
        left = client.run(
            lambda: wait_back(client, settings, node_id, since, 0 if no_wait else patience)
        )
    if not output.for_people:
        found = {
            "node": node_id,
            "is_back": left.is_back,
            "reasons": left.reasons,
            "elsewhere": left.elsewhere,
        }
        if output.has_documents:
            output.document(found)
        else:
            output.pairs(list(found.items()))
    else:
        for each in left.elsewhere:
            say(f"not of node {node_id}: {each}", err=True)
        if left.is_back:
            after = format_duration(time.monotonic() - begun)
            output.line(f"node {node_id} is back (after {after})", good=True)
        else:
            stood = "" if no_wait else f", and nothing has moved for {patience:g} s"
            output.line(f"node {node_id} is not back{stood}", good=False)
            for reason in left.reasons:
                output.line(f"  - {reason}")
    settings.suggest(f"dlogctl node undrain {node_id}" if left.is_back else "dlogctl status")
    return exit_codes.OK if left.is_back else exit_codes.UNHEALTHY
