"""The disk refuses a single node's metadata store each of its operations in turn; it lives on.

While it writes, takes snapshots and begins new journals; then it ends, by a power cut or a kill,
and starts may fail as well. What was told as applied is there; what was refused is not, and never
comes.
"""

import asyncio
import errno
from functools import partial

import pytest

from dlog.errors import DlogError
from dlogd.metadata.journal_files import JournalUncertainError, MetadataCorruptError
from dlogd.metadata.state.image import Applied, Refused
from tests.fakes.faults import DiskFault
from tests.fakes.metadata_host import Host, create, propose, register, run

POINTS_MAX = 400
EVERYTHING = ("open", "create", "names", "read", "write", "sync", "sync_directory", "rename")
FAULTS: dict[str, tuple[int, tuple[str, ...]]] = {
    "EIO": (errno.EIO, (*EVERYTHING, "unlink", "truncate", "lock")),
    "ENOSPC": (errno.ENOSPC, ("create", "write", "sync", "sync_directory", "rename")),
    "EMFILE": (errno.EMFILE, ("open", "names", "lock")),
}


class _Life:
    """What a store was asked for in one life, and what it told."""

    def __init__(self) -> None:
        self.applied: list[str] = []
        self.refused: list[str] = []
        self.tried: list[str] = []

    async def live(self, host: Host) -> None:
        """Open, register and make topics; what the disk refuses is refused, or ends the store."""
        store = await host.open()
        await propose(store, register())
        for number in range(20):
            outcome = await propose(store, create(number))
            self.tried.append(f"t{number}")
            if isinstance(outcome, Applied):
                assert store.failed is None
                self.applied.append(f"t{number}")
            elif isinstance(outcome, Refused):
                self.refused.append(f"t{number}")
            assert list(store.image.topics) == self.applied


def _ask_for_fault(host: Host, name: str, point: int, *, lasts: bool) -> asyncio.Event:
    code, operations = FAULTS[name]
    came = asyncio.Event()
    fault = DiskFault(operations, errno=code, count=None if lasts else 1, writes_part=True)
    host.machine.fail_at(point, fault, came.set)
    return came


def _end(host: Host, *, power_cut: bool, keep: float | None = None) -> None:
    host.machine.spare()
    host.machine.heal()
    if power_cut:
        host.machine.power_cut(keep)
    else:
        host.machine.crash()


async def _start_badly(host: Host) -> None:
    rng = host.machine.rng
    name = rng.choice(sorted(FAULTS))
    came = _ask_for_fault(host, name, rng.randrange(1, 15), lasts=rng.random() < 0.5)
    try:
        await host.open()
    except MetadataCorruptError as error:
        raise AssertionError("taken for damage") from error
    except (OSError, JournalUncertainError):
        assert came.is_set()
    _end(host, power_cut=rng.random() < 0.5)


async def _refused_at(name: str, point: int, seed: int) -> bool:
    """Live with one fault and its consequences; return whether there is such a point."""
    host = Host(seed)
    host.journal_bytes_max = 500
    life = _Life()
    came = _ask_for_fault(host, name, point, lasts=seed % 2 == 0)
    try:
        await life.live(host)
    except (OSError, DlogError):
        assert came.is_set() and not life.tried
    is_point = came.is_set()
    _end(host, power_cut=seed % 3 != 0)
    for _ in range(seed % 4):
        await _start_badly(host)
    store = await host.open()
    topics = list(store.image.topics)
    assert topics == [topic for topic in life.tried if topic in topics]
    assert set(life.applied) <= set(topics)
    assert len(topics) - len(life.applied) <= 1
    assert not set(life.refused).intersection(topics)
    await propose(store, register())
    assert isinstance(await propose(store, create(77)), Applied)
    _end(host, power_cut=True, keep=0.0)
    assert list((await host.open()).image.topics) == [*topics, "t77"]
    return is_point


@pytest.mark.parametrize("name", list(FAULTS))
def test_what_the_disk_refuses_is_refused_or_ends_the_store(name: str) -> None:
    for point in range(1, POINTS_MAX):
        for seed in range(4 * point, 4 * point + 4):
            try:
                if not run(partial(_refused_at, name, point, seed)):
                    assert point > 5
                    return
            except BaseException as error:
                raise AssertionError(f"point {point}, seed {seed}") from error
    raise AssertionError("the work has no end")
