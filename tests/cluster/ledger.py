"""What clients were told, and what must therefore be there in the end.

Each topic belongs to one client, which makes one change at a time, so its possible states are few:
one after everything that was acknowledged, and a second one when the last outcome is unknown (that
topic is then left alone). Pure.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from uuid import UUID


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicState:
    """A topic as it should be."""

    topic_id: UUID | None  # None: nobody told
    partitions: int
    replicas: int
    configs: Mapping[str, str]

    def differs(self, found: "TopicState") -> list[str]:
        """Return what is not as it should be."""
        wrong = []
        if self.topic_id is not None and self.topic_id != found.topic_id:
            wrong.append(f"id {found.topic_id} instead of {self.topic_id}")
        for name in ("partitions", "replicas", "configs"):
            wanted, got = getattr(self, name), getattr(found, name)
            if wanted != got:
                wrong.append(f"{name} {got} instead of {wanted}")
        return wrong


ABSENT = None
Possible = TopicState | None


@dataclass(slots=True)
class Counts:
    """How the changes of all clients ended."""

    acknowledged: dict[str, int] = field(default_factory=dict)
    refused: dict[str, int] = field(default_factory=dict)
    unknown: dict[str, int] = field(default_factory=dict)
    reasons: dict[str, int] = field(default_factory=dict)

    @property
    def acknowledged_total(self) -> int:
        """All acknowledged changes."""
        return sum(self.acknowledged.values())


@dataclass(slots=True)
class Ledger:
    """All topics that clients have tried to make, and producer ids that they were given."""

    topics: dict[str, tuple[Possible, ...]] = field(default_factory=dict)
    producer_ids: list[int] = field(default_factory=list)
    counts: Counts = field(default_factory=Counts)

    def state_of(self, name: str) -> Possible:
        """Return the state of a topic whose state is known."""
        (state,) = self.topics[name]
        return state

    def settled(self, prefix: str) -> list[str]:
        """Return the topics with this prefix that are there for sure, oldest first."""
        return [
            name
            for name, states in self.topics.items()
            if name.startswith(prefix) and len(states) == 1 and states[0] is not ABSENT
        ]

    def acknowledge(self, kind: str, name: str, state: Possible) -> None:
        """Note that a change was acknowledged: its effect is there from now on."""
        self._count(self.counts.acknowledged, kind)
        self.topics[name] = (state,)

    def refuse(self, kind: str, name: str, reason: str) -> None:
        """Note that a change was refused: it has no effect."""
        self._count(self.counts.refused, kind)
        self._count(self.counts.reasons, f"{kind} refused: {reason}")
        self.topics.setdefault(name, (ABSENT,))

    def doubt(self, kind: str, name: str, state: Possible, reason: str) -> None:
        """Note that nobody knows whether a change took effect; the topic is left alone."""
        self._count(self.counts.unknown, kind)
        self._count(self.counts.reasons, f"{kind} unknown: {reason}")
        self.topics[name] = (*self.topics.get(name, (ABSENT,)), state)

    def allocate(self, producer_id: int) -> None:
        """Note a producer id that a client was given."""
        self._count(self.counts.acknowledged, "allocate")
        self.producer_ids.append(producer_id)

    @staticmethod
    def _count(counts: dict[str, int], kind: str) -> None:
        counts[kind] = counts.get(kind, 0) + 1

    def breaches(self, found: Mapping[str, TopicState]) -> list[str]:
        """Return what is lost, left over or done twice, given all topics that are there."""
        wrong = []
        for name, states in self.topics.items():
            wrong += _breach(name, states, found.get(name))
        wrong += [f"{name}: nobody made it" for name in found if name not in self.topics]
        if len(set(self.producer_ids)) != len(self.producer_ids):
            wrong.append("a producer id was given twice")
        return wrong


def _breach(name: str, states: tuple[Possible, ...], found: Possible) -> list[str]:
    if found is ABSENT:
        return [] if ABSENT in states else [f"{name}: lost"]
    known = [state for state in states if state is not ABSENT]
    if not known:
        return [f"{name}: there, although it never was or was deleted"]
    wrong = [state.differs(found) for state in known]
    if [] in wrong:
        return []
    return [f"{name}: {' or '.join(', '.join(each) for each in wrong)}"]


def with_configs(state: TopicState, changes: Mapping[str, str]) -> TopicState:
    """Return the state after some configs were set."""
    return replace(state, configs={**state.configs, **changes})
