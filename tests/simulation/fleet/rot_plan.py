"""Which runs of a cluster have disks that rot: where it strikes, and how soon it is looked for.

Pure. Drawn apart from the rest of the plan, so that runs without rot are as they were.
"""

import random

from tests.simulation.fleet.bounds import ROT_CHOICES, Value
from tests.simulation.plan import Fault

KIND = "flip-bit"
SHARE = 0.35
STRIKES_MAX = 6

RECORDS = ("any", "any", "newest", "oldest", "epoch")
"""Of the batches that are committed: one anywhere, the last, or the one with the log's start; or of
one anywhere the leader epoch, which is not under the batch's checksum."""
SMALL_FILES = (".idx", ".tdx", "producer-snapshot", "leader-epochs", "log-start")


def is_rotten(seed: int) -> bool:
    """Whether disks rot in the run of a seed."""
    return _rng(seed, "").random() < SHARE


def _rng(seed: int, what: str) -> random.Random:
    return random.Random(f"{seed}/fleet/rot{what}")


def draw_rot(seed: int, active_ms: int) -> tuple[Fault, ...]:
    """Return when bits of one node's disks flip; the amount is how many at once.

    With a length the node is killed at that moment for so long: a start finds them first.
    """
    if not is_rotten(seed):
        return ()
    rng = _rng(seed, "/faults")
    faults = []
    for _ in range(rng.randint(1, STRIKES_MAX)):
        where = rng.choice(RECORDS if rng.random() < 0.8 else SMALL_FILES)
        target = rng.choice(("data", "any"))
        at_ms = rng.randrange(active_ms // 4, active_ms)
        crash_ms = rng.choice((0, 0, 50, 300))
        amount = rng.choice((1, 1, 3, 20))
        faults.append(Fault(at_ms, KIND, crash_ms, amount, f"{target} {where}"))
    return tuple(sorted(faults, key=lambda fault: fault.at_ms))


def draw_scrub(seed: int) -> dict[str, str]:
    """Return what is configured for the scrub; it may run where nothing rots, too."""
    rng = _rng(seed, "/scrub")
    if not is_rotten(seed) and rng.random() < 0.8:
        return {}
    return {
        "scrub.interval": rng.choice(("1s", "1s", "3s")),
        "scrub.rate": rng.choice(("256KiB", "10MiB")),
    }


def draw_rot_bounds(seed: int) -> dict[str, Value]:
    """Return how soon rot is looked for and mended, where it is at all in a run's time."""
    if not draw_scrub(seed):
        return {}
    rng = _rng(seed, "/bounds")
    return {name: rng.choice(values) for name, values in ROT_CHOICES.items()}
