"""Steps of the machine for the controller and the feature level.

Pure. Each step returns the next image and a value, or raises the WireError of its refusal;
`dlogd.metadata.machine.apply` calls them.
"""

from dataclasses import replace

from dlog.errors import (
    InvalidRequestError,
    NotControllerError,
    RequestTimedOutError,
    UnsupportedVersionError,
)
from dlogd.metadata.commands.codec import ClaimController, Guarded, SetFeatureLevel
from dlogd.metadata.machine.image_changes import Step
from dlogd.metadata.machine.node import node_of
from dlogd.metadata.state.image import ClusterImage, Controller


def claim_controller(image: ClusterImage, command: ClaimController) -> Step:
    """Make a node the controller; the value is its controller epoch."""
    node_of(image, command.node_id, command.node_epoch)
    present = image.controller.epoch
    if command.controller_epoch != present:
        raise NotControllerError(
            f"The controller epoch is {present}, not {command.controller_epoch}"
        )
    controller = Controller(
        epoch=present + 1, node_id=command.node_id, node_epoch=command.node_epoch
    )
    return replace(image, controller=controller), controller.epoch


def set_feature_level(image: ClusterImage, command: SetFeatureLevel) -> Step:
    """Raise the feature level; the value is the new one."""
    if command.level <= image.feature_level:
        raise InvalidRequestError(
            f"The cluster is at feature level {image.feature_level}; there is no way back"
        )
    if not image.nodes:
        raise InvalidRequestError("No node has registered")
    for node in image.nodes.values():
        if not node.level_min <= command.level <= node.level_max:
            raise UnsupportedVersionError(
                f"Node {node.node_id} knows feature levels {node.level_min} to {node.level_max}"
            )
    return image.at_level(command.level), command.level


def check_guard(image: ClusterImage, guard: Guarded) -> None:
    """Raise when a command comes too late, or from somebody who is controller no longer.

    `image` has the version that the command makes.
    """
    if image.version > guard.version_max:
        raise RequestTimedOutError(
            f"The command was meant for version {guard.version_max} at the latest: "
            "whether it was applied before is not known any more"
        )
    if guard.controller_epoch not in (-1, image.controller.epoch):
        raise NotControllerError(
            f"The controller epoch is {image.controller.epoch}, not {guard.controller_epoch}"
        )
