"""`dlogctl controller list`: voters, observers, and how far each is."""

from typing import Any

import click

from dlog.client.admin_views import QuorumReplica, QuorumView
from dlogctl import exit_codes
from dlogctl.cluster.cluster_view import Cluster, is_healthy, known_quorum, lag_of, look, silence_ms
from dlogctl.groups import ExampleCommand
from dlogctl.output.documents import Column, Output, format_duration
from dlogctl.output.escaping import say
from dlogctl.output.watch import Watch, watch_option
from dlogctl.session import connected
from dlogctl.settings import Settings, common_options, settings_of

COLUMNS = (
    Column("NODE", "node", right=True),
    Column("ROLE", "role"),
    Column("HEALTHY", "healthy"),
    Column("END", "log_end_offset", right=True),
    Column("LAG", "lag", right=True),
    Column("SILENT", "silent", right=True),
    Column("ADDRESS", "address"),
    Column("DIRECTORY", "directory_id", wide=True),
)
MEANINGS = (
    ("ROLE", "the controller is the voter that leads; observers follow and do not count"),
    ("END, LAG", "entries of the metadata's log that the node has, and how many it lacks"),
    ("SILENT", "time since any node heard of it, beyond the controller's"),
)


def _row(quorum: QuorumView, each: QuorumReplica, role: str) -> dict[str, Any]:
    silent_ms = silence_ms(quorum, each)
    return {
        "node": each.node_id,
        "role": "controller" if each.node_id == quorum.leader_id else role,
        "healthy": is_healthy(quorum, each),
        "log_end_offset": each.log_end_offset if each.log_end_offset >= 0 else None,
        "lag": lag_of(quorum, each),
        "silent_ms": silent_ms,
        "address": None if each.address is None else str(each.address),
        "directory_id": str(each.directory_id),
    }


def _document(cluster: Cluster) -> dict[str, Any]:
    quorum = known_quorum(cluster)
    voters = [_row(quorum, each, "voter") for each in quorum.voters]
    healthy = sum(each["healthy"] for each in voters)
    majority = len(voters) // 2 + 1
    return {
        "controller": quorum.leader_id,
        "term": quorum.term,
        "high_watermark": quorum.high_watermark,
        "quorum": majority,
        "healthy_voters": healthy,
        "failures_tolerated": max(0, healthy - majority),
        "nodes": voters + [_row(quorum, each, "observer") for each in quorum.observers],
    }


def _show(document: dict[str, Any], settings: Settings, *, compact: bool) -> int:
    output = Output(settings, compact=compact)
    if output.has_documents:
        output.document(document)
        return exit_codes.OK
    if output.for_people:
        votes = f"{document['healthy_voters']} of {document['quorum']} needed"
        output.pairs(
            [
                ("controller", document["controller"]),
                ("term", document["term"]),
                ("healthy voters", votes),
                ("failures tolerated", document["failures_tolerated"]),
            ]
        )
    rows = [
        {
            **each,
            "silent": format_duration(None if (ms := each["silent_ms"]) is None else ms / 1000),
        }
        for each in document["nodes"]
    ]
    output.rows(rows, COLUMNS)
    if settings.explain and output.for_people:
        for title, meaning in MEANINGS:
            say(f"{title}: {meaning}", err=True)
    return exit_codes.OK


@click.command(
    "list",
    cls=ExampleCommand,
    examples=(
        ("dlogctl controller list", "Voters, leader, and the progress of each."),
        ("dlogctl controller list -o wide --watch 1s", "With their directories, again and again."),
        ("dlogctl controller list -o json | jq .failures_tolerated", "For a script."),
    ),
)
@watch_option
@common_options
@click.pass_context
def list_controllers(context: click.Context, watch: float | None) -> int:
    """List who keeps the metadata: the controller, the other voters, observers."""
    settings = settings_of(context)
    watching = Watch(settings, watch, context.command_path)
    with connected(settings) as client:
        code = watching.run(
            lambda: _document(client.run(lambda: look(client))),
            lambda found: _show(found, settings, compact=watching.is_on),
        )
    settings.suggest("dlogctl controller transfer NODE, dlogctl node list")
    return code
