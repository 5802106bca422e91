"""`dlogctl node restart`: one node restarted by hand, so that no producer notices."""

from collections.abc import Set
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn
from uuid import UUID

import click

from dlog.client.admin_views import Drain
from dlog.client.blocking import BlockingClient
from dlogctl import exit_codes
from dlogctl.cluster.cluster_view import look
from dlogctl.cluster.draining import hand_over, wait_drained
from dlogctl.cluster.lock_holding import Hold, holding
from dlogctl.cluster.maintenance import HeldByOthersError, held_back, permit_option
from dlogctl.cluster.partition_names import some
from dlogctl.cluster.returns import Left, epoch_of
from dlogctl.commands.node_restart import await_restartable, show
from dlogctl.commands.node_return import statuses_of, wait_back
from dlogctl.commands.restart_ways import Here, OverSsh, Told, Way
from dlogctl.groups import ExampleCommand
from dlogctl.interrupts import orderly_end
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
    every case, also when this command is interrupted. It holds the maintenance lock meanwhile,
    unless you give the token of yours. Exit code 10 when it was refused, the node is not back, or
    another operator works on the cluster (dlogctl maintenance show).
    """
    settings = settings_of(context)
    way = _way(ssh, unit, here, release, config)
    with orderly_end(), connected(settings) as client:
        if dry_run:
            risks = client.run(lambda: await_restartable(client, node_id, 0))
            show(Output(settings), node_id, risks)
            return exit_codes.OK if risks.may_restart else exit_codes.UNHEALTHY
        client.run(lambda: _expect_node(client, node_id))
        with holding(settings, client, f"restart of node {node_id}", node_id, token) as hold:
            one = _Restart(client, settings, node_id, way, patience, rollback, hold)
            try:
                one.run()
            except _RefusedError:
                return exit_codes.UNHEALTHY
    Output(settings).done(f"node {node_id} was restarted", node=node_id, result="restarted")
    settings.suggest("dlogctl status")
    return exit_codes.OK


async def _expect_node(client: BlockingClient, node_id: int) -> None:
    (await look(client)).node(node_id)


@dataclass(frozen=True, slots=True)
class _Restart:
    """One restart, under the lock. Each step says what is wrong and raises _RefusedError."""

    client: BlockingClient
    settings: Settings
    node_id: int
    way: Way
    patience_s: float
    rollback: bool
    hold: Hold | None

    def run(self) -> None:
        """Do it. Raises HeldByOthersError when another operator ended the lock and works now."""
        drained_before = self.client.run(self._drained_others)
        self._expect_restartable()
        refusal = self.way.check(self.node_id)
        if refusal is not None:
            self._refuse(refusal)
        since = self._epoch_before()
        drained = True
        try:
            self.drain()
            self.look_again(drained_before)
            self._go(since)
        except HeldByOthersError:
            drained = False  # not by us: another operator works on the cluster
            raise
        finally:
            if drained:
                self.client.run(lambda: self.client.admin.drain_node(self.node_id, Drain.NONE))
                say(f"node {self.node_id} is drained no longer", err=True)

    def _refuse(self, why: str) -> NoReturn:
        say(f"node {self.node_id} was not stopped: {why}", err=True)
        raise _RefusedError

    def _expect_restartable(self) -> None:
        node_id = self.node_id
        risks = self.client.run(lambda: await_restartable(self.client, node_id, self.patience_s))
        if not risks.may_restart:
            show(Output(self.settings), node_id, risks)
            raise _RefusedError

    async def _drained_others(self) -> set[int]:
        nodes = (await look(self.client)).nodes.values()
        return {e.node_id for e in nodes if e.drain is not Drain.NONE} - {self.node_id}

    def _epoch_before(self) -> int:
        """Return the epoch by which the restart will be noticed."""
        since = self.client.run(lambda: _epoch(self.client, self.settings, self.node_id))
        is_alone = len(self.client.run(lambda: look(self.client)).nodes) == 1
        if is_alone:
            words = f"node {self.node_id} is the only node: clients wait while it is down"
            if since < 0:
                self._refuse(f"{words}. When they can: sudo {self.way.command}")
            say(words, err=True)
        if since < 0:
            self._refuse(
                f"no node tells the epoch of node {self.node_id}, by which its restart would be"
                " noticed: run this where the nodes' http.address can be reached"
            )
        return since

    def drain(self) -> None:
        """Move what can move."""
        client, node_id = self.client, self.node_id
        token = self.hold.token if self.hold is not None else None

        async def drain() -> tuple[list[str], list[str]]:
            cluster = await look(client)
            with held_back():
                await client.admin.drain_node(node_id, Drain.LEADERS, token=token)
            told = await hand_over(client, cluster, node_id, ())
            if told is not None:
                say(told, err=True)
            left = await wait_drained(client, node_id, Drain.LEADERS, (), self.patience_s)
            return left.movable, left.kept_by_drains

        movable, kept = client.run(drain)
        if movable:
            self._refuse(f"its leaders do not move: {some(movable)}")
        if kept:
            self._refuse(f"only drained nodes could lead {some(kept)}; see: dlogctl node list")

    def look_again(self, drained_before: Set[int]) -> None:
        """Judge directly before the stop: the drain may have taken long."""
        if self.hold is not None:
            hold = self.hold
            try:
                self.client.run(lambda: hold.renew(self.client))
            except HeldByOthersError as error:
                self._refuse(str(error))
        self._expect_restartable()
        new = self.client.run(self._drained_others) - drained_before
        if new:
            self._refuse(
                f"meanwhile others were drained ({', '.join(map(str, sorted(new)))}): wait until"
                " that work has ended, see: dlogctl node list"
            )

    def _go(self, since: int) -> None:
        """Restart, wait, and take back what does not come back."""
        try:
            problem = self.way.restart(self.node_id, self.patience_s)
        except BaseException:
            # Whatever it was, a node that was stopped for this does not stay down.
            if self.rollback:
                self.way.take_back(self.patience_s)
            raise
        if problem is None:
            back = self._wait_back(since)
            if back.is_back:
                return
            problem = "; ".join(back.reasons)
        say(f"node {self.node_id} is not back: {problem}", err=True)
        if not self.rollback:
            raise _RefusedError
        undone = self.way.take_back(self.patience_s)
        if undone is not None:
            say(f"node {self.node_id}: {undone.told}", err=True)
        if undone is not None and undone.runs:
            for reason in self._wait_back(since).reasons:
                say(f"node {self.node_id} is not back: {reason}", err=True)
        raise _RefusedError

    def _wait_back(self, since: int) -> Left:
        return self.client.run(
            lambda: wait_back(self.client, self.settings, self.node_id, since, self.patience_s)
        )


async def _epoch(client: BlockingClient, settings: Settings, node_id: int) -> int:
    return epoch_of(node_id, await statuses_of(client, settings, await look(client)))
