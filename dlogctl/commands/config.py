"""`dlogctl config`: its commands, each in a module of its own."""

import click

from dlogctl.groups import LazyGroup

COMMANDS = {
    "show": ("dlogctl.commands.config_show:show", "Show the configs of a topic, a node, or all."),
    "get": ("dlogctl.commands.config_show:get", "Print values of configs."),
    "set": ("dlogctl.commands.config_change:set_configs", "Set configs of a topic or the cluster."),
    "unset": ("dlogctl.commands.config_change:unset", "Bring configs back to their defaults."),
    "explain": (
        "dlogctl.commands.config_explain:explain",
        "Say what configs mean: type, default, bounds.",
    ),
    "check": ("dlogctl.commands.config_check:check", "Check a configuration file, offline."),
}


@click.group(
    cls=LazyGroup,
    table=COMMANDS,
    examples=(
        ("dlogctl config show --topic events", "Configs of a topic."),
        ("dlogctl config set retention.ms=3d --topic events", "Change it."),
        ("dlogctl config explain retention.ms", "Its meaning."),
    ),
)
def config() -> None:
    """Show, change, explain configurations; check files.

    Without --topic or --node it is about the whole cluster: what holds for all topics that have
    nothing else set.
    """
