"""`dlogctl partition rebalance`: replicas and leaders evened out over nodes, by few moves."""

import math
from typing import Any
from uuid import UUID

import click

from dlog.client.admin_views import Drain
from dlogctl import exit_codes
from dlogctl.cluster.cluster_view import Cluster, look_closely
from dlogctl.cluster.lock_holding import renewed
from dlogctl.cluster.maintenance import permit_option
from dlogctl.cluster.partition_names import Partition
from dlogctl.cluster.rebalance import Rebalance, Replicas
from dlogctl.commands.partition_change import take_rate, tell, throttled, wait_moved
from dlogctl.groups import ExampleCommand
from dlogctl.output.documents import Column, Output, format_count
from dlogctl.output.escaping import say
from dlogctl.session import connected
from dlogctl.settings import common_options, settings_of, take_seconds
from dlogctl.shell.completion import complete_nodes

COLUMNS = (
    Column("TOPIC", "topic"),
    Column("PARTITION", "partition", right=True),
    Column("REPLICAS", "replicas"),
    Column("NEW REPLICAS", "new_replicas"),
)
COUNT_COLUMNS = (
    Column("NODE", "node", right=True),
    Column("REPLICAS", "replicas", right=True),
    Column("THEN", "then", right=True),
    Column("PREFERRED", "leads", right=True),
    Column("THEN", "then_leads", right=True),
)


def _rebalance(cluster: Cluster, only_to: tuple[int, ...]) -> Rebalance:
    """Prepare a plan for the nodes that are up and take replicas; raise click.ClickException."""
    takers = [
        node.node_id
        for node in cluster.nodes.values()
        if not node.is_fenced and node.drain is Drain.NONE
    ]
    for node_id in only_to:
        cluster.node(node_id)
        if node_id not in takers:
            raise click.ClickException(
                f"node {node_id} is fenced or drained and takes no replicas; see: dlogctl node list"
            )
    if cluster.reassigning:
        count = format_count(len(cluster.reassigning), "partition")
        raise click.ClickException(
            f"{count} move already: wait for them, see: dlogctl partition reassignments"
        )
    present: dict[Partition, tuple[int, ...]] = {
        (topic, each.partition): tuple(each.replicas) for topic, each in cluster.partitions()
    }
    racks = {node.node_id: node.rack for node in cluster.nodes.values()}
    return Rebalance(present, racks, takers, only_to)


def _show(
    output: Output,
    present: Replicas,
    plan: Replicas,
    before: dict[int, tuple[int, int]],
    after: dict[int, tuple[int, int]],
) -> None:
    rows: list[dict[str, Any]] = [
        {
            "topic": topic,
            "partition": number,
            "replicas": list(present[topic, number]),
            "new_replicas": list(nodes),
        }
        for (topic, number), nodes in plan.items()
    ]
    counts: list[dict[str, Any]] = [
        {
            "node": node,
            "replicas": before[node][0],
            "then": after[node][0],
            "leads": before[node][1],
            "then_leads": after[node][1],
        }
        for node in after
    ]
    if output.has_documents:
        # What `partition reassign --file` and Kafka's own tool take.
        partitions = [
            {"topic": row["topic"], "partition": row["partition"], "replicas": row["new_replicas"]}
            for row in rows
        ]
        output.document({"version": 1, "partitions": partitions, "nodes": counts})
        return
    output.rows(rows, COLUMNS)
    if output.for_people:
        output.rows(counts, COUNT_COLUMNS, "nodes")


@click.command(
    cls=ExampleCommand,
    examples=(
        ("dlogctl partition rebalance --dry-run", "What would move, and what each node has then."),
        (
            "dlogctl partition rebalance --to 4 --throttle 20MiB --wait",
            "Give a new node its share.",
        ),
        ("dlogctl partition rebalance --dry-run -o json > plan.json", "For reassign --file."),
    ),
)
@click.option("--to", "only_to", multiple=True, type=click.IntRange(min=0), metavar="NODE",
              shell_complete=complete_nodes,
              help="Move replicas to this node only; may be given many times.")  # fmt: skip
@click.option("--wait", is_flag=True, help="Wait until the new replicas are in sync.")
@click.option("--throttle", "rate", metavar="BYTES", callback=take_rate,
              help="With --wait: so much per second, such as 20MiB.")  # fmt: skip
@click.option("--patience", callback=take_seconds, metavar="TIME",
              help="With --wait: give up when nothing has moved for so long.")  # fmt: skip
@click.option("--dry-run", is_flag=True, help="Show the moves, begin none.")
@permit_option
@common_options
@click.pass_context
def rebalance(
    context: click.Context,
    only_to: tuple[int, ...],
    wait: bool,
    rate: int | None,
    patience: float | None,
    dry_run: bool,
    token: UUID | None,
) -> int:
    """Even out replicas and preferred leaders over the nodes, by the least moves.

    Nodes that are fenced or drained take nothing. No partition is left on fewer racks than before.
    After it `dlogctl partition elect` makes the preferred leaders lead. The wait renews the
    maintenance lock of a token.
    """
    if rate is not None and not wait:
        raise click.UsageError("--throttle needs --wait, which removes it in the end", context)
    if patience is not None and not wait:
        raise click.UsageError("--patience needs --wait", context)
    settings = settings_of(context)
    output = Output(settings)
    with renewed(settings, token), connected(settings) as client:
        cluster = client.run(lambda: look_closely(client))
        moves = _rebalance(cluster, only_to)
        before = moves.counts()
        plan = moves.plan()
        if dry_run or not plan:
            _show(output, moves.present, plan, before, moves.counts())
            if not plan and output.for_people:
                say("replicas and leaders are even: nothing to move", err=True)
            settings.suggest("dlogctl partition rebalance --throttle 20MiB --wait")
            return exit_codes.OK
        with throttled(client, cluster.view, plan, rate):
            outcomes = client.run(lambda: client.admin.alter_reassignments(plan))
            if wait:
                begun = {key: plan[key] for key, error in outcomes.items() if error is None}
                outcomes |= wait_moved(client, begun, math.inf if patience is None else patience)
    code = tell(settings, outcomes, "moved" if wait else "begun to move")
    settings.suggest("dlogctl partition elect")
    return code
