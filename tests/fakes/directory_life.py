"""One life after the other of a node whose data directories come and go, beside a model of them.

The real log manager on simulated disks, the real proof of a start, and as much of a controller as
that needs: what the node has registered, which replicas are placed on it, which of them count. The
rules are in `tests.fakes.directory_rules`. Owner: the event loop's thread.
"""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from uuid import UUID

from dlog.errors import ConfigError, KafkaStorageError, WireError
from dlogd.metadata.state.image import Applied, NodeRegistration, Refused
from dlogd.node.replica_proof import epoch_of, start_proof
from dlogd.storage.log.log_config import LogConfig
from dlogd.storage.log.partition_log import PartitionLog
from dlogd.storage.log_manager import LogManager
from tests.fakes.device import Disk
from tests.fakes.directory_rules import (
    Copy,
    Replica,
    check_homes,
    check_open,
    check_proof,
    forget_strays,
    note_promises,
)
from tests.fakes.faults import ProcessDied
from tests.fakes.logs import TICK_S, append, values_of
from tests.fakes.manager import NODE, TOPIC_ID, key, partition, wanted
from tests.fakes.node_disks import NodeDisks
from tests.simulation.loop import SimClock, SimLoop

Ids = tuple[UUID, ...]
LIVES, STEPS_MAX, LOGS_MAX = 8, 22, 4
OPERATIONS_MAX = 700
"""So far into a life a process may die: at an operation of a disk."""
STUCK_S, FULL_S = 600.0, 5.0
CLUSTER_ID = "Ei2H0BgUTZWcYrPqDGQjrw"
CONFIG = LogConfig(
    segment_bytes=600, preallocate_bytes=8192, index_interval_bytes=128, retention_ms=-1
)


class DirectoryLife(NodeDisks):
    """A node with two or three data directories. Call `live` once."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.alone = self.rng.random() < 0.25
        """A cluster of its own: nobody else has any records."""
        self.replicas: dict[int, Replica] = {}
        self.known: NodeRegistration | None = None
        self.outcomes: dict[UUID, Applied | Refused] = {}
        self.epoch = self.count = self.next_number = self.proven = 0
        self.manager: LogManager

    # -- lives

    async def live(self) -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, SimLoop)
        self.host.clock = SimClock(loop)
        for number in range(LIVES + 1):
            self.settle_disks()
            last = number == LIVES
            if last:
                self.host.mounts = self.all_mounts
            else:
                self.harm_start()
            await self._one_life(last)

    async def _one_life(self, last: bool) -> None:
        rng, died = self.rng, asyncio.Event()
        how = "stop" if last else rng.choice(("stop", "kill", "kill", "power", "power"))
        if how != "stop" and rng.random() < 0.8:
            self.machine.die_at(rng.randrange(1, OPERATIONS_MAX), died.set)
        self.done.append(f"life of {self.host.mounts}, {how}")
        task = asyncio.ensure_future(self._life(last))
        death = asyncio.ensure_future(died.wait())
        await asyncio.wait((task, death), timeout=STUCK_S, return_when=asyncio.FIRST_COMPLETED)
        death.cancel()
        assert task.done() or died.is_set(), "stuck"
        if died.is_set():
            self.done.append("died")
            task.cancel()
            with suppress(asyncio.CancelledError, ProcessDied, WireError, OSError, ConfigError):
                await task
        else:
            self.machine.spare()
            task.result()
            if how == "stop":
                await asyncio.wait_for(self.manager.close(timeout_s=30.0), STUCK_S)
        note_promises(self)
        await self.host.crash(power_cut=how == "power")

    async def _life(self, last: bool) -> None:
        try:
            await self._start()
        except OSError as error:
            # Better start again than miss its partitions for nothing.
            assert self.faulty or self.harmed, error
            self.done.append(f"no start: {error}")
            self.quiet = False
            return
        for _ in range(0 if last else self.rng.randrange(STEPS_MAX)):
            await self._step()
        check_homes(self)
        if not self.alone and self.rng.random() >= 0.3:
            self._know_failures()  # unless the process ends before

    # -- start

    async def _start(self) -> None:
        self.manager = manager = self.host.boot()
        await manager.claim(NODE, CLUSTER_ID)
        ids = self.known.directory_ids if self.known is not None else ()
        if self.alone:
            self._register(self._command(None, ()))
        await manager.open(wanted(*self._mine(), config=CONFIG), ids)
        check_homes(self)
        forget_strays(self)
        found = {number: await self._values(number) for number in self._mine()}
        for number, values in found.items():
            check_open(self, number, values)
        if not self.alone:
            await self._join()
        self.quiet = False
        for number, replica in self.replicas.items():
            if replica.copy is not None and self.disk_of(number) not in (None, replica.copy.disk):
                replica.copy.is_leaving = True  # the other one is the newest, if this life begins
        await manager.begin(None if self.alone else self.epoch)
        for number, replica in self.replicas.items():
            replica.use(manager.logs.get(key(number)), self.disk_of(number), found.get(number))
        self.quiet = not self.faulty

    async def _values(self, number: int) -> list[tuple[int, bytes]] | None:
        plog = self.manager.logs.get(key(number))
        if plog is None:
            return None
        try:
            return await values_of(plog)
        except (WireError, OSError):
            assert self.faulty, "unreadable"
            return None

    async def _join(self) -> None:
        manager = self.manager
        while True:
            present = manager.directory_ids
            proof = start_proof(
                self.known, self.outcomes, manager.homes, [(TOPIC_ID, n) for n in self._mine()]
            )
            command_id = UUID(int=self.rng.getrandbits(128), version=4)
            resolve = partial(epoch_of, outcomes=self.outcomes)
            await manager.lives.note_registering(command_id, resolve)
            if manager.directory_ids == present:
                break
        ignorant = manager.lives.ignorant_of(command_id)
        accounted = self.known is not None and proof.previous_epoch == self.known.node_epoch
        check_proof(self, proof, is_proved=accounted and bool(proof.proof))
        self._register(self._command(present, ignorant))
        self.outcomes[command_id] = Applied(version=self.epoch, value=self.epoch)
        await asyncio.sleep(TICK_S)  # its answer comes

    def _command(self, present: Ids | None, ignorant: Ids) -> tuple[Ids, Ids]:
        here = self.manager.directory_ids if present is None else present
        before = self.known.directory_ids if self.known is not None else ()
        lost = tuple(each for each in before if each not in here)
        return (*here, *lost), (*lost, *ignorant)

    def _register(self, ids: tuple[Ids, Ids]) -> None:
        self.epoch += 1
        self.known = NodeRegistration(
            node_id=NODE,
            node_epoch=self.epoch,
            directory_ids=ids[0],
            addresses=(),
            rack=None,
            version="1",
            fenced=True,
            failed_directory_ids=ids[1],
        )

    def _mine(self) -> list[int]:
        return [number for number, replica in self.replicas.items() if replica.placed]

    def disk_of(self, number: int) -> Disk | None:
        """Return the disk with a partition's log, as far as the node knows."""
        for home in self.manager.homes:
            if key(number) in home.names:
                return self.machine.disk_of(home.path)
        return None

    # -- steps

    async def _step(self) -> None:
        rng = self.rng
        if rng.random() < 0.1:
            self.harm()
        if rng.random() < 0.1:
            await asyncio.sleep(rng.choice((0.1, 1.0, 40.0)))
        if len(self.replicas) < LOGS_MAX and rng.random() < 0.5:
            self.replicas[self.next_number] = Replica()
            self.next_number += 1
        if not self.replicas:
            return
        number = rng.choice(list(self.replicas))
        action = rng.choice(self._actions(self.replicas[number], self._plog(number)))
        self.done.append(f"{action.__name__} {number}")
        task = asyncio.ensure_future(action(number))
        try:
            if not (await asyncio.wait((task,), timeout=FULL_S))[0]:
                self.make_room()
            await task
        except (WireError, OSError):
            pass
        finally:
            task.cancel()

    def _plog(self, number: int) -> PartitionLog | None:
        return self.manager.logs.get(key(number))

    def _actions(
        self, replica: Replica, plog: PartitionLog | None
    ) -> list[Callable[[int], Awaitable[None]]]:
        if not replica.placed and self.alone:
            return [self.remove]
        if not replica.placed:
            return [self.give_back, self.give_back, self.lead_elsewhere, self.remove]
        moves = [] if self.alone else [self.leave, self.move_away, self.move_and_back]
        if plog is None:
            return [self.create, self.create, self.delete_topic, *moves]
        if plog.failed is not None:
            return [self.delete_topic, *moves]
        if not replica.counted:
            return [self.catch_up, self.catch_up, self.catch_up, *moves]
        return [self.lead] * 6 + [self.trim, self.trim_all, self.delete_topic, *moves]

    async def create(self, number: int) -> None:
        """Make the log, as a follower from nothing when the cluster does not count on it."""
        replica = self.replicas[number]
        had = self.manager.logs.get(key(number))
        anew = not replica.counted
        if anew and not self.alone:
            self._know_failures()  # as `reconcile.may_begin_anew` wants it
        plog = await self.manager.create(partition(number), TOPIC_ID, CONFIG, anew=anew)
        if plog is had:
            return
        if replica.counted and replica.copy is None:
            assert not replica.truth and not replica.start, "began anew, empty, what has records"
        copy, disk = replica.copy, self.disk_of(number)
        if copy is not None and copy.disk is disk and not copy.is_leaving:
            check_open(self, number, await values_of(plog))
            replica.use(plog, disk, None)
            return
        if copy is not None and copy.disk is disk and plog.log_end_offset:
            replica.use(plog, disk, None)
            return
        assert not replica.counted or not (replica.truth or replica.start), "counts, and is empty"
        replica.copy = Copy(plog, disk)

    async def lead(self, number: int) -> None:
        plog, replica, copy = self._opened(number)
        for _ in range(self.rng.randrange(1, 6)):
            self._append(plog, copy)
        if self.rng.random() < 0.8:
            end = plog.log_end_offset
            await plog.flush()
            copy.promised(end)
            if replica.counted:
                replica.truth = dict(copy.must)

    def _append(self, plog: PartitionLog, copy: Copy, value: bytes | None = None) -> None:
        if value is None:
            self.count += 1
            value = b"%d " % self.count + b"x" * self.rng.choice((1, 50, 300))
        offset = append(plog, value, epoch=self.epoch)
        if offset is None:
            raise KafkaStorageError("no memory")
        copy.may[offset] = value

    def _opened(self, number: int) -> tuple[PartitionLog, Replica, Copy]:
        replica, plog = self.replicas[number], self.manager.logs[key(number)]
        assert replica.copy is not None
        replica.copy.plog = plog
        return plog, replica, replica.copy

    async def catch_up(self, number: int) -> None:
        """Follow the leader until all is here; then the cluster counts on this replica."""
        plog, replica, copy = self._opened(number)
        values = dict(await values_of(plog))
        end = replica.end
        if not replica.start <= plog.log_end_offset <= end + 50 or plog.log_start_offset > end:
            await self._begin_anew(replica, plog, copy)
        else:
            same = max(plog.log_start_offset, replica.start)
            while same < plog.log_end_offset and values[same] == replica.truth.get(same):
                same += 1
            if self.rng.random() < 0.3:
                same = self.rng.randint(plog.log_start_offset, min(same, plog.log_end_offset))
            if same < plog.log_end_offset:
                if same < replica.start:
                    await self._begin_anew(replica, plog, copy)
                else:
                    copy.cut(same)
                    await plog.truncate_to(same)
                    copy.was_cut(same)
        for offset in range(plog.log_end_offset, end):
            self._append(plog, copy, replica.truth[offset])
        await plog.flush()
        copy.cutting = False
        copy.may = dict(await values_of(plog))
        copy.promised(end)
        replica.counted = True

    async def _begin_anew(self, replica: Replica, plog: PartitionLog, copy: Copy) -> None:
        copy.begin_anew(replica.start)
        await plog.start_at(replica.start)
        copy.began_anew(replica.start)

    async def trim(self, number: int) -> None:
        plog, replica, copy = self._opened(number)
        at = self.rng.randint(plog.log_start_offset, plog.promised_offset)
        copy.start = max(copy.start, at)
        if replica.counted:
            copy.promised(plog.promised_offset)
            replica.truth = dict(copy.must)
            replica.trim(at)
        await plog.trim_to(at)

    async def trim_all(self, number: int) -> None:
        plog, replica, copy = self._opened(number)
        await plog.flush()
        copy.promised(plog.log_end_offset)
        at = plog.promised_offset
        copy.start = max(copy.start, at)
        replica.truth = dict(copy.must)
        replica.trim(at)
        await plog.trim_to(at)

    async def leave(self, number: int) -> None:
        """Others lead, and do not wait for this replica."""
        replica = self.replicas[number]
        replica.counted = False
        await self.lead_elsewhere(number)

    async def lead_elsewhere(self, number: int) -> None:
        replica = self.replicas[number]
        for _ in range(self.rng.randrange(3)):
            self.count += 1
            replica.truth[replica.end] = b"elsewhere %d" % self.count
        if self.rng.random() < 0.2:
            replica.trim(self.rng.randint(replica.start, replica.end))

    async def move_away(self, number: int) -> None:
        replica = self.replicas[number]
        replica.counted = replica.placed = False
        if self.rng.random() < 0.9:  # else it has not come to that yet
            await self._delete(number)

    async def move_and_back(self, number: int) -> None:
        await self.move_away(number)
        await self.give_back(number)
        await self.create(number)

    async def give_back(self, number: int) -> None:
        replica = self.replicas[number]
        replica.placed, replica.counted = True, False

    async def _delete(self, number: int) -> None:
        replica = self.replicas[number]
        home = next((h for h in self.manager.homes if key(number) in h.names), None)
        if replica.copy is not None:
            replica.copy.is_leaving = True
        await self.manager.delete(partition(number), TOPIC_ID)
        if home is not None and home.failure is None:
            replica.copy = None

    async def remove(self, number: int) -> None:
        await self._delete(number)
        if self.alone:
            del self.replicas[number]

    async def delete_topic(self, number: int) -> None:
        replica = self.replicas[number]
        replica.placed = False
        await self._delete(number)
        del self.replicas[number]

    def _know_failures(self) -> None:
        """The cluster hears what has failed."""
        if self.known is not None:
            failed = (*self.known.failed_directory_ids, *self.manager.failed_directory_ids)
            self.known = replace(self.known, failed_directory_ids=tuple(dict.fromkeys(failed)))
