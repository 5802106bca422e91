"""Seeded randomness for whole nodes: the same seed gives the same nonces, ids and jitter.

Both kinds draw from one generator, so a schedule depends on the order of all draws.
"""

import random
from uuid import UUID

from dlogd.runtime.randomness import Randomness


class SeededEntropy:
    """Entropy of a simulation. Predictable on purpose."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng

    def token(self, count: int) -> bytes:
        return self._rng.randbytes(count)

    def uuid(self) -> UUID:
        return UUID(int=self._rng.getrandbits(128), version=4)


class SeededRandomness(Randomness):
    """Both kinds from one seed."""

    def __init__(self, seed: int) -> None:
        self._generator = random.Random(seed)
        super().__init__(self._generator, SeededEntropy(self._generator))

    def apart(self) -> "SeededRandomness":
        return SeededRandomness(self._generator.getrandbits(64))
