"""`dlogctl topic list` and `describe`: partitions, leaders, offsets, configs."""

import shutil
import textwrap
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import click

from dlog.client.admin import Resource, describe_error
from dlog.client.admin_views import Candidates
from dlog.client.blocking import BlockingClient
from dlog.client.cluster.partition_calls import try_list_offsets
from dlog.client.views import PartitionView, TopicView
from dlog.errors import NONE, DlogError, WireError
from dlog.offset_specs import EARLIEST, LATEST
from dlogctl import exit_codes
from dlogctl.cluster.moves import bytes_to_go, sizes_of
from dlogctl.cluster.partition_errors import explain, waits_for
from dlogctl.commands.config_show import explained_row, for_people
from dlogctl.groups import ExampleCommand
from dlogctl.output.documents import Column, Output, format_bytes, format_cell
from dlogctl.output.escaping import say, say_lines
from dlogctl.output.watch import Watch, watch_option
from dlogctl.session import connected, naming_topic
from dlogctl.settings import Settings, common_options, settings_of
from dlogctl.shell.completion import complete_topics

LIST_COLUMNS = (
    Column("TOPIC", "topic"),
    Column("PARTITIONS", "partitions", right=True),
    Column("REPLICAS", "replication_factor", right=True),
    Column("LEADERLESS", "leaderless", right=True),
    Column("UNDER-REPLICATED", "under_replicated", right=True),
    Column("INTERNAL", "internal", wide=True),
    Column("ID", "topic_id", wide=True),
)
PARTITION_COLUMNS = (
    Column("TOPIC", "topic", wide=True),
    Column("PARTITION", "partition", right=True),
    Column("LEADER", "leader", right=True),
    Column("EPOCH", "leader_epoch", wide=True, right=True),
    Column("REPLICAS", "replicas"),
    Column("ISR", "isr"),
    Column("START", "log_start_offset", right=True),
    Column("END", "high_watermark", right=True),
    Column("ERROR", "error", wide=True),
    Column("REASON", "reason", wide=True),
)
REASONS_SHOWN = 20
NOBODY = Candidates((), ())
CONFIG_COLUMNS = (
    Column("CONFIG", "name"),
    Column("VALUE", "value"),
    Column("SOURCE", "source", wide=True),
)
FIXED = "only "  # as `dlogd.metadata.state.config_values.only` says it
INDENTED: dict[str, Any] = {"initial_indent": "    ", "subsequent_indent": "    "}
MEANINGS = (
    ("LEADER", "the node that takes writes and serves reads; none: neither is possible"),
    ("REPLICAS, ISR", "nodes that hold a copy, and those of them that have everything"),
    ("ELIGIBLE", "nodes out of sync that hold all acknowledged records, and may lead again"),
    ("START", "first readable offset; earlier records are deleted"),
    ("END", "offset that the next committed record will get"),
)


def _summary(view: TopicView) -> dict[str, Any]:
    return {
        "topic": view.name,
        "partitions": len(view.partitions),
        "replication_factor": view.replication_factor,
        "leaderless": sum(each.leader < 0 for each in view.partitions),
        "under_replicated": sum(len(each.isr) < len(each.replicas) for each in view.partitions),
        "internal": view.is_internal,
        "topic_id": str(view.topic_id),
    }


@click.command(
    "list",
    cls=ExampleCommand,
    examples=(
        ("dlogctl topic list", "All topics."),
        ("dlogctl topic list -o tsv --no-headers | cut -f1", "Only their names, for a script."),
    ),
)
@click.option("--internal", is_flag=True, help="Internal topics too.")
@common_options
@click.pass_context
def list_topics(context: click.Context, internal: bool) -> int:
    """List all topics."""
    settings = settings_of(context)
    with connected(settings) as client:
        view = client.run(client.admin.describe_topics)
    found = sorted(view.topics.values(), key=lambda each: each.name)
    rows = [_summary(each) for each in found if internal or not each.is_internal]
    Output(settings).rows(rows, LIST_COLUMNS)
    settings.suggest("dlogctl topic describe NAME")
    return exit_codes.OK


def _node_to_ask(partition: PartitionView) -> int:
    """Return the leader, else the first replica, which knows why it does not lead; -1: nobody."""
    return next((each for each in (partition.leader, *partition.replicas) if each >= 0), -1)


async def _offsets(client: BlockingClient, view: TopicView) -> dict[int, dict[str, Any]]:
    """Return first and end offset of each partition, or its error."""
    asked: dict[int, list[int]] = {}
    for each in view.partitions:
        if (node_id := _node_to_ask(each)) >= 0:
            asked.setdefault(node_id, []).append(each.partition)
    found: dict[int, dict[str, Any]] = {}
    for node_id, partitions in asked.items():
        try:
            node = await client.cluster.node(node_id)
            start = await try_list_offsets(node, view.name, dict.fromkeys(partitions, EARLIEST))
            end = await try_list_offsets(node, view.name, dict.fromkeys(partitions, LATEST))
        except DlogError as error:
            found |= {partition: {"error": str(error)} for partition in partitions}
            continue
        for number in partitions:
            found[number] = _offset_fields(start.get(number), end.get(number))
    return found


def _offset_fields(
    start: tuple[int, int] | WireError | None, end: tuple[int, int] | WireError | None
) -> dict[str, Any]:
    for each in (start, end):
        if isinstance(each, WireError):
            return {"error": each.name}
    fields = {"log_start_offset": start, "high_watermark": end}
    return {key: each[0] for key, each in fields.items() if isinstance(each, tuple)}


async def _describe(client: BlockingClient, settings: Settings, name: str) -> dict[str, Any]:
    with naming_topic(name):
        view = await client.admin.describe_topic(name)
    offsets = await _offsets(client, view)
    failed = [each for each in view.partitions if "error" in offsets.get(each.partition, {})]
    reasons = await explain(
        client,
        settings,
        name,
        ((each.partition, _node_to_ask(each)) for each in failed),
        {each.partition for each in view.partitions if each.leader < 0},
    )
    partitions: list[dict[str, Any]] = [
        {
            "topic": name,
            "partition": each.partition,
            "leader": each.leader if each.leader >= 0 else None,
            "leader_epoch": each.leader_epoch,
            "replicas": list(each.replicas),
            "isr": list(each.isr),
            "offline": list(each.offline),
            "log_start_offset": None,
            "high_watermark": None,
            "error": None if each.error_code == NONE else describe_error(each.error_code),
            "reason": reasons.get(each.partition),
            **offsets.get(each.partition, {}),
        }
        for each in view.partitions
    ]
    await _add_behind(client, view, partitions)
    await _add_candidates(client, view, partitions)
    configs = await client.admin.describe_configs(Resource.TOPIC, name)
    explained = [explained_row(each) for each in sorted(configs, key=lambda each: each.name)]
    return {
        **_summary(view),
        "configs": {each.name: each.value for each in configs if each.is_own},
        "all_configs": explained,
        "partitions": partitions,
    }


async def _add_behind(client: BlockingClient, view: TopicView, rows: list[dict[str, Any]]) -> None:
    """Say of replicas out of sync how much they lack of their leader, where the nodes tell."""
    away = {
        each.partition: [node for node in each.replicas if node not in each.isr]
        for each in view.partitions
        if each.leader >= 0
    }
    leaders = {each.leader for each in view.partitions if away.get(each.partition)}
    missing = {node for nodes in away.values() for node in nodes}
    sizes = await sizes_of(client.admin, leaders | missing) if missing else {}
    for row, each in zip(rows, view.partitions, strict=True):
        key = (view.name, each.partition)
        nodes = away.get(each.partition, [])
        row["behind_bytes"] = bytes_to_go(key, each.leader, nodes, each.isr, sizes)
        row["behind"] = ", ".join(
            f"{node}: {format_bytes(size)}"
            for node, size in row["behind_bytes"].items()
            if size is not None
        )


async def _add_candidates(
    client: BlockingClient, view: TopicView, rows: list[dict[str, Any]]
) -> None:
    """Say who may lead besides those in sync, and for whom a partition without a leader waits."""
    found: Mapping[int, Candidates] = {}
    if any(len(each.isr) < len(each.replicas) for each in view.partitions):
        with suppress(DlogError):  # Kafka before 3.7 cannot tell, and the rest is worth showing
            found = await client.admin.describe_candidates(view.name)
    for row, each in zip(rows, view.partitions, strict=True):
        candidates = found.get(each.partition, NOBODY)
        row["eligible"] = list(candidates.eligible)
        if each.leader < 0 and each.partition in found:
            why = waits_for(candidates)
            row["reason"] = f"{row['reason']}; {why}" if row["reason"] else why


def _partition_columns(rows: list[dict[str, Any]]) -> tuple[Column, ...]:
    """Return the columns; what is wrong somewhere is shown in every format."""
    columns = list(PARTITION_COLUMNS)
    if any(row["behind"] for row in rows):
        place = next(n for n, each in enumerate(columns) if each.key == "log_start_offset")
        columns.insert(place, Column("BEHIND", "behind"))
    if any(row["eligible"] for row in rows):
        place = next(n for n, each in enumerate(columns) if each.key == "isr")
        columns.insert(place + 1, Column("ELIGIBLE", "eligible"))
    if any(row["error"] for row in rows):
        columns[-2] = Column("ERROR", "error")
    return tuple(columns)


def _show_reasons(output: Output, rows: list[dict[str, Any]]) -> None:
    """Say below the table why partitions are out of service, and what to do."""
    known = [row for row in rows if row["reason"]]
    for row in known[:REASONS_SHOWN]:
        output.line(f"{row['topic']}-{row['partition']}: {row['reason']}")
    if len(known) > REASONS_SHOWN:
        output.line(f"and {len(known) - REASONS_SHOWN} more: dlogctl topic describe -o json")


def _show(found: list[dict[str, Any]], settings: Settings, *, compact: bool) -> int:
    output = Output(settings, compact=compact)
    if output.has_documents:
        if not settings.explain:
            found = [{k: v for k, v in each.items() if k != "all_configs"} for each in found]
        output.document(found if len(found) > 1 else found[0])
        return exit_codes.OK
    for each in found:
        if output.for_people:
            _show_head(each, settings, output)
        output.rows(each["partitions"], _partition_columns(each["partitions"]))
        if output.for_people:
            _show_reasons(output, each["partitions"])
    if settings.explain and output.for_people:
        for title, meaning in MEANINGS:
            say(f"{title}: {meaning}", err=True)
    return exit_codes.OK


def _show_head(topic: dict[str, Any], settings: Settings, output: Output) -> None:
    output.pairs([("topic", topic["topic"]), ("id", topic["topic_id"])])
    if settings.explain:
        _explain_configs([for_people(each) for each in topic["all_configs"]])
        return
    configs = [each for each in topic["all_configs"] if each["source"] == "topic"]
    if configs:
        output.rows([for_people(each) for each in configs], CONFIG_COLUMNS)


def _explain_configs(configs: list[dict[str, Any]]) -> None:
    """Show each config with its meaning below it; those that have one value only in one line."""
    width = max(40, min(100, shutil.get_terminal_size().columns))
    fixed = [each["name"] for each in configs if str(each.get("bounds")).startswith(FIXED)]
    for each in configs:
        if each["name"] in fixed:
            continue
        default = f"default {each.get('default')}" if each["source"] != "default" else ""
        parts = (each["source"], default, each["type"], each.get("bounds"))
        known = "; ".join(filter(None, parts))
        say(f"{each['name']} = {format_cell(each['value'])}  ({known})")
        say_lines(textwrap.fill(each["doc"] or "", width, **INDENTED))
    if fixed:
        say("without a choice in this version:")
        say_lines(textwrap.fill(", ".join(fixed), width, **INDENTED))


@click.command(
    cls=ExampleCommand,
    examples=(
        ("dlogctl topic describe events", "Partitions, leaders, offsets, configs that are set."),
        ("dlogctl topic describe events --explain", "All its configs and what they mean."),
        ("dlogctl topic describe events --watch 1s", "Watch the offsets move."),
        ("dlogctl topic describe events -o json | jq '.partitions[].high_watermark'", "Ends."),
    ),
)
@click.argument("names", nargs=-1, required=True, metavar="NAME...",
                shell_complete=complete_topics)  # fmt: skip
@watch_option
@common_options
@click.pass_context
def describe(context: click.Context, names: tuple[str, ...], watch: float | None) -> int:
    """Describe topics: leaders, replicas, offsets, and the configs that are set.

    --explain shows all configs with their sources and meanings.
    """
    settings = settings_of(context)
    watching = Watch(settings, watch, context.command_path)
    wrong = False

    def gather() -> list[dict[str, Any]]:
        return [client.run(lambda each=name: _describe(client, settings, each)) for name in names]  # type: ignore[misc]

    def show(found: list[dict[str, Any]]) -> int:
        nonlocal wrong
        wrong = any(row["error"] for each in found for row in each["partitions"])
        return _show(found, settings, compact=watching.is_on)

    with connected(settings) as client:
        code = watching.run(gather, show)
    settings.suggest("dlogctl status" if wrong else f"dlogctl topic alter {names[0]} --help")
    return code
