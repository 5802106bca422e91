"""`dlogctl node restart`: one node restarted by hand, so that no producer notices."""

from pathlib import Path
from uuid import UUID

import click

from dlog.client.admin_views import Drain
from dlog.client.blocking import BlockingClient
from dlogctl import exit_codes
from dlogctl.cluster.cluster_view import look
from dlogctl.cluster.draining import hand_over, wait_drained
from dlogctl.cluster.maintenance import HeldByOthersError, held_back, permit_option
from dlogctl.cluster.partition_names import some
from dlogctl.cluster.returns import epoch_of
from dlogctl.commands.node_restart import await_restartable, show
from dlogctl.commands.node_return import statuses_of, wait_back
from dlogctl.commands.restart_ways import Here, OverSsh, Told, Way
from dlogctl.groups import ExampleCommand
from dlogctl.output.documents import Output
from dlogctl.output.escaping import say
from dlogctl.session import connected
from dlogctl.settings import Settings, common_options, settings_of, take_seconds
from dlogctl.shell.completion import complete_nodes

PATIENCE = "5min"
UNIT = "dlogd.service"


class _RefusedError(Exception):
    """It was not done, and why is said already."""


def _way(ssh: str | None, unit: str, here: bool, release: str | None, config: Path | None) -> Way:
    if here and ssh is not None:
        raise click.UsageError("--here and --ssh exclude each other")
    if here:
        return Here(unit, release, config)
    if release is not None or config is not None:
        raise click.UsageError("--release and --config need --here")
    return Told(unit) if ssh is None else OverSsh(unit, ssh)


@click.command(
    "restart",
    cls=ExampleCommand,
    examples=(
        ("dlogctl node restart 2", "Says what to type on its host, and when."),
        ("dlogctl node restart 2 --ssh admin@h2", "Does it there, with sudo."),
        ("sudo dlogctl node restart 2 --here", "On its host."),
        ("sudo dlogctl node restart 2 --here --release 0.2.0", "The same, to another release."),
        ("dlogctl node restart 2 --dry-run", "May it be restarted, and what would move?"),
    ),
)
@click.argument(
    "node_id", type=click.IntRange(min=0), metavar="NODE", shell_complete=complete_nodes
)
@click.option("--ssh", metavar="[USER@]HOST", help="Restart it there; without it, you are told to.")
@click.option("--here", is_flag=True, help="It runs on this host; needs root.")
@click.option("--unit", default=UNIT, show_default=True, help="Its unit of systemd.")
@click.option("--release", metavar="VERSION",
              help="With --here: the release that runs afterwards.")  # fmt: skip
@click.option("--config", metavar="FILE", type=click.Path(path_type=Path),
              help="With --here: it becomes /etc/dlog/dlog.yaml.")  # fmt: skip
@click.option("--rollback/--no-rollback", default=True, show_default=True,
              help="With --here: take both back when the node does not come back.")  # fmt: skip
@click.option("--patience", default=PATIENCE, show_default=True, callback=take_seconds,
              metavar="TIME", help="Give up when nothing has moved for so long.")  # fmt: skip
@click.option("--dry-run", is_flag=True, help="Only say whether it may be restarted.")
@permit_option
@common_options
@click.pass_context
def restart(
    context: click.Context,
    node_id: int,
    ssh: str | None,
    here: bool,
    unit: str,
    release: str | None,
    config: Path | None,
    rollback: bool,
    patience: float,
    dry_run: bool,
    token: UUID | None,
) -> int:
    """Restart NODE: pre-restart, drain, restart on its host, post-restart, undrain.

    With --ssh and --here a preflight on the host comes before the stop. The node is undrained in
    every case, also when this command is interrupted. Exit code 10 when it was refused, the node is
    not back, or another operator works on the cluster (dlogctl maintenance show).
    """
    settings = settings_of(context)
    way = _way(ssh, unit, here, release, config)
    with connected(settings) as client:
        risks = client.run(lambda: await_restartable(client, node_id, 0 if dry_run else patience))
        if not risks.may_restart or dry_run:
            show(Output(settings), node_id, risks)
            return exit_codes.OK if risks.may_restart else exit_codes.UNHEALTHY
        refusal = way.check(node_id)
        if refusal is not None:
            say(f"node {node_id} was not stopped: {refusal}", err=True)
            return exit_codes.UNHEALTHY
        since = client.run(lambda: _epoch(client, settings, node_id))
        if since < 0:
            say(f"no node tells the epoch of node {node_id}, by which its restart would be noticed:"
                " run this where the nodes' http.address can be reached; a node alone is restarted"
                f" by systemctl restart {unit}", err=True)  # fmt: skip
            return exit_codes.UNHEALTHY
        drained = True
        try:
            _drain(client, node_id, patience, token)
            _go(client, settings, node_id, since, way, patience, rollback)
        except HeldByOthersError:
            drained = False  # not by us: another operator works on the cluster
            raise
        except _RefusedError:
            return exit_codes.UNHEALTHY
        finally:
            if drained:
                client.run(lambda: client.admin.drain_node(node_id, Drain.NONE))
                say(f"node {node_id} is drained no longer", err=True)
    Output(settings).done(f"node {node_id} was restarted", node=node_id, result="restarted")
    settings.suggest("dlogctl status")
    return exit_codes.OK


async def _epoch(client: BlockingClient, settings: Settings, node_id: int) -> int:
    return epoch_of(node_id, await statuses_of(client, settings, await look(client)))


def _drain(client: BlockingClient, node_id: int, patience_s: float, token: UUID | None) -> None:
    """Move what can move; raise _RefusedError when something does not, and that was said."""

    async def drain() -> tuple[list[str], list[str]]:
        cluster = await look(client)
        with held_back():
            await client.admin.drain_node(node_id, Drain.LEADERS, token=token)
        told = await hand_over(client, cluster, node_id, ())
        if told is not None:
            say(told, err=True)
        left = await wait_drained(client, node_id, Drain.LEADERS, (), patience_s)
        return left.movable, left.kept_by_drains

    stopped = f"node {node_id} was not stopped:"
    movable, kept = client.run(drain)
    if movable:
        say(f"{stopped} its leaders do not move: {some(movable)}", err=True)
        raise _RefusedError
    if kept:
        say(f"{stopped} only drained nodes could lead {some(kept)}; see: dlogctl node list",
            err=True)  # fmt: skip
        raise _RefusedError


def _go(
    client: BlockingClient,
    settings: Settings,
    node_id: int,
    since: int,
    way: Way,
    patience_s: float,
    rollback: bool,
) -> None:
    """Restart, wait; raise _RefusedError when that went wrong and was said."""
    try:
        problem = way.restart(node_id, patience_s)
    except BaseException:
        # Whatever it was, a node that was stopped for this does not stay down.
        if rollback:
            way.take_back(patience_s)
        raise
    if problem is None:
        back = client.run(lambda: wait_back(client, settings, node_id, since, patience_s))
        if back.is_back:
            return
        problem = "; ".join(back.reasons)
    say(f"node {node_id} is not back: {problem}", err=True)
    if not rollback:
        raise _RefusedError
    undone = way.take_back(patience_s)
    if undone is not None:
        say(f"node {node_id}: {undone.told}", err=True)
    if undone is not None and undone.runs:
        back = client.run(lambda: wait_back(client, settings, node_id, since, patience_s))
        for reason in back.reasons:
            say(f"node {node_id} is not back: {reason}", err=True)
    raise _RefusedError
