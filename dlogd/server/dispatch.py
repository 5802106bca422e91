"""Dispatch of decoded requests to handlers: the one place where errors become codes.

All APIs but Produce and Fetch, which have a path of their own. What a handler raises as `WireError`
goes to the client as its code; anything else is a bug here, is logged once and goes out as
UNKNOWN_SERVER_ERROR. Handlers that need not wait are answered without a task. Called by the router
of connections.
"""

import logging
from collections.abc import Awaitable, Callable, Coroutine, Generator, Mapping
from typing import Any

from dlog.errors import (
    NONE,
    ProtocolError,
    UnknownServerError,
    UnsupportedVersionError,
    WireError,
    error_for,
)
from dlog.wire import apis, frame, messages
from dlog.wire.apis import ApiKey
from dlog.wire.frame import RequestHeader
from dlogd.server import response_builder
from dlogd.server.context import ServerContext
from dlogd.server.entry_budget import EntryBudget
from dlogd.server.handlers import (
    acls,
    alter_configs,
    api_versions,
    coordinators,
    create_partitions,
    create_topics,
    delete_records,
    delete_topics,
    describe_cluster,
    describe_configs,
    describe_topic_partitions,
    elections,
    list_config_resources,
    list_offsets,
    log_dirs,
    metadata,
    offset_for_leader_epoch,
    producer_ids,
    quorum,
    raft_voters,
    reassignments,
)
from dlogd.server.request import Answer, EncodedBody, Handler, Request
from dlogd.server.response_builder import Entity
from dlogd.server.session import CLIENT_ID_CHARACTERS_MAX, Session
from dlogd.telemetry.metrics import Telemetry

log = logging.getLogger(__name__)

NOBODY = Session()
LARGE_BYTES = 16 * 1024
"""A request from this size on is copied, and read in pieces; an entry has a byte or more."""


def make_handlers() -> dict[ApiKey, Handler]:
    """Return the handler of each API; some keep state, which belongs to whoever called this."""
    return {
        ApiKey.LIST_OFFSETS: list_offsets.HANDLER,
        ApiKey.METADATA: metadata.make_handler(),
        ApiKey.FIND_COORDINATOR: coordinators.HANDLER,
        ApiKey.API_VERSIONS: api_versions.HANDLER,
        ApiKey.CREATE_TOPICS: create_topics.HANDLER,
        ApiKey.DELETE_TOPICS: delete_topics.HANDLER,
        ApiKey.DELETE_RECORDS: delete_records.HANDLER,
        ApiKey.INIT_PRODUCER_ID: producer_ids.make_handler(),
        ApiKey.OFFSET_FOR_LEADER_EPOCH: offset_for_leader_epoch.HANDLER,
        ApiKey.DESCRIBE_ACLS: acls.DESCRIBE_HANDLER,
        ApiKey.CREATE_ACLS: acls.CREATE_HANDLER,
        ApiKey.DELETE_ACLS: acls.DELETE_HANDLER,
        ApiKey.DESCRIBE_CONFIGS: describe_configs.HANDLER,
        ApiKey.ALTER_CONFIGS: alter_configs.LEGACY_HANDLER,
        ApiKey.ALTER_REPLICA_LOG_DIRS: log_dirs.ALTER_HANDLER,
        ApiKey.DESCRIBE_LOG_DIRS: log_dirs.HANDLER,
        ApiKey.CREATE_PARTITIONS: create_partitions.HANDLER,
        ApiKey.ELECT_LEADERS: elections.HANDLER,
        ApiKey.INCREMENTAL_ALTER_CONFIGS: alter_configs.INCREMENTAL_HANDLER,
        ApiKey.ALTER_PARTITION_REASSIGNMENTS: reassignments.ALTER_HANDLER,
        ApiKey.LIST_PARTITION_REASSIGNMENTS: reassignments.LIST_HANDLER,
        ApiKey.DESCRIBE_QUORUM: quorum.HANDLER,
        ApiKey.DESCRIBE_CLUSTER: describe_cluster.HANDLER,
        ApiKey.UNREGISTER_BROKER: raft_voters.UNREGISTER_HANDLER,
        ApiKey.LIST_CONFIG_RESOURCES: list_config_resources.HANDLER,
        ApiKey.DESCRIBE_TOPIC_PARTITIONS: describe_topic_partitions.HANDLER,
        ApiKey.ADD_RAFT_VOTER: raft_voters.ADD_HANDLER,
        ApiKey.REMOVE_RAFT_VOTER: raft_voters.REMOVE_HANDLER,
    }


def _shortened(client_id: str | None) -> str:
    return client_id[:CLIENT_ID_CHARACTERS_MAX] if client_id else ""


class Dispatcher:
    """Answers requests of one node. Owner: the event loop's thread."""

    def __init__(self, context: ServerContext, telemetry: Telemetry) -> None:
        self._context = context
        self._telemetry = telemetry
        self._handlers = make_handlers()
        self.error_total = 0
        """Answers that were UNKNOWN_SERVER_ERROR, each with a log line."""
        self.turns = context.turns
        self.entries = EntryBudget(context.config.inflight.entries_max, telemetry.server)
        """Of all requests under way, whoever answers them."""

    def respond(
        self, header: RequestHeader, buffer: memoryview, end: int, session: Session
    ) -> bytes | Coroutine[Any, Any, bytes]:
        """Answer the request in `buffer[:end]` with a whole frame, now or when it is awaited.

        The buffer is not looked at after this call. Raises ProtocolError, to close the connection,
        for bytes that are no request and for what is not served.
        """
        if not apis.is_supported(header.api_key, header.api_version):
            return self._respond_unsupported(header)
        api_key = ApiKey(header.api_key)
        if end - header.body_position >= LARGE_BYTES:
            body_bytes = bytes(buffer[header.body_position : end])
            return self._respond_to_large(header, memoryview(body_bytes), session)
        body = messages.parse_request(
            api_key, header.api_version, buffer, header.body_position, end
        )
        request = Request(
            api_key=api_key,
            version=header.api_version,
            body=body,
            session=session,
            client_id=_shortened(header.client_id),
        )
        answer = self._start(request)
        if isinstance(answer, Awaitable):
            return self._respond_later(request, answer, header.correlation_id)
        return self.turns.begin(self._encode(request, answer, header.correlation_id))

    async def handle(
        self, api_key: ApiKey, version: int, body: Entity, session: Session = NOBODY
    ) -> Entity:
        """Answer a decoded request with an entity of the same version."""
        request = Request(api_key=api_key, version=version, body=body, session=session)
        answer = self._start(request)
        if isinstance(answer, Awaitable):
            answer = await answer
        if isinstance(answer, EncodedBody):
            return messages.parse_response_body(api_key, version, memoryview(answer.body))
        return response_builder.build_response(api_key, version, answer)

    def _start(self, request: Request) -> Answer | Coroutine[Any, Any, Answer]:
        handler = self._handlers[request.api_key]
        try:
            answer = handler.answer(self._context, request)
            if isinstance(answer, Generator):
                answer = self.turns.begin(answer)
        except Exception as error:  # noqa: BLE001 - the one place
            return handler.refuse(request, self._as_wire_error(request, error))
        if isinstance(answer, Awaitable):
            return self._finish(handler, request, answer)
        return answer

    async def _finish(
        self, handler: Handler, request: Request, answer: Awaitable[Answer]
    ) -> Answer:
        try:
            return await answer
        except Exception as error:  # noqa: BLE001 - the one place
            return handler.refuse(request, self._as_wire_error(request, error))

    def _as_wire_error(self, request: Request, error: Exception) -> WireError:
        """Return what the client is told; log once what is not a refusal."""
        if isinstance(error, WireError):
            log.debug(
                "Refused request api=%s version=%d error=%s message=%s peer=%s client_id=%s",
                request.api_key.name,
                request.version,
                error.name,
                error,
                request.session.address,
                request.client_id,
            )
            return error
        self.error_total += 1
        log.error(
            "Failed to handle a request api=%s version=%d error=%r peer=%s client_id=%s",
            request.api_key.name,
            request.version,
            error,
            request.session.address,
            request.client_id,
            exc_info=error if log.isEnabledFor(logging.DEBUG) else None,
        )
        return UnknownServerError("The server failed unexpectedly; its log says how")

    async def _respond_later(
        self, request: Request, answer: Awaitable[Answer], correlation_id: int
    ) -> bytes:
        encoding = self._encode(request, await answer, correlation_id)
        return await self.turns.finish(encoding)

    async def _respond_to_large(
        self, header: RequestHeader, body: memoryview, session: Session
    ) -> bytes:
        api_key = ApiKey(header.api_key)
        turns = self.turns
        parsing = messages.parse_request_in_pieces(api_key, header.api_version, body, 0)
        request = Request(
            api_key=api_key,
            version=header.api_version,
            body=await turns.finish(parsing),
            session=session,
            client_id=_shortened(header.client_id),
        )
        await turns.rest()
        answer = self._start(request)
        if isinstance(answer, Awaitable):
            answer = await answer
        return await turns.finish(self._encode(request, answer, header.correlation_id))

    def _encode(
        self, request: Request, answer: Answer, correlation_id: int
    ) -> Generator[None, None, bytes]:
        """Return the frame of an answer; yields behind each of its entries."""
        yield from self._count_errors(request.api_key, answer)
        try:
            return (yield from _encoded(request.api_key, request.version, answer, correlation_id))
        except Exception as error:  # noqa: BLE001 - the one place
            refusal = self._as_wire_error(request, error)
        fields = self._handlers[request.api_key].refuse(request, refusal)
        yield from self._count_errors(request.api_key, fields)
        return (yield from _encoded(request.api_key, request.version, fields, correlation_id))

    def _count_errors(self, api_key: ApiKey, answer: Answer) -> Generator[None, None, None]:
        if isinstance(answer, EncodedBody):
            return  # Metadata, whose missing topics are no errors of ours
        yield from _tell_errors(answer, self._telemetry.api(api_key.name).on_error)

    def _respond_unsupported(self, header: RequestHeader) -> bytes:
        """Tell a client that asks ApiVersions in an unknown version what there is (KIP-511)."""
        if header.api_key != ApiKey.API_VERSIONS:
            raise ProtocolError(
                f"request type {header.api_key} version {header.api_version} is not served"
            )
        # Version 0 of the response is what every client reads.
        request = Request(api_key=ApiKey.API_VERSIONS, version=0, body=None)
        fields = api_versions.HANDLER.refuse(request, UnsupportedVersionError())
        entity = response_builder.build_response(ApiKey.API_VERSIONS, 0, fields)
        return messages.encode_response(entity, header.correlation_id)


def _tell_errors(
    fields: Mapping[str, Any], tell: Callable[[str], None]
) -> Generator[None, None, None]:
    """Tell the names of all errors in a response, at whatever depth; yields behind each entry."""
    for name, value in fields.items():
        if name == "error_code":
            if value != NONE:
                tell(error_for(value).name)
        elif isinstance(value, dict):
            yield from _tell_errors(value, tell)
        elif isinstance(value, list | tuple) and value and isinstance(value[0], dict):
            for each in value:
                yield from _tell_errors(each, tell)
                yield


def _encoded(
    api_key: ApiKey, version: int, answer: Answer, correlation_id: int
) -> Generator[None, None, bytes]:
    if isinstance(answer, EncodedBody):
        return frame.encode_response(api_key, version, correlation_id, answer.body)
    body = yield from response_builder.response_builder(api_key, version).encode_in_pieces(answer)
    return frame.encode_response(api_key, version, correlation_id, body)
