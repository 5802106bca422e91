"""Requests of one connection in their order: waiting for a turn, in flight, over.

Pure: no loop, no socket; time is passed in, callbacks are held and never called here. Answers come
in the order of requests, as the protocol promises. Called by `dlog.transport`.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import asdict, dataclass, field

from dlog.checksum import Buffer
from dlog.errors import ProtocolError

Encode = Callable[[int], Buffer]
"""Returns the whole frame of a request for the given correlation id."""

OnResponse = Callable[[memoryview], None]
"""Takes the response frame, header included; may raise ProtocolError, nothing else."""

OnError = Callable[[Exception], None]
"""Takes why there is no response; must not raise."""

_CORRELATION_ID_END = 1 << 31


@dataclass(slots=True)
class TransportCounters:
    """What went through connections; may be shared by many of them. Each only grows."""

    requests_sent: int = 0
    responses_received: int = 0
    bytes_sent: int = 0
    bytes_received: int = 0

    def as_dict(self) -> dict[str, int]:
        """Return all by name."""
        return asdict(self)


def _wanted() -> bool:
    return True


@dataclass(slots=True, eq=False, kw_only=True)
class Request:
    """One request on a connection.

    Exactly one of its callbacks is called, once, unless it is cancelled before. Times are the
    loop's, in seconds.
    """

    encode: Encode
    on_response: OnResponse
    on_error: OnError
    deadline: float
    patience_s: float
    """What the node gets for the answer when this is first in line only after its deadline."""
    answered: bool = True
    is_wanted: Callable[[], bool] = _wanted
    """Asked before it is sent: whether somebody still waits for it."""
    correlation_id: int = -1
    is_over: bool = False

    @property
    def was_sent(self) -> bool:
        """Whether it had its turn."""
        return self.correlation_id >= 0

    def cancel(self) -> None:
        """Call nobody back. A request in flight keeps its place until its answer or deadline."""
        self.is_over = True


@dataclass(slots=True, kw_only=True)
class Due:
    """What is over at one moment; each request is listed once in its life."""

    unsent: list[Request] = field(default_factory=list)
    unanswered: list[Request] = field(default_factory=list)
    is_stuck: bool = False
    """The first request in flight is due: whatever follows would wait behind the lost answer."""


class Pipeline:
    """Requests of one connection. Owner: its connection.

    Invariant: at most `inflight_max` requests are in flight; others wait, first come, first sent.
    """

    __slots__ = ("_correlation_id", "_inflight", "_waiting", "inflight_max")

    def __init__(self, inflight_max: int) -> None:
        self.inflight_max = inflight_max
        self._inflight: deque[Request] = deque()
        self._waiting: deque[Request] = deque()
        self._correlation_id = 0

    @property
    def inflight_count(self) -> int:
        """Requests that wait for their answer."""
        return len(self._inflight)

    @property
    def waiting_count(self) -> int:
        """Requests that wait for their turn."""
        return len(self._waiting)

    @property
    def first_deadline(self) -> float | None:
        """When the first request in flight is due; None when nothing is in flight."""
        return self._inflight[0].deadline if self._inflight else None

    @property
    def first_inflight(self) -> Request | None:
        """The request that is answered next; None when nothing is in flight."""
        return self._inflight[0] if self._inflight else None

    @property
    def has_room(self) -> bool:
        """Whether one more may be in flight."""
        return len(self._inflight) < self.inflight_max

    @property
    def next_correlation_id(self) -> int:
        """What `start` will give."""
        return (self._correlation_id + 1) % _CORRELATION_ID_END

    def wait(self, request: Request) -> None:
        """Let a request wait for its turn."""
        self._waiting.append(request)

    def take_waiting(self) -> Request | None:
        """Return the next request whose turn it is and that is wanted; None when there is none."""
        while self._waiting and self.has_room:
            request = self._waiting.popleft()
            if not request.is_over and request.is_wanted():
                return request
        return None

    def start(self, request: Request) -> None:
        """Note that a request was sent with `next_correlation_id`."""
        request.correlation_id = self._correlation_id = self.next_correlation_id
        if request.answered:
            self._inflight.append(request)

    def answer(self, correlation_id: int, now: float) -> Request:
        """Return the request that an answer is for; raise ProtocolError when it is not the next.

        The one behind it gets its time anew if that has passed: others held it up.
        """
        if not self._inflight:
            raise ProtocolError("a response to no request")
        request = self._inflight[0]
        if request.correlation_id != correlation_id:
            raise ProtocolError(
                f"an answer to request {correlation_id}, but the next was {request.correlation_id}"
            )
        self._inflight.popleft()
        if self._inflight and self._inflight[0].deadline <= now:
            self._inflight[0].deadline = now + self._inflight[0].patience_s
        return request

    def expire(self, now: float) -> Due:
        """Take out what waits and is due; tell what is in flight and due, which keeps its place."""
        due = Due()
        if any(request.deadline <= now for request in self._waiting):
            due.unsent = [request for request in self._waiting if request.deadline <= now]
            self._waiting = deque(each for each in self._waiting if each.deadline > now)
        due.is_stuck = bool(self._inflight) and self._inflight[0].deadline <= now
        due.unanswered = [each for each in self._inflight if each.deadline <= now]
        return due

    def next_deadline(self, now: float) -> float | None:
        """Return when something is due next; what is behind others past its time is not."""
        deadlines = [each.deadline for each in self._inflight if each.deadline > now]
        deadlines += [each.deadline for each in self._waiting]
        return min(deadlines, default=None)

    def clear(self) -> list[Request]:
        """Take out everything, in order."""
        everything = [*self._inflight, *self._waiting]
        self._inflight.clear()
        self._waiting.clear()
        return everything
