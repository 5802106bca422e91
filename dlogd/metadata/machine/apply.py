"""State machine: `apply(image, command bytes) -> (image, outcome)`.

Pure, deterministic and total: it never raises, for any bytes, and every node that applies the same
commands in the same order gets the same image (hole H13). Leaders and epochs are decided here and
nowhere else (H12). Conditions of a command (compare-and-set) are checked here, so that a proposer
may work from an old image. What depends on the version of the software, such as which config values
make sense, is not checked here but by `dlogd.metadata.machine.admission` before a command is
proposed.

The steps are in modules of their own, one function for each kind of command.
"""

from collections.abc import Callable
from typing import Any

from dlog.errors import InvalidRequestError, UnsupportedVersionError, WireError
from dlogd.metadata.commands.codec import (
    AllocateProducerIds,
    AlterAssignments,
    AlterConfigs,
    AlterPartition,
    ClaimController,
    Command,
    CreatePartitions,
    CreateTopic,
    CreateTopics,
    DeleteTopic,
    DeleteTopics,
    DrainNode,
    ElectLeaders,
    FenceNodes,
    Guarded,
    HoldMaintenance,
    MalformedCommandError,
    PlainCommand,
    RegisterNode,
    ReleaseMaintenance,
    RemoveNode,
    ReportReplicas,
    SetFeatureLevel,
    ShutDownNode,
    UnfenceNode,
    decode,
    level_of,
)
from dlogd.metadata.machine import alter_partition, cluster, maintenance, node, partition, topic
from dlogd.metadata.machine.image_changes import Step
from dlogd.metadata.state.image import Applied, ClusterImage, Refused
from dlogd.metadata.state.limits import (
    CONFIGS_MAX,
    MESSAGE_LENGTH_MAX,
    PRODUCER_IDS_MAX,
    TOPIC_PARTITIONS_MAX,
    outcomes_remembered,
)

__all__ = ["CONFIGS_MAX", "PRODUCER_IDS_MAX", "TOPIC_PARTITIONS_MAX", "apply", "guarded"]


def guarded(image: ClusterImage, command: PlainCommand, *, controller_epoch: int = -1) -> Guarded:
    """Return a command that is never applied twice, proposed by somebody who sees `image`.

    Whoever repeats it after an unknown outcome must repeat this value, not make a new one.
    """
    return Guarded(
        version_max=image.version + outcomes_remembered(image.feature_level),
        controller_epoch=controller_epoch,
        command=command,
    )


def apply(
    image: ClusterImage, data: bytes | bytearray | memoryview
) -> tuple[ClusterImage, Applied | Refused]:
    """Apply the bytes of one command; the version rises by one in any case.

    A command that was applied before (by its id) changes nothing and has its first outcome again.
    """
    stepped = image.having(version=image.version + 1)
    try:
        command = decode(data)
    except MalformedCommandError as error:
        return stepped, _refusal(InvalidRequestError(f"Malformed command: {error}"))
    known = image.outcomes.get(command.command_id)
    if known is not None:
        return stepped, known
    try:
        plain = _admitted(stepped, command)
    except WireError as error:
        # Not remembered: software that does not know the command yet must get the same image.
        return stepped, _refusal(error)
    outcome: Applied | Refused
    try:
        changed, value = _STEPS[type(plain)](stepped, plain)
    except WireError as error:
        changed, outcome = stepped, _refusal(error)
    else:
        outcome = Applied(version=stepped.version, value=value)
    return _remember(changed, command, outcome), outcome


def _admitted(image: ClusterImage, command: Command) -> PlainCommand:
    """Return what a command does, or raise when it may not at all in this image."""
    level = level_of(command)
    if level > image.feature_level:
        raise UnsupportedVersionError(
            f"The command needs feature level {level}, the cluster is at {image.feature_level}"
        )
    if isinstance(command, Guarded):
        cluster.check_guard(image, command)
        return command.command
    return command


def _refusal(error: WireError) -> Refused:
    return Refused(code=error.code, message=str(error)[:MESSAGE_LENGTH_MAX])


def _remember(image: ClusterImage, command: Command, outcome: Applied | Refused) -> ClusterImage:
    keep = outcomes_remembered(image.feature_level)
    return image.having(outcomes=image.outcomes.with_newest(command.command_id, outcome, keep))


_STEPS: dict[type[Any], Callable[[ClusterImage, Any], Step]] = {
    RegisterNode: node.register_node,
    CreateTopic: topic.create_topic,
    DeleteTopic: topic.delete_topic,
    CreatePartitions: topic.create_partitions,
    AlterConfigs: topic.alter_configs,
    AllocateProducerIds: topic.allocate_producer_ids,
    CreateTopics: topic.create_topics,
    FenceNodes: node.fence_nodes,
    UnfenceNode: node.unfence_node,
    DrainNode: node.drain_node,
    ShutDownNode: node.shut_down_node,
    RemoveNode: node.remove_node,
    ReportReplicas: node.report_replicas,
    AlterPartition: alter_partition.alter_partition,
    ElectLeaders: partition.elect_leaders,
    AlterAssignments: partition.alter_assignments,
    ClaimController: cluster.claim_controller,
    SetFeatureLevel: cluster.set_feature_level,
    DeleteTopics: topic.delete_topics,
    HoldMaintenance: maintenance.hold_maintenance,
    ReleaseMaintenance: maintenance.release_maintenance,
}
