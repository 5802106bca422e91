"""Participant in Raft: the task that receives, ticks and sends.

What connections bring waits in `_inbox` until the next step of the one task, so that nothing of the
core runs in the middle of something else. Whatever goes wrong in the task ends the node: `failed`
is set, `on_failed` called, and a restart reads what the disk holds. Owner: the Raft loop.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from uuid import UUID

from dlogd.metadata.raft import entries as wire
from dlogd.metadata.raft.administration import Administration
from dlogd.metadata.raft.boot import Disk
from dlogd.metadata.raft.consensus import RaftCore
from dlogd.metadata.raft.durable_log import LogFailedError
from dlogd.metadata.raft.feature_level import UnknownLevelError
from dlogd.metadata.raft.handshake import NONCE_BYTES, Hello
from dlogd.metadata.raft.machine_state import MachineState
from dlogd.metadata.raft.membership import Membership
from dlogd.metadata.raft.messages import Message
from dlogd.metadata.raft.proposals import Contacts, Intake, Outbox
from dlogd.metadata.raft.receiving import SnapshotReceiver
from dlogd.metadata.raft.replication import Replication
from dlogd.metadata.raft.settings import RaftConfig
from dlogd.metadata.raft.timings import NEVER_S
from dlogd.metadata.raft.transport import RaftTransport
from dlogd.metadata.raft.voters import Voters
from dlogd.metadata.state.encoding import MalformedError
from dlogd.metadata.state.image import Applied, ClusterImage, Unknown
from dlogd.runtime.clock import Clock
from dlogd.runtime.randomness import Randomness
from dlogd.runtime.tasks import Tasks

log = logging.getLogger(__name__)

MOMENT_S = 0.001

OnLeadership = Callable[[bool, int], None]


class Participant:
    """Base of `RaftStore`: everything but what others call."""

    def __init__(
        self,
        config: RaftConfig,
        disk: Disk,
        *,
        clock: Clock,
        randomness: Randomness,
        on_failed: Callable[[Exception], None] | None,
    ) -> None:
        self._config = config
        self._disk = disk
        self._clock = clock
        self._randomness = randomness
        self._on_failed = on_failed
        self._outbox = Outbox()
        self._intake = Intake()
        self._contacts = Contacts()
        self._inbox: deque[tuple[Callable[..., None], tuple[object, ...]]] = deque()
        self._wake = asyncio.Event()
        self._tasks = Tasks(self._on_task_failed)
        self._runner: asyncio.Task[None] | None = None
        self._leadership: tuple[bool, int] = (False, 0)
        self._leadership_callbacks: dict[int, OnLeadership] = {}
        self._dialled: Voters | None = None
        self._hinted = Voters()
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
        self._replication = self._new_replication(config, disk)
        self._transport = self._new_transport(config, disk)
        self.core = RaftCore(
            disk.log,
            self._replication,
            clock=clock,
            rng=randomness.rng,
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

    def _new_replication(self, config: RaftConfig, disk: Disk) -> Replication:
        return Replication(
            disk.log,
            disk.files,
            renew=lambda: self.state.renew_snapshot(self.core.applied_index),
            append_bytes_max=config.append_bytes_max,
            chunk_bytes=config.chunk_bytes,
        )

    def _new_transport(self, config: RaftConfig, disk: Disk) -> RaftTransport:
        return RaftTransport(
            hello=Hello(
                cluster=config.cluster,
                node_id=config.node_id,
                directory_id=disk.log.directory_id,
                wanted_id=-1,
                nonce=bytes(NONCE_BYTES),
            ),
            secret=config.secret,
            randomness=self._randomness,
            timings=config.timings,
            on_up=lambda node_id, directory_id: self._post(self._up, node_id, directory_id),
            on_down=lambda node_id: self._post(self._down, node_id),
            on_message=lambda node_id, message: self._post(self._receive, node_id, message),
            server_tls=config.server_tls,
            client_tls=config.client_tls,
        )

    @property
    def image(self) -> ClusterImage:
        """The newest image of this node; all of it is committed."""
        return self.state.image

    def _new_id(self) -> UUID:
        return self._randomness.entropy.uuid()

    # -- the task

    def _post(self, handler: Callable[..., None], *arguments: object) -> None:
        self._inbox.append((handler, arguments))
        self._wake.set()

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        timer = loop.call_later(0, self._wake.set)
        while not self._closed:
            self._wake.clear()
            try:
                self._step()
            except (LogFailedError, UnknownLevelError) as error:
                # A full or broken disk is no defect of the program, nor is an old program: one line
                # says it.
                self._on_task_failed("raft", error)
                break
            due_s = loop.time() + self._pause_s()
            if timer.when() <= loop.time() or due_s < timer.when():
                timer.cancel()
                timer = loop.call_at(due_s, self._wake.set)
            await self._wake.wait()
        timer.cancel()

    def _pause_s(self) -> float:
        """Return how long the node may sleep: until it must act by itself, if it has nothing."""
        tick_s, heartbeat_s = self._config.timings.tick_s, self._config.timings.heartbeat_s
        if len(self._outbox) or len(self._contacts) or self.core.leader_id is None:
            return tick_s
        # What is due acts when its time has passed, not in that very moment.
        return min(max(self.core.due_s() - self.core.now_s(), 0) + MOMENT_S, heartbeat_s)

    def _step(self) -> None:
        """Take what has come, let time pass, send."""
        for _ in range(len(self._inbox)):
            handler, arguments = self._inbox.popleft()
            handler(*arguments)
        core = self.core
        core.tick()
        # Before anything is sent again: what was applied now must be known as settled.
        self.state.publish()
        self._outbox.expire(self._clock.now_ms())
        if core.is_leader:
            self._lead()
        elif core.leader_id is not None:
            self._forward(core.leader_id)
        core.push()
        if core.is_leader and len(self.log.voters) == 1 and core.commit_index < self.log.last_index:
            self._wake.set()
        self._note_leadership()
        if len(self._contacts):
            led_at_s = core.led_at_s() if core.is_active_leader else NEVER_S
            proven = Applied(version=self.image.version)
            self._contacts.settle(led_at_s, self._clock.now_ms(), proven)
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
                log.info("Lost leadership of the metadata quorum term=%d", before[1])
            if state[0]:
                log.info("Became leader of the metadata quorum term=%d", state[1])
            for callback in self._leadership_callbacks.values():
                if before[0]:
                    loop.call_soon(callback, False, before[1])
                if state[0]:
                    loop.call_soon(callback, True, state[1])

    # -- what comes in

    def _up(self, node_id: int, directory_id: UUID) -> None:
        self._receiver.forget(node_id)
        self.core.peer_up(node_id, directory_id)
        self._tell_voters(node_id)

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
        try:
            installed = self._receiver.receive(node_id, message)
        except MalformedError as error:
            # Of the leader's disk, or of the way here: nothing of it was taken over.
            self._transport.drop(node_id, f"its snapshot cannot be used: {error}")
            return
        if installed:
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

    def _on_voters(self, node_id: int, message: Message) -> None:
        """Take a peer's word for where voters are; who they are is only in the log."""
        self._hinted = message["voters"]
        self._dialled = None
        self._dial()

    def _dial(self) -> None:
        """Dial whom config, log and peers call voters, when that has changed; tell all peers.

        A node that was away may know only voters of the past, none of which leads any more.
        """
        if self._dialled == self.log.voters:
            return
        if self._dialled is not None:
            for node_id in self.core.connected:
                self._tell_voters(node_id)
        self._dialled = self.log.voters
        # What the log says first. It may be wrong: hosts may have got other addresses while the
        # cluster was down, and then only the config knows them.
        places: dict[int, dict[tuple[str, int], None]] = {}
        for voters in (self.log.voters, self._config.controllers, self._hinted):
            for voter in voters.members:
                places.setdefault(voter.node_id, {})[voter.host, voter.port] = None
        self._transport.set_targets({node_id: tuple(each) for node_id, each in places.items()})

    def _tell_voters(self, node_id: int) -> None:
        self._transport.send(node_id, {"type": "voters", "voters": self.log.voters})

    # -- the end

    def _on_task_failed(self, name: str, error: BaseException) -> None:
        if self.failed is not None:
            return
        self.failed = error if isinstance(error, Exception) else RuntimeError(repr(error))
        log.critical("Raft metadata failed error=%s", error)
        unknown = Unknown(message=f"The metadata store has failed: {error}")
        self._outbox.abandon(unknown)
        self._contacts.abandon(unknown)
        self._transport.abort()
        self._disk.log.failed = True
        if self._on_failed is not None:
            self._on_failed(self.failed)


_HANDLERS: dict[str, Callable[[Participant, int, Message], None]] = {
    "snapshot": Participant._on_snapshot,
    "propose": Participant._on_propose,
    "propose_refused": Participant._on_propose_refused,
    "admin": Participant._on_admin,
    "admin_reply": Participant._on_admin_reply,
    "voters": Participant._on_voters,
}
