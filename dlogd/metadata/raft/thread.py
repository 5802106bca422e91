"""Thread of Raft, and its interface on the caller's loop.

The flushes and snapshots of the metadata then hold up no client, and a burst of client work delays
no heartbeat. The two loops hand each other calls, many at a time (`_Mailbox`), and share no value
that changes.
The simulation uses `RaftStore` directly: there is no thread there.
"""

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from dlog.errors import BrokerNotAvailableError
from dlogd.metadata.commands.codec import Command
from dlogd.metadata.raft.machine_state import Subscriber
from dlogd.metadata.raft.membership import Operation, QuorumState
from dlogd.metadata.raft.participant import OnLeadership
from dlogd.metadata.raft.progress import RaftProgress
from dlogd.metadata.raft.settings import RaftConfig
from dlogd.metadata.raft.store import RaftStore, Withdraw, nothing
from dlogd.metadata.state.delta import ImageDelta
from dlogd.metadata.state.image import ClusterImage, Outcome, Refused, Unknown
from dlogd.runtime.clock import Clock
from dlogd.runtime.name_resolver import share_lookups
from dlogd.runtime.randomness import Randomness
from dlogd.storage.io.files import Directory

T = TypeVar("T")

_Call = tuple[Callable[..., object], tuple[object, ...]]


class _Mailbox:
    """Calls for another thread's loop, in order; one wake-up serves all that came meanwhile."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._calls: deque[_Call] = deque()
        self._woken = False

    def post(self, function: Callable[..., object], *arguments: object) -> None:
        """Have the loop call this soon; from another thread. Raises RuntimeError when it closed."""
        self._calls.append((function, arguments))
        if not self._woken:
            self._woken = True
            self._loop.call_soon_threadsafe(self._take)

    def _take(self) -> None:
        # First this: who posts from now on wakes the loop again.
        self._woken = False
        while self._calls:
            function, arguments = self._calls.popleft()
            self._loop.call_soon(function, *arguments)


class ThreadedRaftStore:
    """A `RaftStore` in another thread. Owner: the loop that opened it."""

    def __init__(self, on_failed: Callable[[Exception], None] | None) -> None:
        self._home = asyncio.get_running_loop()
        self._away = asyncio.new_event_loop()
        share_lookups(self._away)
        self._thread = threading.Thread(target=self._main, name="metadata-raft", daemon=True)
        self._to_home = _Mailbox(self._home)
        self._to_thread = _Mailbox(self._away)
        self._on_failed = on_failed
        self._store: RaftStore | None = None
        self._image = ClusterImage()
        self._subscribers: dict[int, Subscriber] = {}
        self._subscriber_next = 0
        self._closed = False
        self.failed: Exception | None = None
        """Why nothing can be proposed any more; the process must be restarted."""

    @classmethod
    async def open(
        cls,
        directory: Directory,
        config: RaftConfig,
        *,
        clock: Clock,
        randomness: Randomness,
        on_failed: Callable[[Exception], None] | None = None,
    ) -> "ThreadedRaftStore":
        """Open as `RaftStore.open` does; `randomness` belongs to the thread from now on."""
        store = cls(on_failed)
        store._thread.start()
        opened = False
        try:
            await store._call(store._open(directory, config, clock, randomness))
            opened = True
        finally:
            if not opened:
                await store._end()
        store._image = store._opened.image
        return store

    async def _open(
        self, directory: Directory, config: RaftConfig, clock: Clock, randomness: Randomness
    ) -> None:
        store = self._store = await RaftStore.open(
            directory, config, clock=clock, randomness=randomness, on_failed=self._hand_failure
        )
        store.subscribe(self._hand_image)

    def _main(self) -> None:
        asyncio.set_event_loop(self._away)
        self._away.run_forever()
        self._away.close()

    async def _call(self, work: Coroutine[Any, Any, T]) -> T:
        """Run `work` in the thread; cancelling the caller cancels it."""
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self._away))

    @property
    def _opened(self) -> RaftStore:
        assert self._store is not None
        return self._store

    # -- handed over by the thread

    def _hand_image(self, old: ClusterImage, new: ClusterImage, delta: ImageDelta) -> None:
        self._to_home.post(self._on_image, old, new, delta)

    def _on_image(self, old: ClusterImage, new: ClusterImage, delta: ImageDelta) -> None:
        self._image = new
        for subscriber in list(self._subscribers.values()):
            subscriber(old, new, delta)

    def _hand_failure(self, error: Exception) -> None:
        self._to_home.post(self._on_failure, error)

    def _on_failure(self, error: Exception) -> None:
        self.failed = error
        if self._on_failed is not None:
            self._on_failed(error)

    # -- the surface of the store

    @property
    def image(self) -> ClusterImage:
        """The newest image that this loop has heard of; all of it is committed."""
        return self._image

    @property
    def port(self) -> int:
        """Where this node listens."""
        return self._opened.port

    @property
    def role(self) -> str:
        """leader, follower or observer."""
        return self._opened.role

    @property
    def progress(self) -> RaftProgress:
        """Where this node is."""
        return self._opened.progress

    @property
    def leader_id(self) -> int | None:
        """The leader of this term, None when unknown."""
        return self._opened.leader_id

    @property
    def term(self) -> int:
        """The current term."""
        return self._opened.term

    def subscribe(self, subscriber: Subscriber) -> Callable[[], None]:
        """Call `subscriber(old, new, delta)` after each change; return how to stop that.

        Subscribers have run when the proposer of the change goes on.
        """
        number = self._subscriber_next
        self._subscriber_next += 1
        self._subscribers[number] = subscriber
        return lambda: self._unsubscribe(number)

    def _unsubscribe(self, number: int) -> None:
        self._subscribers.pop(number, None)

    def on_leadership(self, callback: OnLeadership) -> None:
        """Call `callback(leads, term)` on this loop when this node begins or ceases to lead."""

        def hand(leads: bool, term: int) -> None:
            self._to_home.post(callback, leads, term)

        self._to_thread.post(self._opened.on_leadership, hand)

    async def propose(self, command: Command, deadline_ms: int) -> Outcome:
        """Get a command into the log; wait at most until `deadline_ms` (`Clock.now_ms`)."""
        return await self._settled(self._opened.submit, command, deadline_ms)

    async def barrier(self, deadline_ms: int) -> Outcome:
        """Return when the image is at least as new as all that was acknowledged before the call."""
        return await self._settled(self._opened.submit_barrier, deadline_ms)

    async def contact(self, deadline_ms: int) -> Outcome:
        """Return when this node surely led at some moment since the call; Applied if it did."""
        return await self._settled(self._opened.submit_contact, deadline_ms)

    async def _settled(self, submit: Callable[..., Withdraw], *arguments: object) -> Outcome:
        """Have the thread submit something and wait for its outcome: no task for each of many."""
        if self._closed:
            return Refused.of(_closed())
        outcome: asyncio.Future[Outcome] = self._home.create_future()
        withdraw: Withdraw = nothing

        def settle(found: Outcome) -> None:
            if not outcome.done():
                outcome.set_result(found)

        def on_settled(found: Outcome) -> None:
            # Not at once: subscribers, who are called in the same way, come first.
            self._away.call_soon(self._to_home.post, settle, found)

        def begin() -> None:
            nonlocal withdraw
            submitted = False
            try:
                withdraw = submit(*arguments, on_settled)
                submitted = True
            finally:
                if not submitted:
                    on_settled(Unknown(message="A defect: see the log"))

        self._to_thread.post(begin)
        try:
            return await outcome
        except asyncio.CancelledError:
            if not self._closed:
                self._to_thread.post(lambda: withdraw())
            raise

    async def quorum(self) -> QuorumState:
        """Return who votes, who follows and how far they are; raise BrokerNotAvailableError."""
        if self._closed:
            raise _closed()
        return await self._call(self._describe())

    async def _describe(self) -> QuorumState:
        return self._opened.quorum()

    async def change_voters(
        self, operation: Operation, node_id: int, deadline_ms: int, host: str = "", port: int = 0
    ) -> Outcome:
        """Add or remove a voter, or transfer the leadership."""
        if self._closed:
            return Refused.of(_closed())
        opened = self._opened
        return await self._call(opened.change_voters(operation, node_id, deadline_ms, host, port))

    async def transfer(self, node_id: int, deadline_ms: int) -> Outcome:
        """Ask the leader to let another voter lead."""
        return await self.change_voters(Operation.TRANSFER, node_id, deadline_ms)

    async def close(self) -> None:
        """Leave the cluster, close the files and end the thread. Idempotent."""
        self._closed = True
        if self._thread.is_alive():
            await self._call(self._opened.close())
            await self._end()

    async def _end(self) -> None:
        """Stop the thread's loop; nothing runs in it any more, so the join is short."""
        self._away.call_soon_threadsafe(self._away.stop)
        self._thread.join()


def _closed() -> BrokerNotAvailableError:
    return BrokerNotAvailableError("The metadata store is closed")
