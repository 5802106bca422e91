"""Words that a configuration value may be.

Pure. Topic configs (`dlogd.metadata.state.topic_configs`) use the same words for the same things.
"""

from enum import StrEnum


class FlushPolicy(StrEnum):
    """When an appended batch is brought to stable storage."""

    ALWAYS = "always"
    INTERVAL = "interval"
    NEVER = "never"


class DirectIo(StrEnum):
    """Whether segment files bypass the page cache."""

    AUTO = "auto"
    ON = "on"
    OFF = "off"


class IoEngineKind(StrEnum):
    """Which engine carries out disk I/O."""

    AUTO = "auto"
    AIO = "aio"
    THREADS = "threads"


class MembershipKind(StrEnum):
    """Who says which nodes are there."""

    STATIC = "static"
    SERF = "serf"


class LogFormat(StrEnum):
    """Where log lines go and in which form."""

    TEXT = "text"
    JSON = "json"
    JOURNAL = "journal"


class LogLevel(StrEnum):
    """The least severe line that is logged."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


class AckMode(StrEnum):
    """When a producer hears "yes"; from the weakest to the strongest."""

    NONE = "none"
    LEADER = "leader"
    ALL = "all"

    @property
    def acks(self) -> int:
        """The value on the wire: 0, 1 or -1."""
        return _ACKS_OF[self]

    @property
    def strength(self) -> int:
        """0, 1 or 2: what is larger promises more."""
        return _STRENGTH_OF[self]


_ACKS_OF = {AckMode.NONE: 0, AckMode.LEADER: 1, AckMode.ALL: -1}
_STRENGTH_OF = {AckMode.NONE: 0, AckMode.LEADER: 1, AckMode.ALL: 2}
