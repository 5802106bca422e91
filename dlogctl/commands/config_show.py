"""`dlogctl config show` and `get`: configuration in force, and its source."""

from typing import Any

import click

from dlog.client.views import ConfigEntry
from dlogctl import exit_codes
from dlogctl.cluster.config_meaning import meaning_of, nearest, readable
from dlogctl.cluster.resources import Target, describe, target_of
from dlogctl.groups import ExampleCommand
from dlogctl.output.documents import Column, Output
from dlogctl.output.escaping import say
from dlogctl.session import connected
from dlogctl.settings import Settings, common_options, settings_of
from dlogctl.shell.completion import complete_configs, complete_nodes, complete_topics

COLUMNS = (
    Column("CONFIG", "name"),
    Column("VALUE", "value"),
    Column("SOURCE", "source"),
    Column("READ-ONLY", "read_only", wide=True),
    Column("MEANING", "doc", wide=True),
)
EXPLAINED_COLUMNS = (*COLUMNS[:3], Column("MEANING", "doc"))
# DescribeConfigs names where a value comes from by number (KIP-226).
SOURCES = {1: "topic", 2: "node", 3: "cluster", 4: "file", 5: "default", 6: "log level"}


def row_of(entry: ConfigEntry) -> dict[str, Any]:
    """Return a config as a row."""
    return {
        "name": entry.name,
        "value": "(hidden)" if entry.is_sensitive else entry.value,
        "source": SOURCES.get(entry.source, "unknown"),
        "read_only": entry.read_only,
        "doc": entry.doc,
    }


def explained_row(entry: ConfigEntry) -> dict[str, Any]:
    """Return a config as a row, with what this version knows about it."""
    meaning = meaning_of(entry.name)
    known = {} if meaning is None else {"default": meaning.default, "bounds": meaning.bounds}
    return {**row_of(entry), "type": meaning.type if meaning else None, **known}


def for_people(row: dict[str, Any]) -> dict[str, Any]:
    """Return the row with its value as people read it."""
    return {**row, "value": readable(row["name"], row["value"])}


@click.command(
    cls=ExampleCommand,
    examples=(
        ("dlogctl config show", "Configs of the whole cluster."),
        ("dlogctl config show --topic events --all", "Also what stands at its default."),
        ("dlogctl config show --node 1 -o wide", "Configuration of a node, explained."),
    ),
)
@click.option("--topic", metavar="NAME", shell_complete=complete_topics, help="Of a topic.")
@click.option("--node", type=click.IntRange(min=0), metavar="ID", shell_complete=complete_nodes,
              help="Configuration of a running node.")  # fmt: skip
@click.option("--all", "with_defaults", is_flag=True, help="Defaults too.")
@common_options
@click.pass_context
def show(context: click.Context, topic: str | None, node: int | None, with_defaults: bool) -> int:
    """Show the configs of a topic or a node; of neither: the cluster's own."""
    settings = settings_of(context)
    target = target_of(context, topic, node)
    with connected(settings) as client:
        entries = describe(client, target)
    shown = [each for each in entries if with_defaults or not each.is_default]
    rows = [row_of(each) for each in sorted(shown, key=lambda each: each.name)]
    output = Output(settings)
    if output.for_people:
        rows = [for_people(each) for each in rows]
    output.rows(rows, EXPLAINED_COLUMNS if settings.explain else COLUMNS)
    if not with_defaults:
        settings.suggest(f"{context.command_path}{target.options} --all")
    return exit_codes.OK


@click.command(
    cls=ExampleCommand,
    examples=(
        ("dlogctl config get retention.ms --topic events", "The value and nothing else."),
        ("dlogctl config get flush.policy ack.default --topic events", "Several, as a table."),
        ("dlogctl config get http.address --node 1", "Configuration of a node."),
    ),
)
@click.argument("keys", nargs=-1, required=True, metavar="KEY...", shell_complete=complete_configs)
@click.option("--topic", metavar="NAME", shell_complete=complete_topics, help="Of a topic.")
@click.option("--node", type=click.IntRange(min=0), metavar="ID", shell_complete=complete_nodes,
              help="Configuration of a running node.")  # fmt: skip
@common_options
@click.pass_context
def get(context: click.Context, keys: tuple[str, ...], topic: str | None, node: int | None) -> int:
    """Print the values of configs, of a topic, a node or the cluster.

    One KEY gives its bare value, several a table. A config that nobody has set for the cluster has
    its default there, or what the nodes' files say: see --node.
    """
    settings = settings_of(context)
    target = target_of(context, topic, node)
    with connected(settings) as client:
        found = {each.name: row_of(each) for each in describe(client, target)}
    rows = [found.get(key) or _row_of_missing(key, target) for key in dict.fromkeys(keys)]
    _print(settings, rows)
    settings.suggest(f"dlogctl config explain {keys[0]}")
    return exit_codes.OK


def _print(settings: Settings, rows: list[dict[str, Any]]) -> None:
    output = Output(settings)
    if output.for_people and len(rows) == 1:
        say("" if rows[0]["value"] is None else rows[0]["value"])
    else:
        output.rows(rows, COLUMNS)


def _row_of_missing(key: str, target: Target) -> dict[str, Any]:
    """Return a config of the cluster that nobody has set; raise for one that there is not."""
    meaning = meaning_of(key)
    if target.is_cluster and meaning is not None and meaning.cluster_name == key:
        return {
            "name": key,
            "value": meaning.default,
            "source": "default",
            "read_only": False,
            "doc": meaning.meaning,
        }
    raise no_config(key, target)


def no_config(key: str, target: Target) -> click.ClickException:
    """Return the error about a config that `target` does not have."""
    meaning = meaning_of(key)
    hint = ";"
    if meaning is not None:
        other = target.name_of(meaning)
        hint = f"; there it is {other};" if other else "; it belongs into each node's file;"
    elif near := nearest(key):
        hint = f"; did you mean {near}?"
    return click.ClickException(f"{target} has no config {key}{hint} see: dlogctl config explain")
