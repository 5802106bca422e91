"""`dlogctl topic`: its commands, each in a module of its own."""

import click

from dlogctl.groups import LazyGroup

COMMANDS = {
    "create": ("dlogctl.commands.topic_change:create", "Create a topic."),
    "list": ("dlogctl.commands.topic_show:list_topics", "List all topics."),
    "describe": (
        "dlogctl.commands.topic_show:describe",
        "Show partitions, leaders, offsets, configs.",
    ),
    "alter": (
        "dlogctl.commands.topic_change:alter",
        "Change configs or the number of partitions.",
    ),
    "trim": ("dlogctl.commands.topic_trim:trim", "Delete the oldest records of a topic."),
    "delete": ("dlogctl.commands.topic_change:delete", "Delete topics with all their data."),
}


@click.group(
    cls=LazyGroup,
    table=COMMANDS,
    examples=(
        ("dlogctl topic create events -p 12", "Create a topic with twelve partitions."),
        ("dlogctl topic describe events --explain", "All about it."),
    ),
)
def topic() -> None:
    """Create, list, describe, alter, trim and delete topics."""
