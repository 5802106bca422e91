"""Sources of randomness, of two kinds that must not be confused: `Rng` and `Entropy`.

`Rng` is for jitter and choices among nodes: fast, and predictable by a reader of some of its
numbers. `Entropy` is for every value that a peer can see or that must not repeat: nonces, ids of
topics, directories, clusters and commands. Everything below `dlogd.__main__` is given both. The
simulation gives seeded ones, so that a seed replays.
"""

import os
import random
from collections.abc import Sequence
from typing import Protocol, TypeVar
from uuid import UUID

T = TypeVar("T")

_SEED_BYTES = 32
_UUID_BYTES = 16
_UUID_VERSION = 4


class Rng(Protocol):
    """Jitter and choices. It makes no bytes and no ids on purpose: use `Entropy`."""

    def random(self) -> float:
        """Return a number in [0, 1)."""

    def uniform(self, a: float, b: float, /) -> float:
        """Return a number between `a` and `b`."""

    def sample(self, population: Sequence[T], k: int, /) -> list[T]:
        """Return `k` different elements."""


class Entropy(Protocol):
    """Bytes that nobody can predict."""

    def token(self, count: int) -> bytes:
        """Return so many bytes."""

    def uuid(self) -> UUID:
        """Return a random id, of version 4."""


class SystemEntropy:
    """The operating system's source. Usable from every thread."""

    def token(self, count: int) -> bytes:
        return os.urandom(count)

    def uuid(self) -> UUID:
        return UUID(bytes=os.urandom(_UUID_BYTES), version=_UUID_VERSION)


class Randomness:
    """Both kinds, for parts that need both. Owner: one thread."""

    def __init__(self, rng: Rng, entropy: Entropy) -> None:
        self.rng = rng
        self.entropy = entropy

    def apart(self) -> "Randomness":
        """Return another pair, for another thread."""
        return Randomness(random.Random(self.entropy.token(_SEED_BYTES)), self.entropy)


def system_randomness() -> Randomness:
    """Return the randomness of a real process."""
    entropy = SystemEntropy()
    return Randomness(random.Random(entropy.token(_SEED_BYTES)), entropy)
