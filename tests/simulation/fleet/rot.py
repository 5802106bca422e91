"""Bits that flip on the disks of one node, and what has become of them.

One node of a run rots, and only where somebody else in sync holds the same: then nothing may be
lost, and the node must have mended itself in the end. What only a person can put right, since the
partition has moved to the rotten replica alone, is put right by hand, and counted; so nothing that
was acknowledged is excused because of rot.

A last batch that rots above the flushed mark cannot be told from a torn write
(docs/decisions/0006): bits flip below it, of weakly flushed logs, too (seed 197196), as it stands
in the segment's index at that moment (seed 214273: the index was not made yet when the process was
killed); and where a power cut takes the mark, such a bit flips back.

A batch's epoch is under no checksum. What a start looks at again takes it from the batch, and
believes any that fits between its neighbours' (docs/formats/leader-epochs.md, seed 234579): such a
bit flips only where a start trusts the index and the file of epochs instead. Which epochs fit may
have changed when the node ends, as the next leader's batches have come (seed 261314): such a bit
flips back then, if it was not mended before.
"""

import random
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any
from unittest import mock

from dlog.errors import DlogError
from dlogd.replication.partition import producer_snapshots
from dlogd.storage.directory.log_directory import LogDirectory
from dlogd.storage.repair.segment_repair import SegmentRepair
from dlogd.storage.segment import leader_epochs
from dlogd.storage.segment.offset_index import MAGIC as INDEX_MAGIC
from dlogd.storage.segment.sparse_index import HEADER_BYTES as INDEX_HEADER_BYTES
from dlogd.storage.segment.sparse_index import decode_header
from tests.fakes.inode import Inode
from tests.simulation.fleet.disk_files import file_at, files_of, indexes_of, place, stored
from tests.simulation.fleet.host import FleetHost
from tests.simulation.fleet.rot_plan import SMALL_FILES
from tests.simulation.fleet.shadows import Head, LogId, Shadow
from tests.simulation.plan import Fault

EPOCH_AT = 12
"""Where the leader epoch stands in a batch's head (docs/formats/record-batch.md)."""

EPOCH_LIMIT = 1 << 10
"""No partition has had so many leaders in a run: no start believes such an epoch."""


@dataclass(slots=True)
class Spot:
    """What has flipped in one file. `head` is that of the batch; of a small file there is none."""

    key: LogId
    path: str
    inode: Inode
    good: dict[int, int]  # the bytes as they were, by position
    head: Head | None
    epoch_at: int = 0  # where the batch's leader epoch stands

    @property
    def epoch(self) -> int:
        """The batch's leader epoch as it stands there now."""
        return int.from_bytes(self.inode.content[self.epoch_at : self.epoch_at + 4], "big")


class Rot:
    """All of it. `host` is the one that rots, None as long as none does."""

    def __init__(self, around: Any) -> None:
        self._around = around
        self._rng = random.Random(f"{around.plan.seed}/rot")
        self.host: FleetHost | None = None
        self._spots: list[Spot] = []
        self._rounds: dict[str, list[int | None]] = {}  # of scrubs, by directory, by their starts

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Count for a while what nodes do about it; see where they forget producers by it."""
        forget = producer_snapshots._forget

        def watched_forget(plog: Any, producers: Any, start: int, end: int) -> None:
            forget(plog, producers, start, end)
            key = (plog.topic_id, plog.topic_partition.partition)
            if any(spot.key == key for spot in self._spots):
                self._around.count("rot made producers unknown")
                self._around.history.forgetful.add(key)

        with ExitStack() as stack:
            for owner, name, what in (
                (SegmentRepair, "finish", "rot mended"),
                (LogDirectory, "set_aside", "rot replicas set aside"),
            ):
                counted = self._counted(getattr(owner, name), what)
                stack.enter_context(mock.patch.object(owner, name, counted))
            stack.enter_context(mock.patch.object(producer_snapshots, "_forget", watched_forget))
            yield

    def _counted(self, original: Any, what: str) -> Any:
        async def counted(*arguments: Any) -> Any:
            result = await original(*arguments)
            self._around.count(what)
            return result

        return counted

    # -- striking

    def strike(self, fault: Fault, host: FleetHost) -> bool:
        """Flip bits of a node, of `host` if none has rotten yet and it has anything to lose.

        Return whether any did.
        """
        _, where = fault.detail.split()
        others = [each for each in self._around.hosts if each is not host]
        hosts = [self.host] if self.host else [host, *self._rng.sample(others, len(others))]
        for each in hosts:
            logs = list(self._able(each))
            self._rng.shuffle(logs)
            for key, shadow in logs:
                find = self._small if where in SMALL_FILES else self._batch
                spot = find(each, key, shadow, where)
                if spot is not None and spot.good and self._flip(each, spot, int(fault.amount)):
                    self._around.count(f"rot {where}")
                    return True
        return False

    def _flip(self, host: FleetHost, spot: Spot, many: int) -> bool:
        chosen = self._rng.sample(sorted(spot.good), min(many, len(spot.good)))
        spot.good = {position: spot.good[position] for position in chosen}
        for other in self.open_spots():  # what has flipped before is not how it was (seed 190155)
            if other.inode is spot.inode:
                spot.good |= {at: byte for at, byte in other.good.items() if at in spot.good}
        bits = {position: 1 << self._rng.randrange(8) for position in chosen}
        for position, bit in bits.items():
            spot.inode.content[position] ^= bit
        if self._is_believed(host, spot):
            for position, bit in bits.items():
                spot.inode.content[position] ^= bit
            return False
        self.host = host
        self._spots.append(spot)
        self._around.trace("rot", host.name, spot.path, sorted(chosen), spot.head)
        return True

    def _is_believed(self, host: FleetHost, spot: Spot) -> bool:
        """Whether the next start may take a rotten epoch for the batch's."""
        if spot.head is None or spot.epoch == spot.head.epoch:
            return False
        shadow = self._around.registry.data.shadows(spot.key)[host.node_id]
        heads, folder = shadow.heads, shadow.log.directory.path
        at = heads.index(spot.head)
        earliest = heads[at - 1].epoch if at else 0
        latest = heads[at + 1].epoch if at + 1 < len(heads) else shadow.log.last_epoch
        if host.state == "down" and at + 1 == len(heads):
            latest = EPOCH_LIMIT  # the partition may have had later leaders when it starts
        if not earliest <= spot.epoch <= max(latest, spot.head.epoch):
            return False
        is_closed = shadow.log.segment_of(spot.head.base_offset) is not shadow.log.active
        kept = (f"{folder}/{leader_epochs.FILE_NAME}", *indexes_of(spot.path))
        return not (is_closed and all(file_at(host, path) for path in kept)) or any(
            self._is_rotten(path) for path in kept
        )

    def _able(self, host: FleetHost) -> Iterator[tuple[LogId, Shadow]]:
        """Yield a node's replicas of which somebody else in sync holds all that is committed."""
        data = self._around.registry.data
        for life in self._around.data.live():
            for log in life.logs():
                key = (log.topic_id, log.partition)
                shadow = data.shadows(key).get(host.node_id)
                if shadow is None or shadow.is_lost or data.is_loose(key):
                    continue
                if self._has_other(key, host, data.committed_end(key)):
                    yield key, shadow

    def _has_other(self, key: LogId, host: FleetHost, end: int) -> bool:
        """Whether another member of the ISR holds everything below `end`."""
        data = self._around.registry.data
        return any(
            shadow.end >= end and not shadow.is_lost
            for node_id, shadow in data.shadows(key).items()
            if node_id != host.node_id and node_id in data.isr(key)
        )

    def _batch(self, host: FleetHost, key: LogId, shadow: Shadow, where: str) -> Spot | None:
        data = self._around.registry.data
        log_start = shadow.log.log_start_offset
        end = min(data.committed_end(key), shadow.log.flushed_offset)
        heads = [each for each in shadow.heads if log_start < each.next_offset <= end]
        if not heads:
            return None
        head = {"newest": heads[-1], "oldest": heads[0]}.get(where) or self._rng.choice(heads)
        segment = shadow.log.segment_of(head.base_offset)
        inode = file_at(host, segment.path)
        found = None if inode is None else place(inode, head)
        if inode is None or found is None:
            return None
        start, end = found
        index_path, _ = indexes_of(segment.path)
        is_marked = segment is not shadow.log.active or end <= _mark(host, index_path)
        if self._is_rotten(index_path) or not is_marked:
            return None  # a start would take it for torn (seed 212071: of a closed one, too)
        epoch_at = start + EPOCH_AT
        if where == "epoch":
            start, end = epoch_at, epoch_at + 4
        return Spot(key, segment.path, inode, stored(inode, start, end), head, epoch_at)

    def _small(self, host: FleetHost, key: LogId, shadow: Shadow, where: str) -> Spot | None:
        folder = shadow.log.directory.path
        files = [
            (path, inode)
            for path, inode in files_of(host)
            if path.startswith(f"{folder}/")
            and path.endswith(where)
            # An index in use lies in the system's memory, where the disk cannot reach it.
            and not (inode.open_count and where in (".idx", ".tdx"))
            # It has the mark of what is flushed: without, a rotten last batch is a torn one.
            and not (where == ".idx" and self._is_rotten(path.replace(".idx", ".log")))
            # It is trusted instead of epochs in batches.
            and not self._has_rotten_epoch(key)
        ]
        if not files:
            return None
        path, inode = self._rng.choice(files)
        return Spot(key, path, inode, stored(inode, 0, min(inode.size, len(inode.content))), None)

    def _has_rotten_epoch(self, key: LogId) -> bool:
        return any(
            spot.key == key and spot.head is not None and spot.epoch != spot.head.epoch
            for spot in self.open_spots()
        )

    def _is_rotten(self, path: str) -> bool:
        return any(spot.path == path for spot in self.open_spots())

    # -- what has become of it

    def open_spots(self) -> list[Spot]:
        """Return what is still rotten, in logs that are still there."""
        self._spots = [spot for spot in self._spots if not self._is_over(spot)]
        return self._spots

    def _is_over(self, spot: Spot) -> bool:
        assert self.host is not None
        if file_at(self.host, spot.path) is not spot.inode or self._is_good(spot):
            return True
        if spot.head is None:
            return False
        shadow = self._around.registry.data.shadows(spot.key).get(self.host.node_id)
        if shadow is None or spot.head not in shadow.heads:
            return True
        is_deleted: bool = spot.head.next_offset <= shadow.log.log_start_offset
        return is_deleted

    def _is_good(self, spot: Spot) -> bool:
        content = spot.inode.content
        return all(at < len(content) and content[at] == byte for at, byte in spot.good.items())

    def on_power_cut(self, node_id: int) -> None:
        """Take back what the node could not tell from a torn write."""
        if self.host is None or self.host.node_id != node_id:
            return
        for spot in self.open_spots():
            shadow = self._around.registry.data.shadows(spot.key)[node_id]
            if spot.head is not None and spot.head.next_offset >= shadow.log.flushed_offset:
                self._restore(spot)
                self._around.count("rot taken back at a torn end")

    def on_down(self, node_id: int) -> None:
        """Take back what the next start would believe, with what has come since it was flipped."""
        if self.host is None or self.host.node_id != node_id:
            return
        for spot in self.open_spots():
            if self._is_believed(self.host, spot):
                self._restore(spot)
                self._around.count("rot taken back as a start believes it")

    def _restore(self, spot: Spot) -> None:
        self._around.trace("rot restored", spot.path)
        for position, byte in spot.good.items():
            if position < len(spot.inode.content):
                spot.inode.content[position] = byte

    def is_needed(self, host: FleetHost) -> bool:
        """Whether another host may have the only good copy of something."""
        return host is not self.host and bool(self.open_spots())

    # -- the end

    def close_segments(self) -> None:
        """Let segments end, as they do by age: what nobody reads is found in closed ones."""
        for spot in self.open_spots():
            assert self.host is not None and self.host.loop is not None
            log = self._around.registry.data.shadows(spot.key)[self.host.node_id].log
            if spot.head is not None and log.segment_of(spot.head.base_offset) is log.active:
                self.host.loop.call_soon(log.roll)

    def is_mended(self) -> bool:
        """Whether no batch is rotten any more; a small file is looked at by the next start.

        What is written is good before it was read once more, and is refused until then.
        """
        is_good = all(spot.head is None for spot in self.open_spots())
        return is_good and not any(self._refused())

    def _refused(self) -> Iterator[str]:
        broker = None if self.host is None else self.host.broker
        replicas = None if broker is None else broker.replicas
        for partition in () if replicas is None else replicas.by_id.values():
            yield from partition.log.damage.problems(partition.log.log_start_offset)

    def is_sought(self) -> bool:
        """Whether every directory was scrubbed, all of it, since the first call. Call it often."""
        return all([self._is_scrubbed(path, status) for path, status in self._scrubs()])

    def scrubbed(self) -> list[tuple[int | None, int]]:
        """Return how far scrubs are: when the round of each began, and the bytes it has read."""
        return [(status["started_ms"], status["read_bytes"]) for _, status in self._scrubs()]

    def _is_scrubbed(self, path: str, status: dict[str, Any]) -> bool:
        starts = self._rounds.setdefault(path, [])
        if status["started_ms"] not in starts:
            starts.append(status["started_ms"])
        # The first one may have passed the place before it rotted.
        return len(starts) > 2 or (len(starts) == 2 and status["ended_ms"] is not None)

    def _scrubs(self) -> Iterator[tuple[str, dict[str, Any]]]:
        broker = None if self.host is None else self.host.broker
        logs = None if broker is None else broker.logs
        for home in () if logs is None else logs.homes:
            if home.failure is None and home.scrub_status is not None:
                yield home.path, home.scrub_status()

    def put_right(self, *, was_sought: bool = True) -> bool:
        """Let a person restore what no other replica in sync has; return whether there was any.

        A node that has not mended what it could have is a violation; so is one that is silent. But
        not before it had to look there: segments may be open till then (seed 201364).
        """
        done = False
        for spot in self.open_spots():
            assert self.host is not None
            if self._could_mend(spot):
                if was_sought:
                    self._around.violate(f"rot: {self.host.name} has not mended {spot.head}")
                continue
            if spot.head is not None and not self._is_told(spot):
                if was_sought:
                    self._around.violate(f"rot: {self.host.name} does not tell of {spot.head}")
                continue
            self._restore(spot)
            self._around.count("rot put right by hand")
            done = True
        if done and self.host is not None:
            self.host.crash()
            self.host.boot_later(0)
        return done

    def _could_mend(self, spot: Spot) -> bool:
        assert self.host is not None
        if spot.head is None or self._is_out_of_service(spot):
            return False
        return self._has_other(spot.key, self.host, spot.head.next_offset)

    def _is_out_of_service(self, spot: Spot) -> bool:
        assert self.host is not None and self.host.broker is not None
        replicas = self.host.broker.replicas
        return replicas is None or spot.key not in replicas.by_id

    def _is_told(self, spot: Spot) -> bool:
        """Whether the node says that the place is damaged, or that the whole replica is."""
        if self._is_out_of_service(spot):
            return True
        assert self.host is not None and self.host.broker is not None and spot.head is not None
        log = self.host.broker.replicas.by_id[spot.key].log  # type: ignore[union-attr]
        try:
            log.damage.check(max(spot.head.base_offset, log.log_start_offset))
        except DlogError:
            return True
        return log.failed is not None


def _mark(host: FleetHost, index_path: str) -> int:
    """Return up to which position a segment's index says that it is flushed; 0: it does not."""
    inode = file_at(host, index_path)
    if inode is None:
        return 0
    head = bytes(inode.content[: min(inode.size, INDEX_HEADER_BYTES)])
    header = decode_header(head, INDEX_MAGIC)
    return 0 if header is None else header.mark
