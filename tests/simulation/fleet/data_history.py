"""The history of a cluster's clients: beside sends and polls, gaps, ends, losses and epochs.

A loss is excused where the rules allow it (an unclean election, a wiped disk that nobody could
replace, power cuts under a weak flush policy): the registry writes it down when it happens.
"""

from dataclasses import dataclass, field
from typing import NamedTuple
from uuid import UUID

from dlog.client.gaps import Gap
from tests.histories.history import History, LogKey


class GapSeen(NamedTuple):
    """A consumer was told that records are missing."""

    client: str
    key: LogKey
    when_ns: int
    gap: Gap


class EndSeen(NamedTuple):
    """A consumer was told where a log ends."""

    client: str
    key: LogKey
    invoked_ns: int
    completed_ns: int
    offset: int


@dataclass(slots=True)
class FleetHistory(History):
    """Everything that clients of one run did and heard."""

    gaps: list[GapSeen] = field(default_factory=list)
    ends: list[EndSeen] = field(default_factory=list)
    ids: dict[str, list[UUID]] = field(default_factory=dict)  # of all lives of a topic
    begun_ns: dict[str, int] = field(default_factory=dict)  # of consumers
    # When records may have been lost, and when a leader epoch began, by log.
    losses_ns: dict[tuple[object, int], list[int]] = field(default_factory=dict)
    epochs_ns: dict[tuple[object, int], list[int]] = field(default_factory=dict)
    # Logs of which a node has forgotten who wrote what, and says so: it could not read all of it.
    forgetful: set[tuple[object, int]] = field(default_factory=set)

    def note_gap(self, client: str, key: LogKey, gap: Gap, when_ns: int) -> None:
        """Write down what a consumer was told is missing."""
        self.gaps.append(GapSeen(client, key, when_ns, gap))

    def note_end(
        self, client: str, key: LogKey, invoked_ns: int, completed_ns: int, offset: int
    ) -> None:
        """Write down where a log ends, as a consumer was told."""
        self.ends.append(EndSeen(client, key, invoked_ns, completed_ns, offset))

    def cut_between(self, key: LogKey, start_ns: int, end_ns: int) -> bool:
        """Return whether a log may have lost something between two times, and is excused."""
        # What a consumer reads of a topic that churns may be of any of its lives.
        name, churns, _ = key.topic.partition("@")
        ids = self.ids.get(name, ()) if churns else (key.topic_id,)
        return any(
            start_ns <= when_ns <= end_ns
            for topic_id in ids
            for when_ns in self.losses_ns.get((topic_id, key.partition), ())
        )

    def led_anew_since(self, key: LogKey, start_ns: int) -> bool:
        """Return whether a leader epoch began after a time."""
        found = self.epochs_ns.get((key.topic_id, key.partition), ())
        return any(when_ns >= start_ns for when_ns in found)
