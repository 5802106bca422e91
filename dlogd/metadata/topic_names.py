"""Which names a topic may have: Kafka's rules.

Pure.
"""

import re
from collections.abc import Iterable

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


def collision(name: str, others: Iterable[str]) -> str | None:
    """Return the first other name that differs only by `.` for `_`, None when there is none.

    Metric names know only one of the two characters, so such topics would be counted as one.
    """
    if "." not in name and "_" not in name:
        return None
    unified = name.replace(".", "_")
    for other in others:
        if len(other) == len(name) and other.replace(".", "_") == unified and other != name:
            return other
    return None
