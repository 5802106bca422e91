"""`dlogctl partition elect` and `reassign`."""

import json
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import UUID

import click

from dlog.client.admin_cluster import Outcomes
from dlog.client.admin_views import Election, ReassignmentView
from dlog.client.blocking import BlockingClient
from dlog.client.views import ClusterView, TopicView
from dlog.errors import (
    ElectionNotNeededError,
    NoReassignmentInProgressError,
    UnknownTopicOrPartitionError,
    WireError,
)
from dlogctl import exit_codes
from dlogctl.cluster.lock_holding import renewed
from dlogctl.cluster.maintenance import permit_option
from dlogctl.cluster.moves import (
    FOLLOWER,
    LEADER,
    Throttle,
    bytes_to_go,
    sizes_of,
    throttled_replicas,
)
from dlogctl.cluster.partition_names import Partition, name_of, named, one, parse_nodes, some
from dlogctl.groups import ExampleCommand
from dlogctl.interrupts import Interrupts
from dlogctl.output.documents import Column, Output, format_bytes, format_count
from dlogctl.output.escaping import confirm, say
from dlogctl.output.watch import Waiting
from dlogctl.session import connected
from dlogctl.settings import Settings, common_options, settings_of
from dlogctl.shell.completion import complete_topics
from dlogd.config.units import parse_bytes

LOOK_AGAIN_S = 0.5
ROWS_SHOWN = 50
COLUMNS = (
    Column("TOPIC", "topic"),
    Column("PARTITION", "partition", right=True),
    Column("RESULT", "result"),
    Column("ERROR", "error"),
    Column("REASON", "reason"),
)


def _row(key: Partition, error: WireError | None, done: str) -> dict[str, Any]:
    return {
        "topic": key[0],
        "partition": key[1],
        "result": done if error is None else "refused",
        "error": None if error is None else error.name,
        "reason": None if error is None else str(error),
    }


def tell(settings: Settings, outcomes: Mapping[Partition, WireError | None], done: str) -> int:
    """Say what became of each partition; return the exit code."""
    output = Output(settings)
    failed = {key: error for key, error in outcomes.items() if error is not None}
    if not output.for_people:
        output.rows([_row(key, error, done) for key, error in outcomes.items()], COLUMNS)
    else:
        say(f"{done}: {format_count(len(outcomes) - len(failed), 'partition')}")
        for key, error in list(failed.items())[:ROWS_SHOWN]:
            say(f"{name_of(key)}: {error.name}: {error}", err=True)
        if len(failed) > ROWS_SHOWN:
            say(f"and {len(failed) - ROWS_SHOWN} more: -o json", err=True)
    return exit_codes.FAILURE if failed else exit_codes.OK


@click.command(
    cls=ExampleCommand,
    examples=(
        ("dlogctl partition elect", "Preferred leaders for all partitions, where that is needed."),
        ("dlogctl partition elect events payments-3", "For a topic and a partition."),
        ("dlogctl partition elect events-0 --unclean", "Any replica, even if records are lost."),
    ),
)
@click.argument("names", nargs=-1, metavar="[TOPIC|PARTITION]...", shell_complete=complete_topics)
@click.option(
    "--unclean", is_flag=True, help="Any replica, if there is no leader; may lose records."
)
@click.option("-y", "--yes", is_flag=True, help="Do not ask before --unclean.")
@common_options
@click.pass_context
def elect(context: click.Context, names: tuple[str, ...], unclean: bool, yes: bool) -> int:
    """Make the first replica the leader where it is in sync; or, with --unclean, any replica.

    What has the leader that is wanted is left as it is.
    """
    if unclean and not names:
        raise click.UsageError("--unclean needs the names of partitions", context)
    settings = settings_of(context)
    election = Election.UNCLEAN if unclean else Election.PREFERRED
    with connected(settings) as client:
        wanted = named(client.run(client.admin.describe_topics), names) if names else None
        if unclean and not yes:
            confirm(
                f"Elect leaders for {format_count(len(wanted or ()), 'partition')} where there are"
                " none, although acknowledged records may be lost?"
            )
        outcomes = client.run(lambda: client.admin.elect_leaders(wanted, election))
    # Somebody who names a topic wants its leaders right; those that are right are no mistake.
    changed: Outcomes = {
        key: error
        for key, error in outcomes.items()
        if not isinstance(error, ElectionNotNeededError)
    }
    code = tell(settings, changed, "new leaders")
    settings.suggest("dlogctl partition list --not-preferred, dlogctl status")
    return code


def _take_targets(
    view: ClusterView, moves: Sequence[str], file: Path | None, cancel: bool
) -> dict[Partition, Sequence[int] | None]:
    """Return where replicas shall be, by partition; None ends a move. Raises click exceptions."""
    if cancel:
        return dict.fromkeys(named(view, moves))
    wanted: list[tuple[Partition, Sequence[int]]] = []
    for move in moves:
        name, equals, text = move.partition("=")
        if not equals:
            raise click.UsageError(f"{move!r} is not PARTITION=NODE,NODE,..., such as events-0=1,2")
        try:
            wanted.append((one(view, name), parse_nodes(text)))
        except ValueError as error:
            raise click.UsageError(str(error)) from None
    if file is not None:
        wanted += _read_plan(view, file)
    targets: dict[Partition, Sequence[int] | None] = {}
    for key, nodes in wanted:
        if targets.setdefault(key, nodes) != nodes:
            raise click.UsageError(f"{name_of(key)} is named twice, with other nodes each time")
    return targets


def _read_plan(view: ClusterView, file: Path) -> list[tuple[Partition, Sequence[int]]]:
    """Read a plan as kafka-reassign-partitions.sh takes it."""
    try:
        plan = json.loads(file.read_text(encoding="utf-8"))
        return [
            (
                one(view, f"{each['topic']}-{each['partition']}"),
                parse_nodes(",".join(map(str, each["replicas"]))),
            )
            for each in plan["partitions"]
        ]
    except (ValueError, KeyError, TypeError) as error:
        raise click.ClickException(
            f'{file}: no plan: {error!r}; it looks like {{"version": 1, "partitions": [{{"topic":'
            ' "events", "partition": 0, "replicas": [1, 2, 3]}]}'
        ) from None


def wait_moved(
    client: BlockingClient,
    targets: Mapping[Partition, Sequence[int]],
    patience_s: float = math.inf,
) -> Outcomes:
    """Return what became of each partition when none moves any more; tell progress.

    Raise for what is gone, and when nothing has moved for `patience_s`.
    """
    told: tuple[int, int] | None = None
    least: tuple[float, float] = (math.inf, math.inf)
    waiting = Waiting(patience_s)
    while left := client.run(lambda: client.admin.list_reassignments(targets)):
        now = len(left), _left_bytes(client, left)
        if now != told:
            told = now
            count = f"{format_count(now[0], 'partition')} of {len(targets)} still to move"
            say(f"{count}, {format_bytes(now[1])} to fetch", err=True)
        # Where records are written meanwhile, more may be left than before.
        if now < least:
            least = now
            waiting.move()
        elif waiting.is_over:
            names = some([f"{each.topic}-{each.partition}" for each in left])
            raise click.ClickException(
                f"nothing has moved for {patience_s:g} s, {len(left)} left: {names}; the moves"
                " continue, see: dlogctl partition reassignments"
            )
        time.sleep(LOOK_AGAIN_S)
    there = client.run(client.admin.describe_topics).topics
    gone = {topic: None for topic, _ in targets if topic not in there}
    if gone:
        raise UnknownTopicOrPartitionError(f"deleted before it was moved: {', '.join(gone)}")
    return {key: _unmoved(there[key[0]], key[1], nodes) for key, nodes in targets.items()}


def _unmoved(topic: TopicView, number: int, wanted: Sequence[int]) -> WireError | None:
    """Return what to say of a partition that moves no more and is elsewhere."""
    found = next((each.replicas for each in topic.partitions if each.partition == number), ())
    if set(found) == set(wanted):
        return None
    where = ",".join(map(str, found))
    return NoReassignmentInProgressError(
        f"the move was cancelled or replaced by another one; the replicas are {where}"
    )


def _left_bytes(client: BlockingClient, moving: Sequence[ReassignmentView]) -> int:
    """Return what all new replicas have to fetch yet, as far as is known."""
    view = client.run(client.admin.describe_topics)
    found = [
        (each, view.topics[each.topic].partitions[each.partition])
        for each in moving
        if each.topic in view.topics
    ]
    nodes = {node for each, state in found for node in (*each.adding, state.leader) if node >= 0}
    sizes = client.run(lambda: sizes_of(client.admin, nodes))
    return sum(
        size or 0
        for each, state in found
        for size in bytes_to_go(
            (each.topic, each.partition), state.leader, each.adding, state.isr, sizes
        ).values()
    )


def take_rate(_context: click.Context, _parameter: click.Parameter, text: str | None) -> int | None:
    """Parse bytes per second; raise BadParameter."""
    if text is None:
        return None
    try:
        rate = parse_bytes(text)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None
    if rate < 1:
        raise click.BadParameter("nothing would move")
    return rate


@click.command(
    cls=ExampleCommand,
    examples=(
        ("dlogctl partition reassign events-0=2,3,1", "Its replicas, the preferred leader first."),
        ("dlogctl partition reassign --file plan.json --wait", "Many, as Kafka's tool takes them."),
        (
            "dlogctl partition reassign events-0=2,3,4 --wait --throttle 20MiB",
            "Upper bound of the copy rate; removed when the command ends.",
        ),
        ("dlogctl partition reassign --cancel events-0", "Back to the old replicas."),
        ("dlogctl partition reassign --cancel events", "All moves of a topic."),
    ),
)
@click.argument("moves", nargs=-1, metavar="[PARTITION=NODE,...]...")
@click.option("--file", type=click.Path(exists=True, dir_okay=False, path_type=Path),
              help="A plan in the JSON of kafka-reassign-partitions.sh.")  # fmt: skip
@click.option("--cancel", is_flag=True, help="End the moves of the partitions or topics named.")
@click.option("--wait", is_flag=True, help="Wait until the new replicas are in sync.")
@click.option("--throttle", "rate", metavar="BYTES", callback=take_rate,
              help="With --wait: so much per second, such as 20MiB.")  # fmt: skip
@permit_option
@common_options
@click.pass_context
def reassign(
    context: click.Context,
    moves: tuple[str, ...],
    file: Path | None,
    cancel: bool,
    wait: bool,
    rate: int | None,
    token: UUID | None,
) -> int:
    """Move the replicas of partitions to the nodes named, the preferred leader first.

    The old replicas go when the new ones are in sync. Each partition is done or refused on its own.
    A throttle holds for each node, and is taken back when the command ends. The wait renews the
    maintenance lock of a token.
    """
    if rate is not None and not wait:
        raise click.UsageError("--throttle needs --wait, which removes it in the end", context)
    if not moves and file is None:
        raise click.UsageError("nothing to move: give PARTITION=NODE,NODE,... or --file", context)
    if cancel and (file is not None or wait or any("=" in each for each in moves)):
        raise click.UsageError("--cancel accepts only names of partitions or topics", context)
    settings = settings_of(context)
    with renewed(settings, token), connected(settings) as client:
        view = client.run(client.admin.describe_topics)
        targets = _take_targets(view, moves, file, cancel)
        if cancel:
            targets = _moving(client, targets, moves)
        with throttled(client, view, targets, rate):
            outcomes = client.run(lambda: client.admin.alter_reassignments(targets))
            if wait:
                begun = {key: targets[key] or () for key, each in outcomes.items() if each is None}
                outcomes |= wait_moved(client, begun)
    done = "cancelled" if cancel else "moved" if wait else "begun to move"
    code = tell(settings, outcomes, done)
    settings.suggest("dlogctl partition reassignments --watch --exit-when-done")
    return code


@contextmanager
def throttled(
    client: BlockingClient,
    view: ClusterView,
    targets: Mapping[Partition, Sequence[int] | None],
    rate: int | None,
) -> Iterator[None]:
    """Throttle the moves as long as it lasts."""
    wanted = {key: replicas for key, replicas in targets.items() if replicas is not None}
    configs = throttled_replicas(view, wanted)
    if rate is None or not configs:
        yield
        return
    throttle = Throttle(client.admin, configs, rate)
    with Interrupts() as interrupts:
        try:
            client.run(throttle.begin)
            with interrupts.waiting():
                yield
        finally:
            _unthrottle(client, throttle)


def _unthrottle(client: BlockingClient, throttle: Throttle) -> None:
    """Take throttles back, or say how."""
    try:
        client.run(throttle.end)
    except BaseException:
        say(
            f"the throttle may still be set; unset it: dlogctl config unset {LEADER}.rate"
            f" {FOLLOWER}.rate",
            err=True,
        )
        raise


def _moving(
    client: BlockingClient, targets: dict[Partition, Sequence[int] | None], names: Sequence[str]
) -> dict[Partition, Sequence[int] | None]:
    """Return what can be cancelled: of whole topics only the partitions that move."""
    moving = {(each.topic, each.partition) for each in client.run(client.admin.list_reassignments)}
    return {key: None for key in targets if key in moving or name_of(key) in names}
