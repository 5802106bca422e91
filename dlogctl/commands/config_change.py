"""`dlogctl config set` and `unset`: change configs of a topic or the cluster; say what changed."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import click

from dlog.client.blocking import BlockingClient
from dlog.errors import InvalidConfigError, InvalidRequestError
from dlogctl import exit_codes
from dlogctl.cluster.config_meaning import (
    Meaning,
    is_of_nodes,
    meaning_of,
    nearest,
    plain_value,
    readable,
)
from dlogctl.cluster.resources import Target, describe, target_of
from dlogctl.commands.config_show import row_of
from dlogctl.groups import ExampleCommand
from dlogctl.output.documents import Column, Output
from dlogctl.output.escaping import say
from dlogctl.session import connected, naming_topic
from dlogctl.settings import Settings, common_options, settings_of
from dlogctl.shell.completion import (
    complete_configs,
    complete_nodes,
    complete_pairs,
    complete_topics,
)

CHANGE_COLUMNS = (
    Column("CONFIG", "config"),
    Column("FROM", "from"),
    Column("WAS", "from_source"),
    Column("TO", "to"),
    Column("IS", "to_source"),
    Column("DRY-RUN", "dry_run", wide=True),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """What is to be set, and what is to go back to its default."""

    set_values: Mapping[str, str]
    unset: Sequence[str] = ()

    @property
    def keys(self) -> list[str]:
        """All configs that it is about."""
        return [*self.set_values, *self.unset]


def parse_pairs(pairs: Sequence[str]) -> dict[str, str]:
    """Parse `key=value` texts, values with units where the config counts; raise BadParameter."""
    found = {}
    for each in pairs:
        key, equals, value = each.partition("=")
        if not equals or not key:
            raise click.BadParameter(f"{each!r} is not key=value")
        try:
            found[key] = plain_value(key, value)
        except ValueError as error:
            raise click.BadParameter(f"{key}: {error}") from None
    return found


def take_pairs(
    _context: click.Context, _parameter: click.Parameter, given: tuple[str, ...]
) -> dict[str, str]:
    """Parse the pairs of an option or argument."""
    return parse_pairs(given)


def _values(client: BlockingClient, target: Target) -> dict[str, dict[str, Any]]:
    return {each.name: row_of(each) for each in describe(client, target)}


def refused(error: InvalidConfigError, target: Target, change: Change) -> InvalidConfigError:
    """Return the cluster's refusal with what would be right."""
    of_node = not target.is_topic and not target.is_cluster
    for key in (each for each in change.keys if of_node and not is_of_nodes(each)):
        # The node that was asked speaks of itself.
        if (meaning := meaning_of(key)) is not None:
            return InvalidConfigError(_not_of_nodes(key, meaning))
    text = str(error).rstrip(".;")
    named = next((each for each in change.keys if each in text), None)
    if named is not None:
        text += ("" if text.endswith("?") else ";") + " " + _hint(named, target, text)
    return InvalidConfigError(text)


def _hint(key: str, target: Target, text: str) -> str:
    meaning = meaning_of(key)
    if meaning is None:
        near = nearest(key)
        known = f"did you mean {near}? " if near and "did you mean" not in text else ""
        return f"{known}see all: dlogctl config explain"
    if target.is_topic and is_of_nodes(key):
        return f"{key} is of a node, or of the whole cluster: --node instead of --topic"
    if target.name_of(meaning) is None and not is_of_nodes(key):
        return f"{meaning.file_name} belongs into the file of each node; see: dlogctl config check"
    return f"see: dlogctl config explain {key}"


def _not_of_nodes(key: str, meaning: Meaning) -> str:
    """Return what to do instead of setting a config for one node that no single node has."""
    ways = []
    if meaning.cluster_name is not None:
        ways.append(f"set {meaning.cluster_name} for the whole cluster, without --node")
    if meaning.file_name is not None:
        ways.append(f"{meaning.file_name} stands in the file of each node")
    return f"{key} cannot be set for one node: {', or: '.join(ways) or 'only for topics'}"


def apply_change(
    client: BlockingClient, target: Target, change: Change, *, dry_run: bool
) -> list[dict[str, Any]]:
    """Change configs; return what was and what is, by looking before and after."""
    before = _values(client, target)
    try:
        with naming_topic(target.name):
            client.run(
                lambda: client.admin.alter_configs(
                    target.resource,
                    target.name,
                    set_values=change.set_values,
                    delete_names=change.unset,
                    validate_only=dry_run,
                )
            )
    except (InvalidConfigError, InvalidRequestError) as error:
        raise refused(InvalidConfigError(str(error)), target, change) from None
    after = before if dry_run else _values(client, target)
    rows = []
    for key in change.keys:
        was, now = before.get(key), after.get(key)
        if dry_run:
            set_value = change.set_values.get(key)
            now = None if set_value is None else {"value": set_value, "source": _level(target)}
        rows.append(
            {
                "config": key,
                "from": was["value"] if was else None,
                "from_source": was["source"] if was else "default",
                "to": now["value"] if now else None,
                "to_source": now["source"] if now else "default",
                "dry_run": dry_run,
            }
        )
    return rows


def _level(target: Target) -> str:
    return "topic" if target.is_topic else "cluster" if target.is_cluster else "node"


def _described(key: str, value: str | None, source: str) -> str:
    text = readable(key, value)
    if text is None:
        return "default" if source == "default" else f"({source})"
    return f"{text} [{source}]"


def change_line(row: Mapping[str, Any]) -> str:
    """Return one change for people."""
    key = row["config"]
    old = _described(key, row["from"], row["from_source"])
    new = _described(key, row["to"], row["to_source"])
    return f"{key}: {old} (no change)" if old == new else f"{key}: {old} -> {new}"


def show_changes(settings: Settings, target: Target, rows: list[dict[str, Any]]) -> None:
    """Say what changed; with --explain, what the configs mean."""
    output = Output(settings)
    if not output.for_people:
        output.rows(rows, CHANGE_COLUMNS)
        return
    for row in rows:
        would = "would become" if row["dry_run"] else "now"
        say(f"{target} {would}: {change_line(row)}")
        meaning = meaning_of(row["config"])
        if settings.explain and meaning is not None:
            say(f"{row['config']}: {meaning.meaning}", err=True)


@click.command(
    "set",
    cls=ExampleCommand,
    examples=(
        ("dlogctl config set retention.ms=3d --topic events", "Keep a topic's data three days."),
        ("dlogctl config set log.retention.ms=30d", "The default of all topics."),
        ("dlogctl config set flush.policy=interval --topic events --dry-run", "Would it do?"),
        (
            "dlogctl config set follower.replication.throttled.rate=20MiB --node 3",
            "Largest rate at which node 3 fetches for its throttled replicas, per second.",
        ),
    ),
)
@click.argument("pairs", nargs=-1, required=True, metavar="KEY=VALUE...",
                shell_complete=complete_pairs)  # fmt: skip
@click.option("--topic", metavar="NAME", shell_complete=complete_topics, help="Of a topic.")
@click.option("--node", type=click.IntRange(min=0), metavar="ID", shell_complete=complete_nodes,
              help="Throttles of a node's replication.")  # fmt: skip
@click.option("--dry-run", is_flag=True, help="Let the cluster check it, change nothing.")
@common_options
@click.pass_context
def set_configs(
    context: click.Context,
    pairs: tuple[str, ...],
    topic: str | None,
    node: int | None,
    dry_run: bool,
) -> int:
    """Set configs of a topic or, without --topic, of the whole cluster.

    Values of configs that count milliseconds or bytes may have a unit: 3d, 90min, 1GiB.
    """
    if len(pairs) == 2 and not any("=" in each for each in pairs):
        command = f"{context.command_path} {pairs[0]}={pairs[1]}"
        raise click.UsageError(f"KEY=VALUE is one word: {command}", context)
    change = Change(set_values=parse_pairs(pairs))
    return _carry_out(context, target_of(context, topic, node), change, dry_run=dry_run)


@click.command(
    cls=ExampleCommand,
    examples=(
        ("dlogctl config unset retention.ms --topic events", "Back to what holds for all topics."),
        ("dlogctl config unset log.retention.ms", "Back to the nodes' files, or the default."),
    ),
)
@click.argument("keys", nargs=-1, required=True, metavar="KEY...", shell_complete=complete_configs)
@click.option("--topic", metavar="NAME", shell_complete=complete_topics, help="Of a topic.")
@click.option("--node", type=click.IntRange(min=0), metavar="ID", shell_complete=complete_nodes,
              help="Throttles of a node's replication.")  # fmt: skip
@click.option("--dry-run", is_flag=True, help="Let the cluster check it, change nothing.")
@common_options
@click.pass_context
def unset(
    context: click.Context,
    keys: tuple[str, ...],
    topic: str | None,
    node: int | None,
    dry_run: bool,
) -> int:
    """Bring configs of a topic or, without --topic, of the cluster back to their defaults."""
    change = Change(set_values={}, unset=tuple(dict.fromkeys(keys)))
    return _carry_out(context, target_of(context, topic, node), change, dry_run=dry_run)


def _carry_out(context: click.Context, target: Target, change: Change, *, dry_run: bool) -> int:
    settings = settings_of(context)
    with connected(settings) as client:
        rows = apply_change(client, target, change, dry_run=dry_run)
    show_changes(settings, target, rows)
    settings.suggest(f"dlogctl config show{target.options}")
    return exit_codes.OK
