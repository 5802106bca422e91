"""`dlogctl log-dirs`: the data directories of all nodes, and what lies in them."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import click

from dlog.client.admin import describe_error
from dlog.client.blocking import BlockingClient
from dlog.client.views import LogDirView
from dlog.errors import NONE, DlogError
from dlogctl import exit_codes
from dlogctl.cluster.cluster_view import expect_up
from dlogctl.groups import ExampleCommand
from dlogctl.output.documents import Column, Output, format_bytes
from dlogctl.output.escaping import say
from dlogctl.output.watch import Watch, watch_option
from dlogctl.session import connected, no_topic
from dlogctl.settings import Settings, common_options, settings_of
from dlogctl.shell.completion import complete_topics

COLUMNS = (
    Column("NODE", "node", right=True),
    Column("DIRECTORY", "path"),
    Column("LOGS", "logs", right=True),
    Column("LOG SIZE", "logs_size", right=True),
    Column("DISK", "size", right=True),
    Column("FREE", "free", right=True),
    Column("USED", "used", right=True),
    Column("ERROR", "error"),
)
LOG_COLUMNS = (
    Column("TOPIC", "topic"),
    Column("PARTITION", "partition", right=True),
    Column("NODE", "node", right=True),
    Column("SIZE", "size", right=True),
    Column("BYTES", "bytes", wide=True, right=True),
    Column("DIRECTORY", "path"),
)
MEANINGS = (
    ("LOGS", "partitions whose data lies in the directory"),
    ("LOG SIZE", "bytes of their records"),
    ("DISK, FREE", "size of the file system and its free space"),
    ("USED", "share of the file system that is taken, by whatever"),
    ("ERROR", "why the directory is out of service; its partitions are offline then"),
)
LOG_MEANINGS = (
    ("SIZE", "bytes of the records of this partition in this directory"),
    ("DIRECTORY", "one of data.directories of the node; a partition lies in one of them"),
)

Found = Sequence[tuple[int, Sequence[LogDirView] | str]]


async def _gather(client: BlockingClient, nodes: tuple[int, ...]) -> Found:
    """Ask each node; one that does not answer gives its error."""
    view = await client.admin.describe_cluster()
    for node_id in nodes:
        if node_id not in view.nodes:
            await expect_up(client, node_id)

    async def ask(node_id: int) -> Sequence[LogDirView] | str:
        try:
            return await client.admin.describe_log_dirs(node_id)
        except DlogError as error:
            return str(error)

    asked = nodes or tuple(sorted(view.nodes))
    return list(zip(asked, await asyncio.gather(*map(ask, asked)), strict=True))


def _document(found: Found, topics: frozenset[str]) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for node_id, directories in found:
        if isinstance(directories, str):
            rows.append({"node": node_id, "path": None, "error": directories, "logs": []})
            continue
        directories = sorted(directories, key=lambda each: each.path)
        rows += [_directory(node_id, each, topics) for each in directories]
    return rows


def _directory(node_id: int, view: LogDirView, topics: frozenset[str]) -> dict[str, Any]:
    return {
        "node": node_id,
        "path": view.path,
        "error": None if view.error_code == NONE else describe_error(view.error_code),
        "total_bytes": view.total_bytes if view.total_bytes >= 0 else None,
        "usable_bytes": view.usable_bytes if view.usable_bytes >= 0 else None,
        "logs": [
            {"topic": topic, "partition": partition, "bytes": size}
            for topic, partition, size in sorted(view.partitions)
            if not topics or topic in topics
        ],
    }


def _row(each: Mapping[str, Any]) -> dict[str, Any]:
    total, free = each.get("total_bytes"), each.get("usable_bytes")
    return {
        **each,
        "logs": len(each["logs"]) if each["path"] is not None else None,
        "logs_size": format_bytes(sum(log["bytes"] for log in each["logs"])),
        "size": format_bytes(total),
        "free": format_bytes(free),
        "used": f"{100 * (total - free) / total:.0f} %" if total and free is not None else None,
    }


def _log_rows(document: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    return [
        {**log, "node": each["node"], "path": each["path"], "size": format_bytes(log["bytes"])}
        for each in document
        for log in each["logs"]
    ]


def _show(
    document: Sequence[Mapping[str, Any]], settings: Settings, *, logs: bool, compact: bool
) -> int:
    output = Output(settings, compact=compact)
    if output.has_documents:
        output.document(list(document))
    elif logs:
        rows = _log_rows(document)
        rows.sort(key=lambda row: (row["topic"], row["partition"], row["node"]))
        output.rows(rows, LOG_COLUMNS)
    else:
        output.rows([_row(each) for each in document], COLUMNS)
    if settings.explain and output.for_people:
        for title, meaning in LOG_MEANINGS if logs else MEANINGS:
            say(f"{title}: {meaning}", err=True)
    return exit_codes.FAILURE if any(each["error"] for each in document) else exit_codes.OK


@click.command(
    "log-dirs",
    cls=ExampleCommand,
    examples=(
        ("dlogctl log-dirs", "Every data directory: logs, sizes, free space, errors."),
        ("dlogctl log-dirs --logs --topic events", "Places of the partitions of a topic."),
        ("dlogctl log-dirs --node 1 --watch 5s", "Watch a disk fill up."),
    ),
)
@click.option("--node", "nodes", type=click.IntRange(min=0), multiple=True, metavar="ID",
              help="Only of this node; may be given many times.")  # fmt: skip
@click.option("--topic", "topics", multiple=True, metavar="NAME", shell_complete=complete_topics,
              help="Only logs of this topic; may be given many times.")  # fmt: skip
@click.option("--logs", is_flag=True, help="Show each log instead of each directory.")
@watch_option
@common_options
@click.pass_context
def log_dirs(
    context: click.Context,
    nodes: tuple[int, ...],
    topics: tuple[str, ...],
    logs: bool,
    watch: float | None,
) -> int:
    """Show the data directories of the nodes, and the logs in them.

    Exit code 1 when a directory is out of service or a node does not tell.
    """
    settings = settings_of(context)
    watching = Watch(settings, watch, context.command_path)
    with connected(settings) as client:
        if topics:
            _check_topics(client, topics)
        code = watching.run(
            lambda: _document(client.run(lambda: _gather(client, nodes)), frozenset(topics)),
            lambda document: _show(document, settings, logs=logs, compact=watching.is_on),
        )
    if code != exit_codes.OK:
        settings.suggest("dlogctl status")
    else:
        settings.suggest(
            "dlogctl topic describe NAME" if logs else f"{context.command_path} --logs"
        )
    return code


def _check_topics(client: BlockingClient, topics: tuple[str, ...]) -> None:
    view = client.run(lambda: client.admin.describe_topics(topics))
    for name in topics:
        if name not in view.topics or view.topics[name].error_code != NONE:
            raise no_topic(name)
