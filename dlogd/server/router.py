"""Router of frames: Produce and Fetch on their own path, all others through dispatch."""

from collections.abc import Coroutine
from typing import Any

from dlog.errors import ProtocolError
from dlog.wire import fetch
from dlog.wire.apis import VERSIONS, ApiKey
from dlog.wire.frame import RequestHeader, parse_request_header
from dlogd.net.reply_slot import ReplySlot
from dlogd.runtime.clock import Clock
from dlogd.runtime.tasks import Tasks
from dlogd.server.connection import Connection
from dlogd.server.dispatch import Dispatcher
from dlogd.server.entry_budget import Room, entries_of
from dlogd.server.handlers import fetch_answers
from dlogd.server.handlers.fetch import FetchHandler, FetchWork
from dlogd.server.handlers.produce import ProduceHandler
from dlogd.server.request_turns import REQUEST_ENTRIES
from dlogd.server.session import CLIENT_ID_CHARACTERS_MAX
from dlogd.telemetry.metrics import ApiMetrics, Telemetry

LARGE_FETCH_BYTES = 8 * 1024
"""A Fetch request from this size on waits for its turn: it names some three hundred partitions."""
_PRODUCE = int(ApiKey.PRODUCE)
_FETCH = int(ApiKey.FETCH)
_PRODUCE_MIN, _PRODUCE_MAX = VERSIONS[ApiKey.PRODUCE]
_FETCH_MIN, _FETCH_MAX = VERSIONS[ApiKey.FETCH]
# Questions, and changes of the metadata and nothing else: they can be left off anywhere. Who has
# lost the connection may ask another node, and must not meet the first attempt long after that.
_WITHDRAWN = frozenset(
    (
        *(ApiKey.CREATE_TOPICS, ApiKey.DELETE_TOPICS, ApiKey.CREATE_PARTITIONS),
        *(ApiKey.ALTER_CONFIGS, ApiKey.INCREMENTAL_ALTER_CONFIGS),
        *(ApiKey.ALTER_PARTITION_REASSIGNMENTS, ApiKey.ELECT_LEADERS),
        *(ApiKey.METADATA, ApiKey.LIST_OFFSETS, ApiKey.OFFSET_FOR_LEADER_EPOCH),
        *(ApiKey.DESCRIBE_CONFIGS, ApiKey.DESCRIBE_LOG_DIRS, ApiKey.DESCRIBE_TOPIC_PARTITIONS),
        *(ApiKey.DESCRIBE_ACLS, ApiKey.LIST_PARTITION_REASSIGNMENTS),
    )
)


class RequestRouter:
    """Routes the requests of all connections of a node."""

    def __init__(
        self,
        produce: ProduceHandler,
        fetch_handler: FetchHandler,
        dispatcher: Dispatcher,
        clock: Clock,
        tasks: Tasks,
        telemetry: Telemetry,
    ) -> None:
        self._produce = produce
        self._fetch = fetch_handler
        self._turns = produce.turns = dispatcher.turns
        self._entries = dispatcher.entries
        self._dispatcher = dispatcher
        self._clock = clock
        self._tasks = tasks
        self._telemetry = telemetry

    def handle(self, connection: Connection, buffer: bytearray, start: int, end: int) -> None:
        """Handle the request in `buffer[start:end]`; raise ProtocolError for nonsense."""
        view = memoryview(buffer)
        header = parse_request_header(view, start, end)
        api_key, version, correlation_id, client_id, position = header
        connection.client_id = client_id[:CLIENT_ID_CHARACTERS_MAX] if client_id else ""
        if api_key == _PRODUCE:
            if not _PRODUCE_MIN <= version <= _PRODUCE_MAX:
                raise ProtocolError(f"Produce version {version} is not served (format v2 only)")
            self._produce.handle(connection, version, correlation_id, buffer, position, end)
        elif api_key == _FETCH:
            if not _FETCH_MIN <= version <= _FETCH_MAX:
                raise ProtocolError(f"Fetch version {version} is not served")
            if connection.is_fetching:
                self._fetch_after_answer(connection, version, correlation_id, position, end)
            elif end - position < LARGE_FETCH_BYTES:
                self._fetch.handle(connection, version, correlation_id, buffer, position, end)
            else:
                self._fetch_in_turns(connection, version, correlation_id, position, end)
        else:
            self._dispatch(connection, header, buffer, end)

    def _fetch_after_answer(
        self, connection: Connection, version: int, correlation_id: int, position: int, end: int
    ) -> None:
        """Leave a Fetch, and what is behind it, unread until the one before it is answered.

        Kafka works on one request of a connection at a time. A Fetch waits for up to five minutes,
        and a thousand of them on each connection would all be woken by one append.
        """

        def go_on() -> None:
            places = position + shift, end + shift
            if end - position < LARGE_FETCH_BYTES:
                self._fetch.handle(connection, version, correlation_id, buffer, *places)
            else:
                self._fetch_in_turns(connection, version, correlation_id, *places)

        buffer, shift = connection.stall(go_on)
        connection.on_fetched = lambda: self._turns.ask(connection.unstall)

    def _fetch_in_turns(
        self, connection: Connection, version: int, correlation_id: int, position: int, end: int
    ) -> None:
        """Read a request for thousands of partitions in one turn, and look at them in another.

        Not in smaller pieces: what is found is true of one moment, and may be cut in the next.
        """

        def parse() -> None:
            request = fetch_answers.bounded(
                fetch.parse_request(memoryview(buffer), position + shift, end + shift, version)
            )
            work = FetchWork(self._fetch, connection, version, correlation_id, request)

            def start() -> None:
                work.start(end - position)
                room.cancel()

            connection.stall(start)
            self._turns.ask(connection.unstall)

        self._fetch.api.requests += 1
        buffer, shift = connection.stall(parse)
        room = self._wait_for_room(connection, entries_of(end - position))

    def _wait_for_room(self, connection: Connection, entries: int) -> Room:
        """Unstall the connection, in its turn, once `entries` are counted for its request."""
        room = self._entries.wait(
            entries, connection.address, lambda: self._turns.ask(connection.unstall)
        )
        connection.end_with(room)
        return room

    def _dispatch(
        self, connection: Connection, header: RequestHeader, buffer: bytearray, end: int
    ) -> None:
        """Answer a request now, or in its turn, or when there is room for its entries."""
        entries = entries_of(end - header.body_position)
        is_spent = self._turns.is_spent
        if not is_spent and self._entries.take(entries):
            self._answer(connection, header, buffer, end, entries)
            return

        def go_on() -> None:
            moved = header._replace(body_position=header.body_position + shift)
            if room is None:
                self._dispatch(connection, moved, kept, end + shift)
            else:
                room.hand_over()
                self._answer(connection, moved, kept, end + shift, entries)

        room: Room | None = None
        kept, shift = connection.stall(go_on)
        if is_spent:
            self._turns.ask(connection.unstall)
        else:
            room = self._wait_for_room(connection, entries)

    def _answer(
        self,
        connection: Connection,
        header: RequestHeader,
        buffer: bytearray,
        end: int,
        entries: int,
    ) -> None:
        """Answer a request whose entries are counted."""
        self._turns.spend(REQUEST_ENTRIES)
        started_us = connection.received_us
        answer: bytes | Coroutine[Any, Any, bytes] | None = None
        try:
            answer = self._dispatcher.respond(header, memoryview(buffer), end, connection.session)
        finally:
            if answer is None or isinstance(answer, bytes):
                self._entries.give_back(entries)
        name = ApiKey(header.api_key).name
        api = self._telemetry.api(name)
        api.requests += 1
        if isinstance(answer, bytes):
            api.seconds.observe((self._clock.now_us() - started_us) / 1e6)
            connection.replies.reply(answer)
        else:
            slot = connection.replies.open()
            connection.answering.begin(end - header.body_position)
            work = self._respond(connection, slot, answer, api, started_us)
            task = self._tasks.spawn(f"request {name}", work)
            task.add_done_callback(lambda _: self._entries.give_back(entries))
            if header.api_key in _WITHDRAWN:
                connection.end_with(task)

    async def _respond(
        self,
        connection: Connection,
        slot: ReplySlot,
        answer: Coroutine[Any, Any, bytes],
        api: ApiMetrics,
        started_us: int,
    ) -> None:
        data: bytes | None = None
        try:
            data = await answer
        except ProtocolError as error:
            connection.break_off(error)
            return
        finally:
            if data is None:
                connection.abort(None)  # cut off by a stop, or a bug, which the task set logs
        api.seconds.observe((self._clock.now_us() - started_us) / 1e6)
        connection.guard(lambda: connection.settle(slot, data))
