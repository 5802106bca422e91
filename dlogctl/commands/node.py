"""`dlogctl node`: its commands, each in a module of its own."""

import click

from dlogctl.groups import LazyGroup

COMMANDS = {
    "list": ("dlogctl.commands.node_show:list_nodes", "List all nodes, up or not."),
    "describe": ("dlogctl.commands.node_show:describe", "Show a node and what it holds."),
    "pre-restart": (
        "dlogctl.commands.node_restart:pre_restart",
        "Say what a restart of a node would do.",
    ),
    "restart": (
        "dlogctl.commands.node_roll:restart",
        "Restart a node so that no producer notices.",
    ),
    "drain": ("dlogctl.commands.node_drain:drain", "Take leaders, or everything, off nodes."),
    "undrain": ("dlogctl.commands.node_drain:undrain", "Let nodes lead again."),
    "plan-restart": (
        "dlogctl.commands.node_plan:plan_restart",
        "Say who has to be restarted, in order.",
    ),
    "post-restart": (
        "dlogctl.commands.node_return:post_restart",
        "Wait until a restarted node is back.",
    ),
    "remove": ("dlogctl.commands.node_drain:remove", "Forget a node that is gone."),
}


@click.group(
    cls=LazyGroup,
    table=COMMANDS,
    examples=(
        ("dlogctl node list", "All nodes, what they lead and hold."),
        ("dlogctl node pre-restart 2 && dlogctl node drain 2", "Before node 2 is restarted."),
    ),
)
def node() -> None:
    """Show, drain, restart and remove nodes.

    \b
    A restart that no producer notices:
      dlogctl node pre-restart 2       may it go?
      dlogctl node drain 2             its leaders move to others
      systemctl restart dlogd          on its host
      dlogctl node post-restart 2      is it back in everything?
      dlogctl node undrain 2           it leads again
    """
