"""Plans of the planner as plain lists, for comparison."""

from typing import Any

from dlogd.controller.planner import Plan
from dlogd.metadata.commands.codec import (
    AlterAssignments,
    ElectLeaders,
    FenceNodes,
    ShutDownNode,
    UnfenceNode,
)


def plain(plan: Plan) -> list[Any]:
    """Return what a plan does, without the ids of its commands."""
    found: list[Any] = []
    for guarded in plan.commands:
        command = guarded.command
        if isinstance(command, FenceNodes):
            found.append(("fence", *(node_id for node_id, _ in command.nodes)))
        elif isinstance(command, ShutDownNode):
            found.append(("shut down", command.node_id))
        elif isinstance(command, UnfenceNode):
            found.append(("unfence", command.node_id))
        elif isinstance(command, ElectLeaders):
            keys = [(topic_id, n) for topic_id, numbers in command.partitions for n in numbers]
            found.append(("elect", command.election, sorted(keys, key=str)))
        else:
            assert isinstance(command, AlterAssignments)
            found.append(("move", command.reassignments))
    return found
