"""Checks of a proposer before a command goes into the log.

Pure. The machine must decide the same on nodes of all versions, so it does not know which config
values make sense; that is checked here, with this version's table.
"""

from dlog.errors import InvalidRequestError, WireError
from dlogd.metadata.commands.codec import (
    AlterConfigs,
    Command,
    CreateTopic,
    CreateTopics,
    Guarded,
    MalformedCommandError,
    encode,
)
from dlogd.metadata.machine import apply
from dlogd.metadata.state import topic_configs
from dlogd.metadata.state.image import Applied, ClusterImage, Refused


def admit(command: Command) -> Refused | None:
    """Return why a command must not be proposed, None when it may be."""
    if isinstance(command, Guarded):
        command = command.command
    try:
        if isinstance(command, CreateTopic):
            topic_configs.validate_topic(command.configs)
        elif isinstance(command, CreateTopics):
            for topic in command.topics:
                topic_configs.validate_topic(topic.configs)
        elif isinstance(command, AlterConfigs):
            values = {c.key: c.value for c in command.changes if c.value is not None}
            if command.topic_id is None:
                topic_configs.validate_stored(values)
            else:
                topic_configs.validate_topic(values)
    except WireError as error:
        return Refused.of(error)
    return None


def evaluate(image: ClusterImage, command: Command) -> Applied | Refused:
    """Return the outcome that a command would have on `image` (validate-only requests)."""
    refusal = admit(command)
    if refusal is not None:
        return refusal
    try:
        data = encode(command)
    except MalformedCommandError as error:
        return Refused.of(InvalidRequestError(f"Malformed command: {error}"))
    return apply.apply(image, data)[1]
