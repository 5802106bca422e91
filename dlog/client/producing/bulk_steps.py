"""Steps that all kinds of bulk append share, taken by the producer. Pure."""

from enum import Enum, auto
from typing import Any, Protocol

from dlog.client.producing.accumulator import Accumulator
from dlog.client.producing.topic_queues import TopicQueues
from dlog.errors import DlogError


class Step(Enum):
    """How far one step came."""

    MORE = auto()
    """Some records were taken; there are more."""
    SHORT = auto()
    """There is no memory for the next record."""
    DONE = auto()


class Append(Protocol):
    """Records on their way into batches, some at each step."""

    def advance(self, now_s: float) -> Step:
        """Append some more."""


def check_same(accumulator: Accumulator, name: str, topic: TopicQueues | None) -> None:
    """Raise DlogError when `topic` is no more: its partitions were chosen for these records."""
    if accumulator.topic(name) is not topic:
        raise DlogError(f"{name} was deleted and recreated while records were taken over")


class Arrow(Protocol):
    """One of pyarrow's arrays, record batches or tables, which have no types of their own."""

    @property
    def nbytes(self) -> int:
        """Bytes of all buffers."""

    def to_pylist(self) -> list[Any]:
        """Return a Python object per row."""


def is_arrow(records: object) -> bool:
    """Return whether this is one of pyarrow's objects; does not import it."""
    return type(records).__module__.partition(".")[0] == "pyarrow"
