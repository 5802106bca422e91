"""`dlogctl node restart`: one node restarted by hand, so that no producer notices."""

import shlex
import subprocess

import click

from dlog.client.admin_views import Drain
from dlog.client.blocking import BlockingClient
from dlogctl import exit_codes
from dlogctl.cluster.cluster_view import look
from dlogctl.cluster.draining import hand_over, wait_drained
from dlogctl.cluster.partition_names import some
from dlogctl.cluster.returns import epoch_of
from dlogctl.commands.node_restart import await_restartable, show
from dlogctl.commands.node_return import statuses_of, wait_back
from dlogctl.groups import ExampleCommand
from dlogctl.output.documents import Output
from dlogctl.output.escaping import say
from dlogctl.session import connected
from dlogctl.settings import Settings, common_options, settings_of, take_seconds
from dlogctl.shell.completion import complete_nodes

PATIENCE = "5min"
UNIT = "dlogd.service"
CHECK = "runuser -u dlog -- dlogd --preflight"


class _RefusedError(Exception):
    """It was not done, and why is said already."""


@click.command(
    "restart",
    cls=ExampleCommand,
    examples=(
        ("dlogctl node restart 2", "Says what to type on its host, and when."),
        ("dlogctl node restart 2 --ssh admin@h2", "Does it there, with sudo."),
        ("dlogctl node restart 2 --dry-run", "May it be restarted, and what would move?"),
    ),
)
@click.argument(
    "node_id", type=click.IntRange(min=0), metavar="NODE", shell_complete=complete_nodes
)
@click.option("--ssh", metavar="[USER@]HOST", help="Restart it there; without it, you are told to.")
@click.option("--unit", default=UNIT, show_default=True, help="Its unit of systemd.")
@click.option("--patience", default=PATIENCE, show_default=True, callback=take_seconds,
              metavar="TIME", help="Give up when nothing has moved for so long.")  # fmt: skip
@click.option("--dry-run", is_flag=True, help="Only say whether it may be restarted.")
@common_options
@click.pass_context
def restart(
    context: click.Context, node_id: int, ssh: str | None, unit: str, patience: float, dry_run: bool
) -> int:
    """Restart NODE: pre-restart, drain, restart on its host, post-restart, undrain.

    The new configuration is checked on the host before anything is stopped. The node is undrained
    in every case, also when this command is interrupted. Exit code 10 when it was refused, or the
    node is not back.
    """
    settings = settings_of(context)
    with connected(settings) as client:
        risks = client.run(lambda: await_restartable(client, node_id, 0 if dry_run else patience))
        if not risks.may_restart or dry_run:
            show(Output(settings), node_id, risks)
            return exit_codes.OK if risks.may_restart else exit_codes.UNHEALTHY
        if ssh is not None and _over_ssh(ssh, CHECK) != 0:
            say(f"node {node_id} was not stopped: a start would fail there", err=True)
            return exit_codes.UNHEALTHY
        since = client.run(lambda: _epoch(client, settings, node_id))
        if since < 0:
            say(f"no node tells the epoch of node {node_id}, by which its restart would be noticed:"
                " run this where the nodes' http.address can be reached; a node alone is restarted"
                f" by systemctl restart {unit}", err=True)  # fmt: skip
            return exit_codes.UNHEALTHY
        try:
            _go(client, settings, node_id, since, ssh, unit, patience)
        except _RefusedError:
            return exit_codes.UNHEALTHY
        finally:
            client.run(lambda: client.admin.drain_node(node_id, Drain.NONE))
            say(f"node {node_id} is drained no longer", err=True)
    Output(settings).done(f"node {node_id} was restarted", node=node_id, result="restarted")
    settings.suggest("dlogctl status")
    return exit_codes.OK


async def _epoch(client: BlockingClient, settings: Settings, node_id: int) -> int:
    return epoch_of(node_id, await statuses_of(client, settings, await look(client)))


def _go(
    client: BlockingClient,
    settings: Settings,
    node_id: int,
    since: int,
    ssh: str | None,
    unit: str,
    patience_s: float,
) -> None:
    """Drain, restart, wait; raise _RefusedError when that went wrong and was said."""

    async def drain() -> tuple[list[str], list[str]]:
        cluster = await look(client)
        await client.admin.drain_node(node_id, Drain.LEADERS)
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
    command = f"systemctl restart {shlex.quote(unit)}"
    if ssh is None:
        say(f"node {node_id} may be restarted now; on its host: sudo {command}", err=True)
    elif _over_ssh(ssh, command) != 0:
        say(f"node {node_id}: the restart on {ssh} failed, see: journalctl -u {unit}", err=True)
        raise _RefusedError
    back = client.run(lambda: wait_back(client, settings, node_id, since, patience_s))
    for reason in back.reasons:
        say(f"node {node_id} is not back: {reason}", err=True)
    if not back.is_back:
        raise _RefusedError


def _over_ssh(destination: str, command: str) -> int:
    """Run a command as root on a host; return its exit code. What it says is shown."""
    # A host that does not answer any more must not hold this up.
    options = ["-o", "ServerAliveInterval=5", "-o", "ServerAliveCountMax=3", "-o", "BatchMode=yes"]
    return subprocess.run(
        ["ssh", *options, "--", destination, f"sudo -n {command}"], check=False
    ).returncode
