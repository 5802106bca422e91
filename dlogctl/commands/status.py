"""`dlogctl status`: state of the cluster on one screen.

Everything that the metadata knows comes through --bootstrap alone, nodes that are down included.
What only a node itself knows (uptime, disks, flush times, recovery) is asked of its HTTP endpoint,
whose address the node tells in its configuration (`http.address`); where that cannot be reached
from here, a note says so.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import click

from dlog.client.admin_views import NodeState
from dlog.client.blocking import BlockingClient
from dlog.client.views import ClusterView
from dlog.errors import ConnectFailedError, DlogError
from dlogctl import exit_codes
from dlogctl.cluster.cluster_view import Cluster, is_healthy, lag_of, look_closely, silence_ms
from dlogctl.cluster.health import gossip_notes, partition_counts, reasons_against, throttle_notes
from dlogctl.cluster.http_status import Asked, ask_node, get_status
from dlogctl.cluster.lags import lags_of, worst_of
from dlogctl.cluster.maintenance import facts_of, line_of
from dlogctl.groups import ExampleCommand
from dlogctl.output.documents import Column, Output, format_bytes, format_cell, format_duration
from dlogctl.output.escaping import say
from dlogctl.output.watch import Waiting, Watch, watch_option
from dlogctl.session import connected
from dlogctl.settings import Settings, common_options, settings_of, take_seconds

REASONS_SHOWN = 20
LATE_MS = 1_000
"""What is younger is on its way."""
WRONG = (
    *("leaderless", "under_replicated", "under_min_isr", "at_min_isr", "offline_replicas"),
    *("reassigning", "non_preferred_leader"),
)

PATIENCE = "5min"
NODE_COLUMNS = (
    Column("NODE", "node", right=True),
    Column("ADDRESS", "address"),
    Column("RACK", "rack"),
    Column("ROLE", "role"),
    Column("STATE", "state"),
    Column("VERSION", "version", wide=True),
    Column("UPTIME", "uptime", right=True),
    Column("LOGS", "logs", right=True),
    Column("CLIENTS", "connections", wide=True, right=True),
    Column("FLUSH", "flush_policy"),
    Column("P99", "flush_p99", right=True),
    Column("BEHIND", "behind", right=True),
    Column("HTTP", "http", wide=True),
)
WORST_COLUMNS = (
    Column("PARTITION", "partition"),
    Column("NODE", "node", right=True),
    Column("RECORDS", "lag_records", right=True),
    Column("FOR", "late", right=True),
)
DISK_COLUMNS = (
    Column("NODE", "node", right=True),
    Column("DIRECTORY", "path"),
    Column("STATE", "state"),
    Column("LOGS", "logs", right=True),
    Column("SIZE", "size", right=True),
    Column("FREE", "free", right=True),
    Column("USED", "used", right=True),
    Column("ERROR", "error"),
)
MEANINGS = (
    ("leaderless", "partitions that no client can write or read"),
    ("under replicated", "partitions with replicas that lack something"),
    ("offline replicas", "partitions with replicas on nodes or disks that are out of service"),
    ("non preferred leader", "partitions led by another node than the one that should"),
    ("LOGS", "partitions whose data the node, or the directory, holds"),
    ("BEHIND", "what the node's replicas lack of their leaders, and for how long at most"),
    ("FLUSH, P99", "the node's flush policy, and what 99 % of its flushes take at most"),
    ("SIZE, FREE, USED", "of the file system, by all its users"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Found:
    """What was gathered: the metadata, and of each node its own status or why there is none."""

    cluster: Cluster
    asked: Mapping[int, Asked]

    @property
    def view(self) -> ClusterView:
        """Nodes that are up, and all topics."""
        return self.cluster.view

    @property
    def statuses(self) -> Mapping[int, dict[str, Any] | None]:
        """What each node that was asked says of itself."""
        return {node_id: each.status for node_id, each in self.asked.items()}

    @property
    def unreachable(self) -> list[int]:
        """Nodes that the metadata calls up and that do not answer."""
        return [node_id for node_id, each in self.asked.items() if not each.is_reachable]


async def _gather(client: BlockingClient, settings: Settings) -> _Found:
    cluster = await look_closely(client)
    view = cluster.view
    # A node that was just fenced is named for a moment more, and nobody tells how to ask it.
    up = (each for each in sorted(view.nodes) if (n := cluster.nodes.get(each)) and not n.is_fenced)
    nodes = [view.nodes[node_id] for node_id in up]
    asked = await asyncio.gather(
        *(ask_node(client, settings, node, alone=len(nodes) == 1) for node in nodes)
    )
    found = {node.node_id: each for node, each in zip(nodes, asked, strict=True)}
    return _Found(cluster=cluster, asked=found)


def _node_document(found: _Found, node: NodeState) -> dict[str, Any]:
    asked = found.asked.get(node.node_id, Asked())
    status = asked.status or {}
    cluster = found.cluster
    state = cluster.state_of(node) if asked.is_reachable else "down"
    part = cluster.part_of(node.node_id)
    if cluster.quorum is None and cluster.quorum_problem is None:
        part = "controller" if node.node_id == cluster.controller_id else "broker"
    return {
        "node": node.node_id,
        "address": str(node.address),
        "rack": node.rack,
        "role": part,
        "http": asked.http or None,
        # What the metadata says of it counts more than what it thinks of itself.
        "state": status.get("state", state) if state == "active" else state,
        "status": asked.status,
    }


def _metadata_document(cluster: Cluster) -> dict[str, Any] | None:
    """Return how those are who keep the metadata, None where nobody tells."""
    quorum = cluster.quorum
    if quorum is None:
        return None
    return {
        "term": quorum.term,
        "high_watermark": quorum.high_watermark,
        "voters": [
            {
                "node": each.node_id,
                "lag": lag_of(quorum, each),
                "silent_ms": silence_ms(quorum, each),
                "healthy": is_healthy(quorum, each),
            }
            for each in quorum.voters
        ],
        "observers": [each.node_id for each in quorum.observers],
    }


def _document(found: _Found) -> dict[str, Any]:
    """Return the whole status, as json and yaml show it."""
    cluster = found.cluster
    reasons = reasons_against(cluster, found.statuses, found.unreachable)
    controller_id = cluster.controller_id
    topics = found.view.topics.values()
    wrong = {
        key: [f"{topic}-{number}" for topic, number in named]
        for key, named in partition_counts(found.cluster).items()
    }
    return {
        "healthy": not reasons,
        "reasons": reasons,
        "notes": [
            *(each.note for each in found.asked.values() if each.note),
            *gossip_notes(found.statuses),
            *throttle_notes({node_id: each.throttles for node_id, each in found.asked.items()}),
        ],
        "cluster_id": found.view.cluster_id,
        "controller": controller_id if controller_id >= 0 else None,
        "maintenance": None if cluster.maintenance is None else facts_of(cluster.maintenance),
        "metadata": _metadata_document(cluster),
        "topics": len(topics),
        "partitions": {"total": sum(len(topic.partitions) for topic in topics), **wrong},
        "nodes": [_node_document(found, each) for each in cluster.nodes.values()],
        "lags": lags_of(found.statuses.values()),
        "worst_lags": worst_of(found.statuses.values()),
    }


def _node_row(node: Mapping[str, Any]) -> dict[str, Any]:
    status = node["status"] or {}
    flush_p99_ms = status.get("flush_p99_ms")
    return {
        **node,
        "version": status.get("version"),
        "uptime": format_duration(status.get("uptime_s")),
        "logs": status.get("storage", {}).get("logs"),
        "connections": status.get("connections"),
        "flush_policy": status.get("flush_policy"),
        "flush_p99": format_duration(flush_p99_ms / 1000 if flush_p99_ms else None),
    }


def _behind(document: Mapping[str, Any], node: Mapping[str, Any]) -> str | None:
    """Return what a node's replicas lack, None where nobody tells."""
    lag = document.get("lags", {}).get(node["node"])
    if lag is None:
        return None
    if lag["ms"] < LATE_MS:
        return "-"
    return f"{format_bytes(lag['bytes'])}, {format_duration(lag['ms'] / 1000)}"


def _disk_rows(document: Mapping[str, Any]) -> list[dict[str, Any]]:
    rows = []
    for node in document["nodes"]:
        storage = (node["status"] or {}).get("storage", {})
        for each in storage.get("directories", ()):
            total, free = each.get("total_bytes"), each.get("free_bytes")
            state = "appends refused" if each.get("appends_refused") else "online"
            rows.append(
                {
                    "node": node["node"],
                    "path": each.get("path"),
                    "state": state if each.get("online") else "failed",
                    "logs": each.get("logs"),
                    "size": format_bytes(total),
                    "free": format_bytes(free),
                    "used": _share(total, free),
                    "error": each.get("error"),
                }
            )
    return rows


def _share(total: int | None, free: int | None) -> str | None:
    return f"{100 * (total - free) / total:.0f} %" if total and free is not None else None


def _maintenance_pairs(facts: dict[str, Any] | None) -> list[tuple[str, Any]]:
    return [] if facts is None else [("maintenance", line_of(facts))]


def _metadata_pairs(metadata: Mapping[str, Any] | None) -> list[tuple[str, Any]]:
    if metadata is None or len(metadata["voters"]) + len(metadata["observers"]) == 1:
        return []
    lags = [f"{each['node']}:{format_cell(each['lag'])}" for each in metadata["voters"]]
    return [
        ("metadata term", metadata["term"]),
        ("metadata commit", metadata["high_watermark"]),
        ("lag of voters", lags),
    ]


def _show(document: Mapping[str, Any], settings: Settings, *, compact: bool) -> None:
    output = Output(settings, compact=compact)
    if output.has_documents:
        output.document(document)
        return
    rows = [{**_node_row(node), "behind": _behind(document, node)} for node in document["nodes"]]
    if settings.output == "tsv":
        output.rows(rows, NODE_COLUMNS)
        return
    healthy = document["healthy"]
    output.line("healthy" if healthy else "unhealthy", good=healthy)
    reasons = document["reasons"]
    for reason in reasons[:REASONS_SHOWN]:
        output.line(f"  - {reason}")
    if len(reasons) > REASONS_SHOWN:
        output.line(f"  - and {len(reasons) - REASONS_SHOWN} more: dlogctl status -o json")
    partitions = document["partitions"]
    pairs: list[tuple[str, Any]] = [
        ("cluster", document["cluster_id"]),
        ("controller", document["controller"]),
        *_maintenance_pairs(document["maintenance"]),
        *_metadata_pairs(document["metadata"]),
        ("topics", document["topics"]),
        ("partitions", partitions["total"]),
    ]
    pairs += [(key.replace("_", " "), len(partitions[key])) for key in WRONG]
    output.pairs(pairs)
    output.rows(rows, NODE_COLUMNS, "nodes")
    if disks := _disk_rows(document):
        output.rows(disks, DISK_COLUMNS, "disks")
    if worst := [each for each in document.get("worst_lags", ()) if each["lag_ms"] >= LATE_MS]:
        late = [{**each, "late": format_duration(each["lag_ms"] / 1000)} for each in worst]
        output.rows(late, WORST_COLUMNS, "replicas furthest behind")
    for title, meaning in MEANINGS if settings.explain and not compact else ():
        say(f"{title}: {meaning}", err=True)
    for note in document["notes"]:
        say(f"note: {note}", err=True)


def _document_of_one(status: dict[str, Any], settings: Settings) -> dict[str, Any]:
    """Return what a node that does not serve clients yet says of itself: it starts or recovers."""
    node_id = status.get("node_id", "?")
    problems = status.get("problems") or ["clients cannot connect"]
    node = {
        "node": node_id,
        "address": str(settings.bootstrap[0]),
        "rack": status.get("rack"),
        "role": None,
        "http": str(settings.http),
        "state": status.get("state"),
        "status": status,
    }
    return {
        "healthy": False,
        "reasons": [f"node {node_id}: {problem}" for problem in problems],
        "notes": [f"only what {settings.http} says of itself: no node could be asked for more"],
        "cluster_id": status.get("cluster_id") or None,
        "controller": None,
        "maintenance": None,
        "metadata": None,
        "topics": status.get("topics"),
        "partitions": {"total": None, **{key: [] for key in WRONG}},
        "nodes": [node],
    }


def _ask(client: BlockingClient, settings: Settings) -> dict[str, Any]:
    try:
        return _document(client.run(lambda: _gather(client, settings)))
    except ConnectFailedError:
        address = settings.http
        if address is None:
            raise
        try:
            status = client.run(lambda: get_status(address, settings.timeout_s))
        except DlogError:
            status = None
        if status is None:
            raise
    return _document_of_one(status, settings)


@click.command(
    cls=ExampleCommand,
    examples=(
        ("dlogctl status", "Healthy or not, and why; nodes and disks."),
        ("dlogctl status --watch 1s", "Follow a recovery or a restart."),
        ("dlogctl status --watch --exit-when-healthy && ./deploy", "Wait until all is well."),
        ("dlogctl status -o json | jq .reasons", "For a script."),
    ),
)
@watch_option
@click.option("--exit-when-healthy", is_flag=True, help="With --watch: end at the first healthy.")
@click.option("--patience", default=PATIENCE, show_default=True, callback=take_seconds,
              metavar="TIME",
              help="With --exit-when-healthy: give up after so long without a change.")  # fmt: skip
@common_options
@click.pass_context
def status(
    context: click.Context, watch: float | None, exit_when_healthy: bool, patience: float
) -> int:
    """Show how the cluster is.

    Exit code 0 healthy, 10 unhealthy, 2 unreachable.
    """
    settings = settings_of(context)
    watching = Watch(settings, watch, context.command_path)
    waiting = Waiting(patience)

    def show(document: Mapping[str, Any]) -> int:
        _show(document, settings, compact=watching.is_on)
        waiting.note(tuple(document["reasons"]))
        return exit_codes.OK if document["healthy"] else exit_codes.UNHEALTHY

    with connected(settings) as client:
        code = watching.run(
            lambda: _ask(client, settings),
            show,
            ends=lambda code: exit_when_healthy and (code == exit_codes.OK or waiting.is_over),
        )
    wrong = code != exit_codes.OK
    settings.suggest(f"dlogctl topic {'describe NAME' if wrong else 'list'}, dlogctl log-dirs")
    return code
