"""Rules for topic names, as in Kafka.

Pure.
"""

import re

from dlog.errors import InvalidTopicError

NAME_LENGTH_MAX = 249
_LEGAL = re.compile(r"[a-zA-Z0-9._-]+\Z")


def validate(name: str) -> None:
    """Raise InvalidTopicError when no topic may have this name."""
    if not name:
        raise InvalidTopicError("Topic name is invalid: the empty string is not allowed")
    if name in (".", ".."):
        raise InvalidTopicError(f"Topic name is invalid: '{name}' is not allowed")
    if len(name) > NAME_LENGTH_MAX:
        raise InvalidTopicError(
            f"Topic name is invalid: its length {len(name)} is more than {NAME_LENGTH_MAX}"
        )
    if not _LEGAL.match(name):
        raise InvalidTopicError(
            f"Topic name is invalid: {name!r} has characters other than ASCII letters and digits, "
            "'.', '_' and '-'"
        )


def can_collide(name: str) -> bool:
    """Whether another name could differ from this one only by `.` for `_`."""
    return "." in name or "_" in name


def unified(name: str) -> str:
    """Return what a name and those that it collides with have in common.

    Metric names know only one of the two characters, so such topics would be counted as one.
    """
    return name.replace(".", "_")
