"""`dlogctl node drain`, `undrain` and `remove`."""

from collections.abc import Container, Mapping, Sequence
from functools import partial
from uuid import UUID

import click

from dlog.client.admin_views import Drain
from dlogctl import exit_codes
from dlogctl.cluster.cluster_view import Cluster, look, look_closely
from dlogctl.cluster.draining import Remainder, hand_over, homeless_of, left_on, wait_drained
from dlogctl.cluster.lock_holding import renewed
from dlogctl.cluster.maintenance import held_back, permit_option
from dlogctl.cluster.partition_names import some
from dlogctl.commands.controller_change import with_cure
from dlogctl.groups import ExampleCommand
from dlogctl.output.documents import Column, Output, format_count
from dlogctl.output.escaping import confirm, say
from dlogctl.session import connected
from dlogctl.settings import Settings, common_options, settings_of, take_seconds
from dlogctl.shell.completion import complete_nodes

PATIENCE = "5min"
COLUMNS = (Column("NODE", "node"), Column("RESULT", "result"), Column("LEFT", "left"))


def _report(node_id: int, drain: Drain, left: Remainder, patience_s: float) -> list[str]:
    """Return why a drain is not complete, nothing when it is."""
    found = []
    if left.movable:
        found.append(
            f"node {node_id}: nothing has moved for {patience_s:g} s, {len(left.movable)} left:"
            f" {some(left.movable)}; see: dlogctl node describe {node_id}, or end it:"
            f" dlogctl node undrain {node_id}"
        )
    if left.headless:
        found.append(
            f"node {node_id} keeps {format_count(len(left.headless), 'replica')} of which there is"
            f" no leader to copy from: {some(left.headless)}; bring a node back"
            " that was in sync, see: dlogctl partition list --leaderless"
        )
    if left.stuck and drain is Drain.REPLICAS:
        found.append(
            f"node {node_id} keeps {format_count(len(left.stuck), 'replica')} that no other node"
            " can take, for all that are up and not drained have one already:"
            f" {some(left.stuck)}; they move when there is another node, or go with: dlogctl"
            " topic alter TOPIC --replication-factor N"
        )
    elif left.kept_by_drains:
        numbers = [str(each) for each in sorted(left.drained)]
        found.append(
            f"node {node_id} still leads {format_count(len(left.kept_by_drains), 'partition')} that"
            f" only nodes could lead which are being drained as well ({', '.join(numbers)}):"
            f" {some(left.kept_by_drains)}; they go offline with it. Drain one node after the"
            f" other; now, end the drain of others: dlogctl node undrain {' '.join(numbers)}"
        )
    return found


def _kept(node_id: int, drain: Drain, left: Remainder) -> str | None:
    """Return what a node leads on because nobody else can: no drain could be more complete."""
    kept = set(left.kept_by_drains)
    alone = [each for each in left.stuck if each not in kept]
    if drain is Drain.REPLICAS or not alone:
        return None
    return (
        f"node {node_id} still leads {format_count(len(alone), 'partition')} that no other node in"
        f" sync can lead: {some(alone)}; they go offline with it. To avoid that, wait until"
        " others are in sync, or give them more replicas: dlogctl partition reassign --help"
    )


@click.command(
    cls=ExampleCommand,
    examples=(
        ("dlogctl node drain 2", "Its leaders move away; returns when it leads nothing."),
        ("dlogctl node drain 2 --replicas", "So that it can be removed: all its copies move."),
        ("dlogctl node drain 2 --no-wait", "Only say so; follow it with node list --watch."),
        ("dlogctl node drain 2 --dry-run", "Preview: what would move, and what could not."),
    ),
)
@click.argument("node_ids", nargs=-1, required=True, type=click.IntRange(min=0), metavar="NODE...",
                shell_complete=complete_nodes)  # fmt: skip
@click.option("--replicas", is_flag=True, help="Copies too, not only leaders.")
@click.option("--no-wait", is_flag=True, help="Do not wait until it is done.")
@click.option("--patience", default=PATIENCE, show_default=True, callback=take_seconds,
              metavar="TIME", help="Give up when nothing has moved for so long.")  # fmt: skip
@click.option("--keep-controller", is_flag=True, help="It may stay the controller.")
@click.option("--dry-run", is_flag=True, help="Say what would move, change nothing.")
@permit_option
@common_options
@click.pass_context
def drain(
    context: click.Context,
    node_ids: tuple[int, ...],
    replicas: bool,
    no_wait: bool,
    patience: float,
    keep_controller: bool,
    dry_run: bool,
    token: UUID | None,
) -> int:
    """Take leaders off nodes, and with --replicas everything; also the office of the controller.

    Remembered until `undrain`, over restarts of the nodes. Exit code 0 when everything that can
    move has moved; partitions that no other node in sync can lead are listed then. Exit code 10
    when something could move and does not, with --replicas when anything is left, when no other
    node could take anything, and when another operator works on the cluster (dlogctl maintenance
    show). Exit code 2 when the cluster cannot be reached, or has no such node.
    """
    settings = settings_of(context)
    kind = Drain.REPLICAS if replicas else Drain.LEADERS
    with renewed(settings, token), connected(settings) as client:
        cluster = client.run(lambda: look_closely(client) if replicas else look(client))
        for node_id in node_ids:
            cluster.node(node_id)
        _check_takers(cluster, node_ids)
        homeless = {each: homeless_of(cluster, each, node_ids) for each in node_ids}
        if dry_run:
            return _rehearse(settings, cluster, homeless, kind)
        for node_id in node_ids:
            with held_back():
                client.run(
                    lambda each=node_id: client.admin.drain_node(each, kind, token=token)  # type: ignore[misc]
                )
        lefts: dict[int, Remainder] = {}
        for node_id in node_ids:
            told = None
            if not keep_controller:
                told = client.run(
                    lambda each=node_id: hand_over(client, cluster, each, node_ids)  # type: ignore[misc]
                )
            if told is not None:
                say(told, err=True)
            if not no_wait:
                lefts[node_id] = client.run(
                    lambda each=node_id: wait_drained(  # type: ignore[misc]
                        client, each, kind, homeless[each], patience
                    )
                )
    return _conclude(settings, node_ids, kind, lefts, patience)


class _NoTakersError(click.ClickException):
    """Nothing can move now."""

    exit_code = exit_codes.UNHEALTHY


def _check_takers(cluster: Cluster, node_ids: Sequence[int]) -> None:
    """Raise _NoTakersError when no node would be left to take what is moved."""
    takers = [
        each
        for each in cluster.nodes.values()
        if not each.is_fenced and each.drain is Drain.NONE and each.node_id not in node_ids
    ]
    if takers:
        return
    if len(cluster.nodes) == 1:
        raise _NoTakersError(
            f"node {node_ids[0]} is the only node, so nothing can move. To restart it, wait until"
            " clients can do without it, then on its host: sudo systemctl restart dlogd.service"
        )
    raise _NoTakersError(
        "no other node is up and undrained, so nothing can move; see: dlogctl node list"
    )


def _rehearse(
    settings: Settings, cluster: Cluster, homeless: Mapping[int, Container[str]], kind: Drain
) -> int:
    output = Output(settings)
    verb = "take" if kind is Drain.REPLICAS else "lead"
    rows = []
    for node_id in homeless:
        left = left_on(cluster, node_id, kind, homeless[node_id])
        if output.for_people:
            say(f"node {node_id}: {format_count(len(left.movable), str(kind)[:-1])} would move")
            if left.stuck:
                say(f"node {node_id}: no other node can {verb} {some(left.stuck)}")
            if left.headless:
                say(f"node {node_id}: no node leads {some(left.headless)}")
        remains = left.headless + left.stuck
        rows.append({"node": node_id, "result": "would be drained", "left": remains})
    if not output.for_people:
        output.rows(rows, COLUMNS)
    settings.suggest(f"dlogctl node drain {next(iter(homeless))}")
    return exit_codes.OK


def _conclude(
    settings: Settings,
    node_ids: Sequence[int],
    kind: Drain,
    lefts: dict[int, Remainder],
    patience_s: float,
) -> int:
    output, code = Output(settings), exit_codes.OK
    rows = []
    for node_id in node_ids:
        left = lefts.get(node_id)
        problems = [] if left is None else _report(node_id, kind, left, patience_s)
        result = "draining" if left is None else "not drained" if problems else "drained"
        for problem in problems:
            code = exit_codes.UNHEALTHY
            say(problem, err=True)
        kept = None if left is None else _kept(node_id, kind, left)
        if kept is not None:
            say(kept, err=True)
        if output.for_people and not problems:
            holds = "holds nothing" if kind is Drain.REPLICAS else "leads nothing"
            if kept is not None:
                holds = "leads nothing that could move"
            say(f"node {node_id} {'is draining' if left is None else holds}")
        names = [] if left is None else left.movable + left.headless + left.stuck
        rows.append({"node": node_id, "result": result, "left": names})
    if not output.for_people:
        output.rows(rows, COLUMNS)
    settings.suggest(f"restart it, then: dlogctl node undrain {node_ids[0]}")
    return code


@click.command(
    cls=ExampleCommand,
    examples=(
        ("dlogctl node undrain 2", "Its leaders come back, some at a time."),
        ("dlogctl partition elect", "... or all at once."),
    ),
)
@click.argument("node_ids", nargs=-1, required=True, type=click.IntRange(min=0), metavar="NODE...",
                shell_complete=complete_nodes)  # fmt: skip
@common_options
@click.pass_context
def undrain(context: click.Context, node_ids: tuple[int, ...]) -> int:
    """Let nodes lead and take replicas again."""
    settings = settings_of(context)
    output = Output(settings)
    with connected(settings) as client:
        cluster = client.run(lambda: look(client))
        for node_id in node_ids:
            cluster.node(node_id)
        for node_id in node_ids:
            client.run(lambda each=node_id: client.admin.drain_node(each, Drain.NONE))  # type: ignore[misc]
            if output.for_people:
                say(f"node {node_id} is drained no longer")
        moving = client.run(client.admin.list_reassignments)
    if on := [f"{m.topic}-{m.partition}" for m in moving if set(node_ids) & set(m.removing)]:
        say(
            f"moves in progress continue: {some(on)}; to end them: dlogctl partition reassign"
            " --cancel, see: dlogctl partition reassignments",
            err=True,
        )
    if not output.for_people:
        rows = [{"node": node_id, "result": "undrained", "left": []} for node_id in node_ids]
        output.rows(rows, COLUMNS)
    settings.suggest("dlogctl partition elect")
    return exit_codes.OK


def _check_removal(cluster: Cluster, node_id: int) -> None:
    """Raise click.ClickException with the cure when a node cannot be forgotten now."""
    state = cluster.node(node_id)
    held = [f"{topic}-{each.partition}" for topic, each in cluster.held_by(node_id)]
    if cluster.voter(node_id) is not None:
        raise click.ClickException(
            f"node {node_id} votes on the metadata: remove it there first: dlogctl controller"
            f" remove {node_id}"
        )
    if held:
        raise click.ClickException(
            f"node {node_id} holds {format_count(len(held), 'replica')} ({some(held)}): move them"
            f" first: dlogctl node drain {node_id} --replicas"
        )
    if not state.is_fenced:
        raise click.ClickException(
            f"node {node_id} is running: stop it first (on its host: systemctl disable --now"
            " dlogd), then repeat this"
        )


@click.command(
    cls=ExampleCommand,
    examples=(
        ("dlogctl node drain 4 --replicas", "First: what it holds moves to others. Then stop it."),
        ("dlogctl node remove 4", "Asks first."),
        ("dlogctl node remove 4 --dry-run", "Could it be removed?"),
    ),
)
@click.argument(
    "node_id", type=click.IntRange(min=0), metavar="NODE", shell_complete=complete_nodes
)
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@click.option("--dry-run", is_flag=True, help="Say whether it could be removed, change nothing.")
@permit_option
@common_options
@click.pass_context
def remove(
    context: click.Context, node_id: int, yes: bool, dry_run: bool, token: UUID | None
) -> int:
    """Forget NODE, which is down, holds no replicas and does not vote on the metadata.

    Should it start again, it is a new node. Exit code 10 when another operator works on the cluster
    (dlogctl maintenance show).
    """
    settings = settings_of(context)
    with connected(settings) as client:
        cluster = client.run(lambda: look(client))
        _check_removal(cluster, node_id)
        if not dry_run:
            if not yes:
                confirm(f"Forget node {node_id}?")
            with held_back():
                forget = partial(client.admin.remove_node, node_id, token=token)
                with_cure(client, forget, "dlogctl node list")
    would = "would be forgotten" if dry_run else "is forgotten"
    result = "would be removed" if dry_run else "removed"
    Output(settings).done(f"node {node_id} {would}", node=node_id, result=result)
    settings.suggest("dlogctl node list")
    return exit_codes.OK
