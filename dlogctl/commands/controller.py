"""`dlogctl controller`: voters of the metadata, and their changes."""

import click

from dlogctl.groups import LazyGroup

COMMANDS = {
    "list": ("dlogctl.commands.controller_show:list_controllers", "List the controllers."),
    "add": ("dlogctl.commands.controller_change:add", "Let a node vote on the metadata."),
    "remove": ("dlogctl.commands.controller_change:remove", "Let a node vote no longer."),
    "transfer": (
        "dlogctl.commands.controller_change:transfer",
        "Make another voter the controller.",
    ),
}


@click.group(
    cls=LazyGroup,
    table=COMMANDS,
    examples=(
        ("dlogctl controller list", "Voters, observers, and how far each is."),
        ("dlogctl controller transfer 2", "Node 2 shall be the controller."),
    ),
)
def controller() -> None:
    """Show and change who keeps the cluster's metadata.

    Voters keep the metadata, and most of them must be up for anything to change; one of them is the
    controller. All other nodes are observers, which follow. A change that would lose the quorum is
    refused.
    """
