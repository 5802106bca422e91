"""The cluster's metadata on Raft, with the surface of `dlogd.metadata.store.MetadataStore`.

Any node may propose; the command goes to the leader and its outcome is read from this node's own
copy of the log, so that when a proposal is settled this node's image shows it. Everything happens
in one task that takes what has come (`_inbox`), lets the core tick, and sends. Whatever goes wrong
in it ends the node: `failed` is set, `on_failed` called, and a restart reads what the disk holds.

Owner: the Raft loop, which may be a thread's own (`dlogd.metadata.raft.thread`): disk and
computation block it.
"""

import asyncio
import logging
import random
from collections import deque
from collections.abc import Callable
from uuid import UUID

from dlog.errors import (
    BrokerNotAvailableError,
    InvalidRequestError,
    KafkaStorageError,
    NotControllerError,
)
from dlogd.clock import Clock
from dlogd.metadata.admission import admit
from dlogd.metadata.commands import Command, MalformedCommandError, encode
from dlogd.metadata.image import ClusterImage, Outcome, Refused, Unknown
from dlogd.metadata.raft import entries as wire
from dlogd.metadata.raft import pinned, proposals
from dlogd.metadata.raft.administration import Administration
from dlogd.metadata.raft.boot import Disk, open_disk
from dlogd.metadata.raft.core import RaftCore
from dlogd.metadata.raft.entries import Item, What
from dlogd.metadata.raft.handshake import NONCE_BYTES, Hello
from dlogd.metadata.raft.machine_state import MachineState, Subscriber
from dlogd.metadata.raft.membership import AdminRequest, Membership, Operation, QuorumState
from dlogd.metadata.raft.messages import Message
from dlogd.metadata.raft.proposals import Intake, Outbox, Pending
from dlogd.metadata.raft.receiving import SnapshotReceiver
from dlogd.metadata.raft.replication import Replication
from dlogd.metadata.raft.settings import RaftConfig
from dlogd.metadata.raft.transport import RaftTransport
from dlogd.metadata.raft.voters import Voters
from dlogd.storage.files import Directory
from dlogd.tasks import Tasks

log = logging.getLogger(__name__)

_THROTTLED = 89  # THROTTLING_QUOTA_EXCEEDED: try again later

OnLeadership = Callable[[bool, int], None]


class RaftStore:
    """The metadata of one node. Life: `open` once, `close` once."""

    def __init__(
        self,
        config: RaftConfig,
        disk: Disk,
        *,
        clock: Clock,
        rng: random.Random,
        on_failed: Callable[[Exception], None] | None,
    ) -> None:
        self._config = config
        self._disk = disk
        self._clock = clock
        self._rng = rng
        self._on_failed = on_failed
        self._outbox = Outbox()
        self._intake = Intake()
        self._inbox: deque[tuple[Callable[..., None], tuple[object, ...]]] = deque()
        self._wake = asyncio.Event()
        self._tasks = Tasks(self._on_task_failed)
        self._runner: asyncio.Task[None] | None = None
        self._leadership: tuple[bool, int] = (False, 0)
        self._leadership_callbacks: dict[int, OnLeadership] = {}
        self._closed = True
        self.failed: Exception | None = None
        """Why nothing can be proposed any more; the process must be restarted."""
        self.log = disk.log
        self.state = MachineState(
            disk.log,
            disk.files,
            disk.taken,
            settle=self._outbox.settle,
            log_bytes_max=config.log_bytes_max,
            entries_kept=config.entries_kept,
        )
        self._replication = Replication(
            disk.log,
            disk.files,
            append_bytes_max=config.append_bytes_max,
            chunk_bytes=config.chunk_bytes,
        )
        self._transport = RaftTransport(
            hello=Hello(
                cluster=config.cluster,
                node_id=config.node_id,
                directory_id=disk.log.directory_id,
                wanted_id=-1,
                nonce=bytes(NONCE_BYTES),
            ),
            secret=config.secret,
            rng=rng,
            timings=config.timings,
            on_up=lambda node_id, directory_id: self._post(self._up, node_id, directory_id),
            on_down=lambda node_id: self._post(self._down, node_id),
            on_message=lambda node_id, message: self._post(self._receive, node_id, message),
            server_tls=config.server_tls,
            client_tls=config.client_tls,
        )
        self.core = RaftCore(
            disk.log,
            self._replication,
            clock=clock,
            rng=rng,
            timings=config.timings,
            send=self._transport.send,
            apply=self.state.apply,
            last_applied=1 if disk.taken is None else disk.taken.index,
        )
        self._receiver = SnapshotReceiver(self.core, self.state)
        self._membership = Membership(self.core, disk.log, self._replication, config.timings)
        self._administration = Administration(
            self.core,
            self._membership,
            self._outbox,
            send=self._transport.send,
            on_changed=self._dial,
            version=lambda: self.image.version,
        )

    @classmethod
    async def open(
        cls,
        directory: Directory,
        config: RaftConfig,
        *,
        clock: Clock,
        rng: random.Random,
        on_failed: Callable[[Exception], None] | None = None,
    ) -> "RaftStore":
        """Read what the directory holds, listen, and take part.

        Raises PinnedError, LogCorruptError, LogFailedError and OSError. `on_failed` is called once.
        """
        pinned.check()
        disk = open_disk(directory, config.node_id, config.controllers, rng)
        store = cls(config, disk, clock=clock, rng=rng, on_failed=on_failed)
        started = False
        try:
            await store._transport.start(config.host, config.port)
            started = True
        finally:
            if not started:
                disk.close()
        store._closed = False
        store._dial()
        store._runner = store._tasks.spawn("raft", store._run())
        log.info(
            "Opened Raft metadata path=%s node=%d term=%d version=%d last_index=%d",
            directory.path,
            config.node_id,
            store.core.term,
            store.image.version,
            disk.log.last_index,
        )
        return store

    # -- reading

    @property
    def image(self) -> ClusterImage:
        """The newest image of this node; all of it is committed."""
        return self.state.image

    @property
    def port(self) -> int:
        """Where this node listens."""
        return self._transport.port

    @property
    def role(self) -> str:
        """leader, follower or observer."""
        if self.core.is_leader:
            return "leader"
        return "follower" if self.core.is_voter else "observer"

    @property
    def leader_id(self) -> int | None:
        """The leader of this term, None when unknown."""
        return self.core.leader_id

    @property
    def term(self) -> int:
        """The current term."""
        return self.core.term

    @property
    def voters(self) -> Voters:
        """The voters by the newest entry of the log."""
        return self.log.voters

    def quorum(self) -> QuorumState:
        """Return who votes, who follows and how far they are."""
        return self._membership.describe()

    def subscribe(self, subscriber: Subscriber) -> Callable[[], None]:
        """Call `subscriber(old, new, delta)` after each change, in order; return how to stop that.

        Subscribers have run when the proposer of the change goes on.
        """
        return self.state.subscribe(subscriber)

    def on_leadership(self, callback: OnLeadership) -> None:
        """Call `callback(leads, term)` when this node begins or ceases to lead.

        It leads once it has applied the first entry of its own term: its image then holds all that
        was ever acknowledged.
        """
        self._leadership_callbacks[len(self._leadership_callbacks)] = callback

    # -- proposing

    async def propose(self, command: Command, deadline_ms: int) -> Outcome:
        """Get a command into the log; wait at most until `deadline_ms` (`Clock.now_ms`).

        Refused: it was not and will not be applied. Unknown: it may be; the same command again is
        harmless.
        """
        refusal = admit(command)
        if refusal is not None:
            return refusal
        try:
            data = encode(command)
        except MalformedCommandError as error:
            return Refused.of(InvalidRequestError(f"Malformed command: {error}"))
        return await self._settled(Item(What.COMMAND, data), deadline_ms)

    async def barrier(self, deadline_ms: int) -> Outcome:
        """Return when the image is at least as new as all that was acknowledged before the call."""
        return await self._settled(Item(What.BARRIER, self._new_id().bytes), deadline_ms)

    async def _settled(self, item: Item, deadline_ms: int) -> Outcome:
        refusal = self._refusal()
        if refusal is not None:
            return refusal
        pending = self._outbox.pending.get(item.key)
        if pending is None:
            pending = Pending(item, asyncio.get_running_loop().create_future())
            self._outbox.pending[item.key] = pending
            self._wake.set()
        return await self._outcome(pending, item.key, deadline_ms)

    async def _outcome(self, pending: Pending, key: bytes, deadline_ms: int) -> Outcome:
        timeout_s = max(0, deadline_ms - self._clock.now_ms()) / 1000
        try:
            await asyncio.wait([pending.settled], timeout=timeout_s)
        finally:
            if not pending.settled.done():
                self._outbox.pending.pop(key, None)
        if pending.settled.done():
            return pending.settled.result()
        if pending.term < 0:
            return Refused.of(NotControllerError("The quorum has no leader that can be reached"))
        return Unknown(message="The deadline passed")

    def _refusal(self) -> Refused | None:
        if self.failed is not None:
            return Refused.of(KafkaStorageError(f"The metadata store has failed: {self.failed}"))
        if self._closed:
            return Refused.of(BrokerNotAvailableError("The metadata store is closed"))
        if len(self._outbox) >= proposals.WAITING_MAX:
            return Refused(code=_THROTTLED, message="Too many changes of metadata wait")
        return None

    def _new_id(self) -> UUID:
        return UUID(int=self._rng.getrandbits(128), version=4)

    async def change_voters(
        self, operation: Operation, node_id: int, deadline_ms: int, host: str = "", port: int = 0
    ) -> Outcome:
        """Add a voter (an observer that has caught up) or remove one; or transfer the leadership.

        Refused when the quorum would be lost. A transfer is applied when it was begun.
        """
        refusal = self._refusal()
        if refusal is not None:
            return refusal
        request = AdminRequest(
            request_id=self._new_id(), operation=operation, node_id=node_id, host=host, port=port
        )
        key = request.request_id.bytes
        pending = self._outbox.expect(key, asyncio.get_running_loop().create_future())
        self._post(self._administration.ask, request)
        return await self._outcome(pending, key, deadline_ms)

    async def transfer(self, node_id: int, deadline_ms: int) -> Outcome:
        """Ask the leader to let another voter lead."""
        return await self.change_voters(Operation.TRANSFER, node_id, deadline_ms)

    # -- the task

    def _post(self, handler: Callable[..., None], *arguments: object) -> None:
        self._inbox.append((handler, arguments))
        self._wake.set()

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        timer = loop.call_later(self._config.timings.tick_s, self._wake.set)
        while not self._closed:
            self._wake.clear()
            if self._clock_passed(timer):
                timer = loop.call_later(self._config.timings.tick_s, self._wake.set)
            self._step()
            await self._wake.wait()
        timer.cancel()

    def _clock_passed(self, timer: asyncio.TimerHandle) -> bool:
        return timer.when() <= asyncio.get_running_loop().time()

    def _step(self) -> None:
        """Take what has come, let time pass, send."""
        for _ in range(len(self._inbox)):
            handler, arguments = self._inbox.popleft()
            handler(*arguments)
        core = self.core
        core.tick()
        # Before anything is sent again: what was applied now must be known as settled.
        self.state.publish()
        if core.is_leader:
            self._lead()
        elif core.leader_id is not None:
            self._forward(core.leader_id)
        core.push()
        if core.is_leader and len(self.log.voters) == 1 and core.commit_index < self.log.last_index:
            self._wake.set()
        self._note_leadership()
        self.state.maybe_compact(core.applied_index)

    def _lead(self) -> None:
        core, intake = self.core, self._intake
        intake.begin(core.term)
        if self._membership.bind(self._new_id()):
            self._dial()
        if not core.is_active_leader:
            return
        due = self._outbox.due(core.term, self.state.applied_term, core.now_s())
        if due:
            intake.offer(due)
        while items := intake.next_entry(core.applied_index):
            intake.in_flight.append(core.append(wire.encode_items(items)))

    def _forward(self, leader_id: int) -> None:
        core = self.core
        if core.seat(leader_id) is None:
            return
        due = self._outbox.due(core.term, self.state.applied_term, core.now_s())
        while due:
            part, size = [due.pop(0)], 0
            while due and size < wire.ITEMS_BYTES_MAX and len(part) < 1_000:
                size += len(due[0].data)
                part.append(due.pop(0))
            self._transport.send(
                leader_id, {"type": "propose", "term": core.term, "items": tuple(part)}
            )

    def _note_leadership(self) -> None:
        state = (self.core.is_active_leader, self.core.term if self.core.is_active_leader else 0)
        if state != self._leadership:
            before, self._leadership = self._leadership, state
            loop = asyncio.get_running_loop()
            if before[0]:
                log.info("No longer leads the metadata quorum term=%d", before[1])
            if state[0]:
                log.info("Leads the metadata quorum term=%d", state[1])
            for callback in self._leadership_callbacks.values():
                if before[0]:
                    loop.call_soon(callback, False, before[1])
                if state[0]:
                    loop.call_soon(callback, True, state[1])

    # -- what comes in

    def _up(self, node_id: int, directory_id: UUID) -> None:
        self._receiver.forget(node_id)
        self.core.peer_up(node_id, directory_id)

    def _down(self, node_id: int) -> None:
        self._receiver.forget(node_id)
        self.core.peer_down(node_id)

    def _receive(self, node_id: int, message: Message) -> None:
        handler = _HANDLERS.get(message["type"])
        if handler is not None:
            handler(self, node_id, message)
            return
        self.core.receive(node_id, message)
        if message["type"] == "append_entries":
            self._dial()

    def _on_snapshot(self, node_id: int, message: Message) -> None:
        if self._receiver.receive(node_id, message):
            self.state.publish()
            self._outbox.give_up_sent()
            self._dial()

    def _on_propose(self, node_id: int, message: Message) -> None:
        core = self.core
        taken = False
        if core.is_active_leader and message["term"] == core.term:
            self._intake.begin(core.term)
            taken = self._intake.offer(message["items"])
        if not taken:
            self._transport.send(node_id, message | {"type": "propose_refused"})

    def _on_propose_refused(self, node_id: int, message: Message) -> None:
        self._outbox.refuse(message["items"], message["term"], self.core.now_s())

    def _on_admin(self, node_id: int, message: Message) -> None:
        self._administration.on_request(node_id, message)

    def _on_admin_reply(self, node_id: int, message: Message) -> None:
        self._administration.on_reply(message)

    def _dial(self) -> None:
        """Dial whom the log and the config call voters."""
        members = {voter.node_id: voter for voter in self._config.controllers.members}
        members |= {voter.node_id: voter for voter in self.log.voters.members}
        self._transport.set_targets(
            {node_id: (voter.host, voter.port) for node_id, voter in members.items()}
        )

    # -- the end

    def _on_task_failed(self, name: str, error: BaseException) -> None:
        if self.failed is not None:
            return
        self.failed = error if isinstance(error, Exception) else RuntimeError(repr(error))
        log.critical("Raft metadata failed error=%s", error)
        self._outbox.abandon(Unknown(message=f"The metadata store has failed: {error}"))
        self._transport.abort()
        self._disk.log.failed = True
        if self._on_failed is not None:
            self._on_failed(self.failed)

    async def close(self) -> None:
        """Leave the cluster and close the files. Idempotent."""
        if self._closed:
            return
        self._closed = True
        self._wake.set()
        if self._runner is not None:
            await asyncio.wait([self._runner])
        await self._transport.close()
        await self._tasks.close()
        self._outbox.abandon(Unknown(message="The metadata store was closed"))
        self._disk.close()


_HANDLERS: dict[str, Callable[[RaftStore, int, Message], None]] = {
    "snapshot": RaftStore._on_snapshot,
    "propose": RaftStore._on_propose,
    "propose_refused": RaftStore._on_propose_refused,
    "admin": RaftStore._on_admin,
    "admin_reply": RaftStore._on_admin_reply,
}
