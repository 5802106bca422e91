"""`dlogctl topic`: create, list, describe, alter, delete."""

from typing import Any

import click

from dlog.client.admin import Admin, Resource, describe_error
from dlog.client.blocking import BlockingClient
from dlog.client.partitions import EARLIEST, LATEST, try_list_offsets
from dlog.client.views import ConfigEntry, PartitionView, TopicView
from dlog.errors import (
    NONE,
    DlogError,
    TopicAlreadyExistsError,
    UnknownTopicOrPartitionError,
    WireError,
)
from dlogctl import exit_codes
from dlogctl.output import Column, Output
from dlogctl.reasons import explain
from dlogctl.session import connected, naming_topic
from dlogctl.settings import Settings, common_options, settings_of

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
PARTITIONS = "partitions"  # beside the names of configs, none of which is called so
CHANGE_COLUMNS = tuple(
    Column(key.upper(), key) for key in ("topic", "changed", "from", "to", "dry_run")
)
CONFIG_COLUMNS = (Column("CONFIG", "name"), Column("VALUE", "value"))


def parse_pairs(
    _context: click.Context, _option: click.Parameter, given: tuple[str, ...]
) -> dict[str, str]:
    """Parse `key=value` options; raise click.BadParameter."""
    pairs = {}
    for each in given:
        key, equals, value = each.partition("=")
        if not equals or not key:
            raise click.BadParameter(f"{each!r} is not key=value")
        pairs[key] = value
    return pairs


@click.group()
def topic() -> None:
    """Create, list, describe, alter and delete topics."""


@topic.command()
@click.argument("name")
@click.option("-p", "--partitions", type=click.IntRange(min=1), help="Default: the cluster's.")
@click.option(
    "-r", "--replication-factor", type=click.IntRange(min=1), help="Default: the cluster's."
)
@click.option(
    "-c", "--config", "-s", "--set", "configs", multiple=True, metavar="KEY=VALUE",
    callback=parse_pairs, help="A topic config; may be given many times.",
)  # fmt: skip
@click.option("--if-not-exists", is_flag=True, help="A topic that is there is no error.")
@click.option("--dry-run", is_flag=True, help="Let the cluster check it, change nothing.")
@common_options
@click.pass_context
def create(
    context: click.Context,
    name: str,
    partitions: int | None,
    replication_factor: int | None,
    configs: dict[str, str],
    if_not_exists: bool,
    dry_run: bool,
) -> int:
    """Create topic NAME."""
    settings = settings_of(context)
    output = Output(settings)
    with connected(settings) as client:
        try:
            topic_id = client.run(
                lambda: client.admin.create_topic(
                    name,
                    partitions=partitions or -1,
                    replication_factor=replication_factor or -1,
                    configs=configs,
                    validate_only=dry_run,
                )
            )
        except TopicAlreadyExistsError:
            if not if_not_exists:
                raise
            output.done(f"topic {name} exists", topic=name, result="exists", topic_id=None)
            return exit_codes.OK
    if dry_run:
        text, result = f"topic {name} would be created", "would be created"
    else:
        text, result = f"topic {name} created: {topic_id}", "created"
    output.done(text, topic=name, result=result, topic_id=None if dry_run else str(topic_id))
    settings.suggest(f"dlogctl topic {'create' if dry_run else 'describe'} {name}")
    return exit_codes.OK


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


@topic.command("list")
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
        client, settings, name, ((each.partition, _node_to_ask(each)) for each in failed)
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
    configs = await client.admin.describe_configs(Resource.TOPIC, name)
    return {
        **_summary(view),
        "configs": {each.name: each.value for each in configs if each.is_own},
        "partitions": partitions,
    }


def _partition_columns(rows: list[dict[str, Any]]) -> tuple[Column, ...]:
    """Return the columns; where there is an error, it is shown in every format."""
    if not any(row["error"] for row in rows):
        return PARTITION_COLUMNS
    return (*PARTITION_COLUMNS[:-2], Column("ERROR", "error"), PARTITION_COLUMNS[-1])


def _show_reasons(output: Output, rows: list[dict[str, Any]]) -> None:
    """Say below the table why partitions are out of service, and what to do."""
    known = [row for row in rows if row["reason"]]
    for row in known[:REASONS_SHOWN]:
        output.line(f"{row['topic']}-{row['partition']}: {row['reason']}")
    if len(known) > REASONS_SHOWN:
        output.line(f"and {len(known) - REASONS_SHOWN} more: dlogctl topic describe -o json")


@topic.command()
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@common_options
@click.pass_context
def describe(context: click.Context, names: tuple[str, ...]) -> int:
    """Describe topics: leaders, replicas, offsets, and the configs that are set."""
    settings = settings_of(context)
    output = Output(settings)
    with connected(settings) as client:
        found = [client.run(lambda each=name: _describe(client, settings, each)) for name in names]  # type: ignore[misc]
    if output.has_documents:
        output.document(found if len(found) > 1 else found[0])
        return exit_codes.OK
    damaged = False
    for each in found:
        if output.for_people:
            output.pairs([("topic", each["topic"]), ("id", each["topic_id"])])
            configs = [{"name": key, "value": value} for key, value in each["configs"].items()]
            if configs:
                output.rows(configs, CONFIG_COLUMNS)
        output.rows(each["partitions"], _partition_columns(each["partitions"]))
        if output.for_people:
            _show_reasons(output, each["partitions"])
        damaged = damaged or any(row["error"] for row in each["partitions"])
    if damaged:
        settings.suggest("dlogctl status")
    return exit_codes.OK


def _changes(
    before: list[ConfigEntry], set_values: dict[str, str], unset: tuple[str, ...]
) -> list[tuple[str, str | None, str]]:
    """Return what changes, from what, to what."""
    values = {each.name: each.value for each in before}
    changed: list[tuple[str, str | None, str]] = [
        (key, values.get(key), value) for key, value in set_values.items()
    ]
    return changed + [(key, values.get(key), "default") for key in unset]


def _show_changes(
    output: Output, name: str, changes: list[tuple[str, str | None, str]], *, dry_run: bool
) -> None:
    if not output.for_people:
        rows = [
            {"topic": name, "changed": key, "from": old, "to": new, "dry_run": dry_run}
            for key, old, new in changes
        ]
        output.rows(rows, CHANGE_COLUMNS)
        return
    would = "would become" if dry_run else "now"
    for key, old, new in changes:
        change = f"{new} partitions" if key == PARTITIONS else f"{key}: {old} -> {new}"
        click.echo(f"topic {name} {would}: {change}")


@topic.command()
@click.argument("name")
@click.option("-p", "--partitions", type=click.IntRange(min=1), help="Raise their number to this.")
@click.option(
    "-s", "--set", "-c", "--config", "set_values", multiple=True, metavar="KEY=VALUE",
    callback=parse_pairs, help="Set a topic config; may be given many times.",
)  # fmt: skip
@click.option("-u", "--unset", multiple=True, metavar="KEY", help="Back to the default.")
@click.option("--dry-run", is_flag=True, help="Let the cluster check it, change nothing.")
@common_options
@click.pass_context
def alter(
    context: click.Context,
    name: str,
    partitions: int | None,
    set_values: dict[str, str],
    unset: tuple[str, ...],
    dry_run: bool,
) -> int:
    """Change configs or the number of partitions of topic NAME."""
    if partitions is None and not set_values and not unset:
        raise click.UsageError("nothing to change: give --partitions, --set or --unset", context)
    settings = settings_of(context)
    changes: list[tuple[str, str | None, str]] = []
    try:
        with connected(settings) as client, naming_topic(name):
            admin: Admin = client.admin
            if set_values or unset:
                before = client.run(lambda: admin.describe_configs(Resource.TOPIC, name))
                client.run(
                    lambda: admin.alter_configs(
                        Resource.TOPIC,
                        name,
                        set_values=set_values,
                        delete_names=unset,
                        validate_only=dry_run,
                    )
                )
                changes += _changes(before, set_values, unset)
            if partitions is not None:
                client.run(lambda: admin.create_partitions(name, partitions, validate_only=dry_run))
                changes.append((PARTITIONS, None, str(partitions)))
    finally:
        # Also when the second of two changes is refused: the first is done.
        if changes:
            _show_changes(Output(settings), name, changes, dry_run=dry_run)
    settings.suggest(f"dlogctl topic describe {name}")
    return exit_codes.OK


@topic.command()
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@click.option("--dry-run", is_flag=True, help="Say what would be deleted, change nothing.")
@click.option("--if-exists", is_flag=True, help="A topic that is not there is no error.")
@common_options
@click.pass_context
def delete(
    context: click.Context, names: tuple[str, ...], yes: bool, dry_run: bool, if_exists: bool
) -> int:
    """Delete topics with all their data."""
    settings = settings_of(context)
    with connected(settings) as client:
        wanted = _deletable(client, settings, names, if_exists=if_exists)
        if wanted and not dry_run and not yes:
            click.confirm(f"Delete {', '.join(wanted)} with all data?", abort=True, err=True)
        result = "would be deleted" if dry_run else "deleted"
        done: list[str] = []
        try:
            for name in wanted:
                if not dry_run:
                    client.run(lambda each=name: client.admin.delete_topic(each))  # type: ignore[misc]
                done.append(name)
        finally:
            if done or not wanted:
                _show_deleted(Output(settings), done, result)
    return exit_codes.OK


def _show_deleted(output: Output, names: list[str], result: str) -> None:
    if output.for_people:
        for name in names:
            click.echo(f"topic {name} {result}")
        return
    rows = [{"topic": name, "result": result} for name in names]
    output.rows(rows, (Column("TOPIC", "topic"), Column("RESULT", "result")))


def _deletable(
    client: BlockingClient, settings: Settings, names: tuple[str, ...], *, if_exists: bool
) -> list[str]:
    """Return the topics to delete; raise for one that is missing before anything is deleted."""
    view = client.run(lambda: client.admin.describe_topics(names))
    found = []
    for name in dict.fromkeys(names):
        described = view.topics.get(name)
        if described is not None and described.error_code == NONE:
            found.append(name)
        elif not if_exists:
            settings.suggest("dlogctl topic list")
            raise UnknownTopicOrPartitionError(f"there is no topic {name}")
    return found
