"""`dlogctl topic create`, `alter` and `delete`."""

from collections.abc import Sequence
from typing import Any

import click

from dlog.client.admin import Admin, Resource
from dlog.client.blocking import BlockingClient
from dlog.errors import (
    NONE,
    InvalidConfigError,
    InvalidPartitionsError,
    InvalidReplicationFactorError,
    TopicAlreadyExistsError,
)
from dlog.types import INT32_MAX
from dlogctl import exit_codes
from dlogctl.cluster.config_meaning import meaning_of
from dlogctl.cluster.partition_names import parse_nodes
from dlogctl.cluster.resources import Target
from dlogctl.commands.config_change import Change, apply_change, change_line, refused, take_pairs
from dlogctl.groups import ExampleCommand
from dlogctl.output.documents import Column, Output
from dlogctl.output.escaping import confirm, say
from dlogctl.session import connected, naming_topic, no_topic
from dlogctl.settings import Settings, common_options, settings_of
from dlogctl.shell.completion import complete_configs, complete_pairs, complete_topics

PARTITIONS = "partitions"  # beside the names of configs, none of which is called so
CHANGE_COLUMNS = tuple(
    Column(key.upper(), key) for key in ("topic", "changed", "from", "to", "dry_run")
)


def _explain(settings: Settings, configs: list[str]) -> None:
    """With --explain, say what the configs mean that somebody sets."""
    for name in configs if settings.explain else ():
        if (meaning := meaning_of(name)) is not None:
            say(f"{name}: {meaning.meaning}", err=True)


def _take_nodes(
    _context: click.Context, _option: click.Parameter, texts: tuple[str, ...]
) -> list[Sequence[int]]:
    try:
        return [parse_nodes(text) for text in texts]
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


@click.command(
    cls=ExampleCommand,
    examples=(
        ("dlogctl topic create events", "With the cluster's number of partitions and replicas."),
        ("dlogctl topic create events -p 12 -s retention.ms=3d", "Twelve partitions, three days."),
        ("dlogctl topic create events --assign 1,2 --assign 2,3", "Two, on the nodes named."),
        ("dlogctl topic create events --if-not-exists", "For a script that runs many times."),
        ("dlogctl topic create events -p 12 --dry-run", "Would the cluster take it?"),
    ),
)
@click.argument("name")
@click.option("-p", "--partitions", type=click.IntRange(1, INT32_MAX), metavar="N",
              help="Default: the cluster's.")  # fmt: skip
@click.option("-r", "--replication-factor", type=click.IntRange(1, 32), metavar="N",
              help="Default: the cluster's.")  # fmt: skip
@click.option(
    "-c", "--config", "-s", "--set", "configs", multiple=True, metavar="KEY=VALUE",
    callback=take_pairs, shell_complete=complete_pairs,
    help="A topic config, such as retention.ms=3d; may be given many times.",
)  # fmt: skip
@click.option("--assign", "assignments", multiple=True, metavar="NODE,...", callback=_take_nodes,
              help="Nodes of a partition, preferred leader first; once for each.")  # fmt: skip
@click.option("--if-not-exists", is_flag=True, help="An existing topic is not an error.")
@click.option("--dry-run", is_flag=True, help="Let the cluster check it, change nothing.")
@common_options
@click.pass_context
def create(
    context: click.Context,
    name: str,
    partitions: int | None,
    replication_factor: int | None,
    configs: dict[str, str],
    assignments: list[Sequence[int]],
    if_not_exists: bool,
    dry_run: bool,
) -> int:
    """Create topic NAME."""
    if assignments and (partitions or replication_factor):
        raise click.UsageError("--assign says how many partitions and replicas there are", context)
    settings = settings_of(context)
    output = Output(settings)
    with connected(settings) as client:
        try:
            topic_id = client.run(
                lambda: client.admin.create_topic(
                    name,
                    partitions=partitions or -1,
                    replication_factor=replication_factor or -1,
                    assignments=assignments or None,
                    configs=configs,
                    validate_only=dry_run,
                )
            )
        except TopicAlreadyExistsError:
            if not if_not_exists:
                raise TopicAlreadyExistsError(
                    f"there is a topic {name}; see: dlogctl topic describe {name}"
                ) from None
            output.done(f"topic {name} exists", topic=name, result="exists", topic_id=None)
            return exit_codes.OK
        except InvalidConfigError as error:
            target, change = Target(Resource.TOPIC, name), Change(set_values=configs, unset=())
            raise refused(error, target, change) from None
        except InvalidReplicationFactorError as error:
            text = str(error).rstrip(".")
            raise InvalidReplicationFactorError(f"{text}; see them: dlogctl status") from None
    if dry_run:
        text, result = f"topic {name} would be created", "would be created"
    else:
        text, result = f"topic {name} created: {topic_id}", "created"
    output.done(text, topic=name, result=result, topic_id=None if dry_run else str(topic_id))
    _explain(settings, list(configs))
    settings.suggest(f"dlogctl topic {'create' if dry_run else 'describe'} {name}")
    return exit_codes.OK


def _show_changes(
    output: Output, name: str, rows: list[dict[str, Any]], partitions: int | None, *, dry_run: bool
) -> None:
    if output.for_people:
        would = "would become" if dry_run else "now"
        for row in rows:
            say(f"topic {name} {would}: {change_line(row)}")
        if partitions is not None:
            say(f"topic {name} {would}: {partitions} partitions")
        return
    changes: list[tuple[str, Any, Any]] = [(row["config"], row["from"], row["to"]) for row in rows]
    if partitions is not None:
        changes.append((PARTITIONS, None, str(partitions)))
    told = [
        {"topic": name, "changed": key, "from": old, "to": new, "dry_run": dry_run}
        for key, old, new in changes
    ]
    output.rows(told, CHANGE_COLUMNS)


@click.command(
    cls=ExampleCommand,
    examples=(
        ("dlogctl topic alter events -s retention.ms=7d", "Change a config."),
        ("dlogctl topic alter events -u retention.ms", "Back to what holds for all topics."),
        ("dlogctl topic alter events -r 3", "Three replicas of each partition."),
        ("dlogctl topic alter events -p 24 --dry-run", "Could it have more partitions?"),
    ),
)
@click.argument("name", shell_complete=complete_topics)
@click.option("-p", "--partitions", type=click.IntRange(1, INT32_MAX), metavar="N",
              help="Raise their number to this.")  # fmt: skip
@click.option("-r", "--replication-factor", "factor", type=click.IntRange(1, 32), metavar="N",
              help="So many replicas; the cluster chooses the nodes.")  # fmt: skip
@click.option(
    "-s", "--set", "-c", "--config", "set_values", multiple=True, metavar="KEY=VALUE",
    callback=take_pairs, shell_complete=complete_pairs,
    help="Set a topic config; may be given many times.",
)  # fmt: skip
@click.option("-u", "--unset", multiple=True, metavar="KEY", shell_complete=complete_configs,
              help="Back to the default.")  # fmt: skip
@click.option("--dry-run", is_flag=True, help="Let the cluster check it, change nothing.")
@common_options
@click.pass_context
def alter(
    context: click.Context,
    name: str,
    partitions: int | None,
    factor: int | None,
    set_values: dict[str, str],
    unset: tuple[str, ...],
    dry_run: bool,
) -> int:
    """Change configs, the number of partitions or that of replicas of topic NAME.

    More partitions move keys: what has a key may go elsewhere than what had it before.
    """
    if partitions is None and factor is None and not set_values and not unset:
        options = "--partitions, --replication-factor, --set or --unset"
        raise click.UsageError(f"nothing to change: give {options}", context)
    settings = settings_of(context)
    rows: list[dict[str, Any]] = []
    grown: int | None = None
    try:
        with connected(settings) as client, naming_topic(name):
            if set_values or unset:
                target = Target(Resource.TOPIC, name)
                change = Change(set_values=set_values, unset=unset)
                rows = apply_change(client, target, change, dry_run=dry_run)
            if factor is not None:
                change = Change(set_values={"replication.factor": str(factor)})
                rows += apply_change(client, Target(Resource.TOPIC, name), change, dry_run=dry_run)
            if partitions is not None:
                _grow(client.admin, client, name, partitions, dry_run=dry_run)
                grown = partitions
    finally:
        # Also when the second of two changes is refused: the first is done.
        if rows or grown is not None:
            _show_changes(Output(settings), name, rows, grown, dry_run=dry_run)
    _explain(settings, [*set_values, *unset])
    moving = "dlogctl partition reassignments --watch --exit-when-done"
    settings.suggest(f"dlogctl topic describe {name}" if factor is None else moving)
    return exit_codes.OK


def _grow(
    admin: Admin, client: BlockingClient, name: str, partitions: int, *, dry_run: bool
) -> None:
    try:
        client.run(lambda: admin.create_partitions(name, partitions, validate_only=dry_run))
    except InvalidPartitionsError as error:
        raise InvalidPartitionsError(
            f"{str(error).rstrip('.')}; see how many there are: dlogctl topic describe {name}"
        ) from None


@click.command(
    cls=ExampleCommand,
    examples=(
        ("dlogctl topic delete events", "Asks first."),
        ("dlogctl topic delete old1 old2 --yes", "Several, without asking."),
        ("dlogctl topic delete events --dry-run", "Is it there, and what would happen?"),
    ),
)
@click.argument("names", nargs=-1, required=True, metavar="NAME...",
                shell_complete=complete_topics)  # fmt: skip
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@click.option("--dry-run", is_flag=True, help="Say what would be deleted, change nothing.")
@click.option("--if-exists", is_flag=True, help="A missing topic is not an error.")
@common_options
@click.pass_context
def delete(
    context: click.Context, names: tuple[str, ...], yes: bool, dry_run: bool, if_exists: bool
) -> int:
    """Delete topics with all their data."""
    settings = settings_of(context)
    with connected(settings) as client:
        wanted = _deletable(client, names, if_exists=if_exists)
        if wanted and not dry_run and not yes:
            confirm(f"Delete {', '.join(wanted)} with all data?")
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
    settings.suggest("dlogctl topic list")
    return exit_codes.OK


def _show_deleted(output: Output, names: list[str], result: str) -> None:
    if output.for_people:
        for name in names:
            say(f"topic {name} {result}")
        return
    rows = [{"topic": name, "result": result} for name in names]
    output.rows(rows, (Column("TOPIC", "topic"), Column("RESULT", "result")))


def _deletable(client: BlockingClient, names: tuple[str, ...], *, if_exists: bool) -> list[str]:
    """Return the topics to delete; raise for one that is missing before anything is deleted."""
    view = client.run(lambda: client.admin.describe_topics(names))
    found = []
    for name in dict.fromkeys(names):
        described = view.topics.get(name)
        if described is not None and described.error_code == NONE:
            found.append(name)
        elif not if_exists:
            raise no_topic(name)
    return found
