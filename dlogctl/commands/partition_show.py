"""`dlogctl partition list` and `reassignments`."""

from collections.abc import Mapping
from typing import Any

import click

from dlog.client.views import ClusterView, PartitionView
from dlogctl import exit_codes
from dlogctl.cluster.moves import bytes_to_go, sizes_of
from dlogctl.cluster.partition_names import Partition, named
from dlogctl.groups import ExampleCommand
from dlogctl.output.documents import Column, Output, format_bytes
from dlogctl.output.escaping import say
from dlogctl.output.watch import Watch, watch_option
from dlogctl.session import connected
from dlogctl.settings import common_options, settings_of
from dlogctl.shell.completion import complete_topics

COLUMNS = (
    Column("TOPIC", "topic"),
    Column("PARTITION", "partition", right=True),
    Column("LEADER", "leader", right=True),
    Column("EPOCH", "leader_epoch", wide=True, right=True),
    Column("REPLICAS", "replicas"),
    Column("ISR", "isr"),
    Column("OFFLINE", "offline"),
)
MOVING_COLUMNS = (
    Column("TOPIC", "topic"),
    Column("PARTITION", "partition", right=True),
    Column("REPLICAS", "replicas"),
    Column("ADDING", "adding"),
    Column("REMOVING", "removing"),
    Column("IN SYNC", "in_sync"),
    Column("TO GO", "to_go", right=True),
)


def _row(topic: str, each: PartitionView) -> dict[str, Any]:
    return {
        "topic": topic,
        "partition": each.partition,
        "leader": each.leader if each.leader >= 0 else None,
        "leader_epoch": each.leader_epoch,
        "replicas": list(each.replicas),
        "isr": list(each.isr),
        "offline": list(each.offline),
    }


def _to_go(left: Mapping[int, int | None]) -> str:
    """Return what each new replica has to fetch yet."""
    return ", ".join(
        f"{node}: {'?' if size is None else format_bytes(size)}" for node, size in left.items()
    )


def _chosen(view: ClusterView, names: tuple[str, ...]) -> list[Partition]:
    if names:
        return named(view, names)
    return [
        (name, each.partition)
        for name in sorted(view.topics)
        for each in view.topics[name].partitions
    ]


@click.command(
    "list",
    cls=ExampleCommand,
    examples=(
        ("dlogctl partition list", "All partitions."),
        (
            "dlogctl partition list events --under-replicated",
            "Partitions of one topic that lack copies.",
        ),
        ("dlogctl partition list --node 2 --leaderless", "Partitions on node 2 without a leader."),
        (
            "dlogctl partition list --not-preferred -o json",
            "Led by another than the first replica.",
        ),
    ),
)
@click.argument("names", nargs=-1, metavar="[TOPIC|PARTITION]...", shell_complete=complete_topics)
@click.option("--node", type=click.IntRange(min=0), help="Only what has a replica there.")
@click.option("--leaderless", is_flag=True, help="Only partitions without a leader.")
@click.option("--under-replicated", is_flag=True, help="Only what has copies out of sync.")
@click.option(
    "--not-preferred", is_flag=True, help="Only what another than the first replica leads."
)
@watch_option
@common_options
@click.pass_context
def list_partitions(
    context: click.Context,
    names: tuple[str, ...],
    node: int | None,
    leaderless: bool,
    under_replicated: bool,
    not_preferred: bool,
    watch: float | None,
) -> int:
    """List partitions with their leaders and replicas."""
    settings = settings_of(context)
    watching = Watch(settings, watch, context.command_path)

    def is_wanted(each: PartitionView) -> bool:
        return (
            (node is None or node in each.replicas)
            and (not leaderless or each.leader < 0)
            and (not under_replicated or len(each.isr) < len(each.replicas))
            and (not not_preferred or each.leader != each.replicas[0])
        )

    def gather() -> list[dict[str, Any]]:
        view = client.run(client.admin.describe_topics)
        return [
            _row(topic, found)
            for topic, number in _chosen(view, names)
            if is_wanted(found := view.topics[topic].partitions[number])
        ]

    def show(rows: list[dict[str, Any]]) -> int:
        Output(settings, compact=watching.is_on).rows(rows, COLUMNS)
        return exit_codes.OK

    with connected(settings) as client:
        code = watching.run(gather, show)
    settings.suggest("dlogctl partition elect, dlogctl partition reassign --help")
    return code


@click.command(
    cls=ExampleCommand,
    examples=(
        ("dlogctl partition reassignments", "Present moves."),
        ("dlogctl partition reassignments --watch --exit-when-done", "Wait until nothing does."),
    ),
)
@click.argument("names", nargs=-1, metavar="[TOPIC|PARTITION]...", shell_complete=complete_topics)
@watch_option
@click.option("--exit-when-done", is_flag=True, help="With --watch: end when nothing moves.")
@common_options
@click.pass_context
def reassignments(
    context: click.Context, names: tuple[str, ...], watch: float | None, exit_when_done: bool
) -> int:
    """List the partitions whose replicas move now, and which of the new ones are in sync."""
    settings = settings_of(context)
    watching = Watch(settings, watch, context.command_path)
    count = 0

    def gather() -> list[dict[str, Any]]:
        view = client.run(client.admin.describe_topics)
        wanted = named(view, names) if names else None
        found = client.run(lambda: client.admin.list_reassignments(wanted))
        found = [each for each in found if each.topic in view.topics]
        states = [view.topics[each.topic].partitions[each.partition] for each in found]
        nodes = {node for each in found for node in each.adding}
        nodes |= {state.leader for state in states if state.leader >= 0}
        sizes = client.run(lambda: sizes_of(client.admin, nodes))
        return [
            {
                **each._asdict(),
                "in_sync": [node for node in each.adding if node in state.isr],
                "to_go_bytes": bytes_to_go(
                    (each.topic, each.partition), state.leader, each.adding, state.isr, sizes
                ),
            }
            for each, state in zip(found, states, strict=True)
        ]

    def show(rows: list[dict[str, Any]]) -> int:
        nonlocal count
        count = len(rows)
        shown = [
            {key: list(v) if isinstance(v, tuple) else v for key, v in row.items()} for row in rows
        ]
        output = Output(settings, compact=watching.is_on)
        if output.for_people:
            left = [_to_go(row["to_go_bytes"]) for row in rows]
            shown = [{**row, "to_go": text} for row, text in zip(shown, left, strict=True)]
        output.rows(shown, MOVING_COLUMNS)
        if not rows and output.for_people:
            say("nothing moves", err=True)
        return exit_codes.OK

    with connected(settings) as client:
        code = watching.run(gather, show, ends=lambda _: exit_when_done and count == 0)
    settings.suggest("dlogctl partition reassign --cancel PARTITION")
    return code
