"""Metadata store of a cluster, on Raft, with the interface of `dlogd.metadata.local_store`.

Any node may propose; the command goes to the leader and its outcome is read from this node's own
copy of the log, so that when a proposal is settled this node's image shows it.

Owner: the Raft loop, which may be a thread's own (`dlogd.metadata.raft.thread`): disk and
computation block it.
"""

import asyncio
import logging
from collections.abc import Callable
from functools import partial

from dlog.errors import (
    BrokerNotAvailableError,
    InvalidRequestError,
    KafkaStorageError,
)
from dlogd.metadata.commands.codec import (
    ClaimController,
    Command,
    Guarded,
    MalformedCommandError,
    encode,
)
from dlogd.metadata.machine.admission import admit
from dlogd.metadata.raft import proposals, pysyncobj_adapter
from dlogd.metadata.raft.boot import open_disk
from dlogd.metadata.raft.entries import Item, What
from dlogd.metadata.raft.machine_state import Subscriber
from dlogd.metadata.raft.membership import AdminRequest, Operation, QuorumState
from dlogd.metadata.raft.participant import OnLeadership, Participant
from dlogd.metadata.raft.progress import RaftProgress
from dlogd.metadata.raft.proposals import OnSettled
from dlogd.metadata.raft.settings import RaftConfig
from dlogd.metadata.raft.voters import Voters, expect_place
from dlogd.metadata.state.image import Outcome, Refused, Unknown
from dlogd.runtime.clock import Clock
from dlogd.runtime.randomness import Randomness
from dlogd.storage.io.files import Directory

log = logging.getLogger(__name__)

_THROTTLED = 89  # THROTTLING_QUOTA_EXCEEDED: try again later

Withdraw = Callable[[], None]
"""Says that nobody waits any more for what was submitted."""


def nothing() -> None:
    """Withdraw what is settled, or cannot be withdrawn."""


class _Settled:
    """Waits for one outcome."""

    def __init__(self) -> None:
        self.outcome: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()

    def on_settled(self, outcome: Outcome) -> None:
        """Take it; whoever waited may have gone."""
        if not self.outcome.done():
            self.outcome.set_result(outcome)

    async def wait(self, withdraw: Withdraw) -> Outcome:
        """Return it; who is cancelled withdraws what he proposed."""
        try:
            return await self.outcome
        except asyncio.CancelledError:
            withdraw()
            raise


class RaftStore(Participant):
    """The metadata of one node. Life: `open` once, `close` once."""

    @classmethod
    async def open(
        cls,
        directory: Directory,
        config: RaftConfig,
        *,
        clock: Clock,
        randomness: Randomness,
        on_failed: Callable[[Exception], None] | None = None,
    ) -> "RaftStore":
        """Read what the directory holds, listen, and take part.

        Raises PysyncobjError, LogCorruptError, LogFailedError, UnknownLevelError and OSError.
        `on_failed` is called once.
        """
        pysyncobj_adapter.check()
        disk = open_disk(
            directory,
            config.node_id,
            config.controllers,
            randomness.entropy,
            cluster_id=config.cluster,
        )
        store = cls(config, disk, clock=clock, randomness=randomness, on_failed=on_failed)
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

    @property
    def progress(self) -> RaftProgress:
        """Where this node is; may be read from another thread."""
        return RaftProgress(
            role=self.role,
            leader_id=self.core.leader_id,
            term=self.core.term,
            commit_index=self.core.commit_index,
            last_index=self.log.last_index,
            snapshot_index=self._disk.files.index,
            log_bytes=self.log.size_bytes,
            voters=tuple(each.node_id for each in self.log.voters.members),
            refused=dict(self._transport.refusals.counts),
            connected=tuple(sorted(self.core.connected)),
            absent=tuple(
                f"{each} ({self._transport.trouble(each)})"
                for each in self.log.voters.node_ids
                if each != self._config.node_id and each not in self.core.connected
            ),
        )

    def quorum(self) -> QuorumState:
        """Return who votes, who follows and how far they are."""
        return self._membership.describe()

    def subscribe(self, subscriber: Subscriber) -> Callable[[], None]:
        """Call `subscriber(old, new, delta)` after each change, in order; return how to stop that.

        Subscribers have run when the proposer of the change goes on.
        """
        return self.state.subscribe(subscriber)

    def on_leadership(self, callback: OnLeadership) -> None:
        """Call `callback(leads, term)` when this node begins or ceases to lead; now if it leads.

        It leads once it has applied the first entry of its own term: its image then holds all that
        was ever acknowledged.
        """
        self._leadership_callbacks[len(self._leadership_callbacks)] = callback
        leads, term = self._leadership
        if leads:
            callback(leads, term)

    # -- proposing

    async def propose(self, command: Command, deadline_ms: int) -> Outcome:
        """Get a command into the log; wait at most until `deadline_ms` (`Clock.now_ms`).

        Refused: it was not and will not be applied. Unknown: it may be; the same command again is
        harmless. Who is cancelled withdraws it: it may be applied, but no later leader is asked.
        """
        settled = _Settled()
        withdraw = self.submit(command, deadline_ms, settled.on_settled)
        return await settled.wait(withdraw)

    async def barrier(self, deadline_ms: int) -> Outcome:
        """Return when the image is at least as new as all that was acknowledged before the call."""
        settled = _Settled()
        withdraw = self.submit_barrier(deadline_ms, settled.on_settled)
        return await settled.wait(withdraw)

    async def contact(self, deadline_ms: int) -> Outcome:
        """Return when this node surely led at some moment since the call; Applied if it did.

        A round of heartbeats proves it: nothing is written.
        """
        settled = _Settled()
        self.submit_contact(deadline_ms, settled.on_settled)
        return await settled.outcome

    def submit(self, command: Command, deadline_ms: int, on_settled: OnSettled) -> Withdraw:
        """Propose a command; its outcome is told once, perhaps at once, by `on_settled`.

        Who waits no longer calls what is returned.
        """
        # The leader takes each id once in its term: it would not answer a second time.
        known = self.image.outcomes.get(command.command_id) or admit(command)
        if known is not None:
            on_settled(known)
            return nothing
        try:
            data = encode(command)
        except MalformedCommandError as error:
            on_settled(Refused.of(InvalidRequestError(f"Malformed command: {error}")))
            return nothing
        # Of what the controller does there is one at a time, and all wait for it.
        bounded = not isinstance(command, Guarded | ClaimController)
        return self._send(Item(What.COMMAND, data), deadline_ms, on_settled, bounded=bounded)

    def submit_barrier(self, deadline_ms: int, on_settled: OnSettled) -> Withdraw:
        """Do what `barrier` does, with the outcome told by `on_settled`."""
        return self._send(Item(What.BARRIER, self._new_id().bytes), deadline_ms, on_settled)

    def submit_contact(self, deadline_ms: int, on_settled: OnSettled) -> Withdraw:
        """Do what `contact` does, with the outcome told by `on_settled`; nothing is withdrawn."""
        refusal = self._refusal(bounded=False)
        if refusal is not None:
            on_settled(refusal)
            return nothing
        self._contacts.add(self.core.now_s(), deadline_ms, on_settled)
        self.core.hasten()
        self._wake.set()
        return nothing

    def _send(
        self, item: Item, deadline_ms: int, on_settled: OnSettled, *, bounded: bool = True
    ) -> Withdraw:
        refusal = self._refusal(bounded=bounded)
        if refusal is not None:
            on_settled(refusal)
            return nothing
        self._outbox.add(item, deadline_ms, on_settled)
        self._wake.set()
        return partial(self._outbox.withdraw, item.key, on_settled)

    def _refusal(self, *, bounded: bool = True) -> Refused | None:
        if self.failed is not None:
            return Refused.of(KafkaStorageError(f"The metadata store has failed: {self.failed}"))
        if self._closed:
            return Refused.of(BrokerNotAvailableError("The metadata store is closed"))
        if bounded and len(self._outbox) >= proposals.WAITING_MAX:
            return Refused(code=_THROTTLED, message="Too many changes of metadata wait")
        return None

    async def change_voters(
        self, operation: Operation, node_id: int, deadline_ms: int, host: str = "", port: int = 0
    ) -> Outcome:
        """Add a voter (an observer that has caught up) or remove one; or transfer the leadership.

        Refused when the quorum would be lost. A transfer is applied when it was begun.
        """
        refusal = self._refusal()
        if refusal is not None:
            return refusal
        if operation is Operation.ADD:
            try:
                expect_place(host, port)
            except InvalidRequestError as error:
                return Refused.of(error)
        request = AdminRequest(
            request_id=self._new_id(), operation=operation, node_id=node_id, host=host, port=port
        )
        settled = _Settled()
        key = request.request_id.bytes
        self._outbox.expect(key, deadline_ms, settled.on_settled)
        self._post(self._administration.ask, request)
        return await settled.wait(partial(self._outbox.withdraw, key, settled.on_settled))

    async def transfer(self, node_id: int, deadline_ms: int) -> Outcome:
        """Ask the leader to let another voter lead."""
        return await self.change_voters(Operation.TRANSFER, node_id, deadline_ms)

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
        self._outbox.abandon(closed := Unknown(message="The metadata store was closed"))
        self._contacts.abandon(closed)
        self._disk.close()
