"""`dlogctl node list` and `describe`."""

from typing import Any

import click

from dlog.client.admin_views import NodeState
from dlog.client.blocking import BlockingClient
from dlog.client.views import NodeView
from dlogctl import exit_codes
from dlogctl.cluster.cluster_view import Cluster, look
from dlogctl.cluster.http_status import Asked, ask_all, ask_node
from dlogctl.groups import ExampleCommand
from dlogctl.output.documents import Column, Output, format_duration, format_time
from dlogctl.output.escaping import say
from dlogctl.output.watch import Watch, watch_option
from dlogctl.session import connected
from dlogctl.settings import Settings, common_options, settings_of
from dlogctl.shell.completion import complete_nodes

COLUMNS = (
    Column("NODE", "node", right=True),
    Column("ADDRESS", "address"),
    Column("RACK", "rack"),
    Column("STATE", "state"),
    Column("DRAIN", "drain", wide=True),
    Column("METADATA", "metadata"),
    Column("LEADS", "leads", right=True),
    Column("REPLICAS", "replicas", right=True),
    Column("OUT OF SYNC", "out_of_sync", right=True),
    Column("VERSION", "version", wide=True),
    Column("STARTED", "started", wide=True),
    Column("CONFIG", "config_digest", wide=True),
    Column("WAITING KEYS", "waiting_keys", wide=True),
)
PARTITION_COLUMNS = (
    Column("TOPIC", "topic"),
    Column("PARTITION", "partition", right=True),
    Column("LEADS", "leads"),
    Column("IN SYNC", "in_sync"),
    Column("REPLICAS", "replicas"),
    Column("ISR", "isr"),
)
MEANINGS = (
    (
        "STATE",
        "fenced: it is down, or cannot be reached, and leads nothing; drained: by an operator",
    ),
    ("METADATA", "what it is for the metadata: controller, voter, observer"),
    ("LEADS", "partitions that it leads; REPLICAS: those of which it has a copy"),
    ("OUT OF SYNC", "copies that lack something, and catch up"),
    ("STARTED", "start of its process; VERSION: of the software that runs"),
    ("CONFIG", "digest of its configuration in use: compare it with that of a file"),
    ("WAITING KEYS", "changed in its file, and in use after a restart only"),
)


def _row(cluster: Cluster, state: NodeState) -> dict[str, Any]:
    held = [each for _, each in cluster.held_by(state.node_id)]
    return {
        "node": state.node_id,
        "address": str(state.address),
        "rack": state.rack,
        "state": cluster.state_of(state),
        "drain": str(state.drain),
        "metadata": cluster.part_of(state.node_id),
        "leads": sum(each.leader == state.node_id for each in held),
        "replicas": len(held),
        "out_of_sync": sum(state.node_id not in each.isr for each in held),
    }


@click.command(
    "list",
    cls=ExampleCommand,
    examples=(
        ("dlogctl node list", "All nodes, those that are down too."),
        ("dlogctl node list --watch 1s", "Follow a drain or a restart."),
        ("dlogctl node list -o json | jq '.[] | select(.state != \"active\")'", "For a script."),
    ),
)
@watch_option
@common_options
@click.pass_context
def list_nodes(context: click.Context, watch: float | None) -> int:
    """List all nodes: up or not, what they lead and hold."""
    settings = settings_of(context)
    watching = Watch(settings, watch, context.command_path)

    def show(rows: list[dict[str, Any]]) -> int:
        output = Output(settings, compact=watching.is_on)
        output.rows(rows, COLUMNS)
        _explain(settings, output)
        return exit_codes.OK

    def gather() -> list[dict[str, Any]]:
        cluster = client.run(lambda: look(client))
        rows = [_row(cluster, each) for each in cluster.nodes.values()]
        if settings.output == "table":
            return rows
        asked = client.run(lambda: ask_all(client, settings, cluster.nodes.values()))
        return [{**row, **_own(asked[row["node"]])} for row in rows]

    with connected(settings) as client:
        code = watching.run(gather, show)
    settings.suggest("dlogctl node describe NODE")
    return code


def _own(asked: Asked) -> dict[str, Any]:
    """Return what a node says of its process; nothing of what it does not say."""
    status = asked.status or {}
    config = status.get("config") or {}
    started_ms = status.get("started_at_ms")
    return {
        "version": status.get("version"),
        "started": None if started_ms is None else format_time(started_ms),
        "config_digest": config.get("digest"),
        "waiting_keys": config.get("waiting_keys", []),
    }


def _explain(settings: Settings, output: Output) -> None:
    if settings.explain and output.for_people:
        for title, meaning in MEANINGS:
            say(f"{title}: {meaning}", err=True)


async def _gather(client: BlockingClient, settings: Settings, node_id: int) -> dict[str, Any]:
    cluster = await look(client)
    state = cluster.node(node_id)
    asked = Asked(note=f"node {node_id} is fenced: only what the metadata knows of it")
    if not state.is_fenced:
        view = NodeView(node_id=node_id, address=state.address, rack=state.rack)
        asked = await ask_node(client, settings, view, alone=len(cluster.nodes) == 1)
    return {
        **_row(cluster, state),
        **_own(asked),
        "note": asked.note or None,
        "status": asked.status,
        "partitions": [
            {
                "topic": topic,
                "partition": each.partition,
                "leads": each.leader == node_id,
                "in_sync": node_id in each.isr,
                "replicas": list(each.replicas),
                "isr": list(each.isr),
            }
            for topic, each in cluster.held_by(node_id)
        ],
    }


def _show(found: dict[str, Any], settings: Settings, *, compact: bool) -> int:
    output = Output(settings, compact=compact)
    if output.has_documents:
        output.document(found)
        return exit_codes.OK
    if output.for_people:
        status = found["status"] or {}
        output.pairs([(column.title.lower(), found[column.key]) for column in COLUMNS])
        output.pairs(
            [
                ("uptime", format_duration(status.get("uptime_s"))),
                ("problems", status.get("problems")),
            ]
        )
    output.rows(found["partitions"], PARTITION_COLUMNS, "partitions")
    if found["note"]:
        say(f"note: {found['note']}", err=True)
    _explain(settings, output)
    return exit_codes.OK


@click.command(
    cls=ExampleCommand,
    examples=(
        ("dlogctl node describe 2", "Its state, its leaders and its replicas."),
        ("dlogctl node describe 2 -o json | jq '.partitions[] | select(.leads)'", "Its leaders."),
    ),
)
@click.argument(
    "node_id", type=click.IntRange(min=0), metavar="NODE", shell_complete=complete_nodes
)
@watch_option
@common_options
@click.pass_context
def describe(context: click.Context, node_id: int, watch: float | None) -> int:
    """Show NODE: how it is, and the partitions that it leads and holds."""
    settings = settings_of(context)
    watching = Watch(settings, watch, context.command_path)
    with connected(settings) as client:
        code = watching.run(
            lambda: client.run(lambda: _gather(client, settings, node_id)),
            lambda found: _show(found, settings, compact=watching.is_on),
        )
    settings.suggest(f"dlogctl node pre-restart {node_id}, dlogctl log-dirs --node {node_id}")
    return code
