"""Throttled replicas of a topic, in Kafka's notation: `*`, or `partition:node,...`.

Pure. Values of the topic configs `leader.replication.throttled.replicas` (what these nodes send
while they lead) and `follower.replication.throttled.replicas` (what they fetch): KIP-73.
"""

import re
from dataclasses import dataclass

EVERY = "*"
_PAIR = re.compile(r"[0-9]{1,10}:[0-9]{1,10}\Z")


def accept(words: tuple[str, ...]) -> None:
    """Raise ValueError unless the words name replicas."""
    if words == (EVERY,):
        return
    for word in words:
        if not _PAIR.match(word):
            raise ValueError("Replicas are named as partition:node, separated by commas, or all: *")


@dataclass(frozen=True, slots=True)
class ThrottledReplicas:
    """A set of replicas of one topic."""

    every: bool
    pairs: frozenset[tuple[int, int]]

    def holds(self, partition: int, node_id: int) -> bool:
        """Whether the replica of `partition` on `node_id` is one of them."""
        return self.every or (partition, node_id) in self.pairs


NOBODY = ThrottledReplicas(False, frozenset())


def throttled(words: tuple[str, ...]) -> ThrottledReplicas:
    """Return the set that a value means; the words are such as `accept` accepts."""
    if not words:
        return NOBODY
    if words == (EVERY,):
        return ThrottledReplicas(True, frozenset())
    pairs = (word.partition(":") for word in words)
    return ThrottledReplicas(False, frozenset((int(p), int(n)) for p, _, n in pairs))
