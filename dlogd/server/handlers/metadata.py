"""Metadata: nodes, and the partitions and leaders of topics.

Encoding thousands of partitions takes tens of milliseconds, and every client asks again and again:
the bytes of each topic's entry are kept for as long as the topic and the nodes stay the same. A
whole response is then its head, the kept entries, its tail.
"""

from collections.abc import Coroutine, Generator, Iterable, Mapping
from typing import Any

from dlog.errors import (
    InvalidRequestError,
    RequestTimedOutError,
    TopicAlreadyExistsError,
    UnknownTopicIdError,
    WireError,
)
from dlog.types import ZERO_TOPIC_ID, NodeId, TopicId
from dlog.wire.apis import ApiKey, is_flexible
from dlogd.metadata.commands.codec import NewTopic
from dlogd.metadata.state.image import ClusterImage, NodeRegistration, TopicImage
from dlogd.server import response_builder
from dlogd.server.context import ServerContext
from dlogd.server.handlers import topic_creation, topology
from dlogd.server.request import Answer, EncodedBody, Handler, Pieces, Request
from dlogd.server.request_turns import PIECE_ENTRIES, at_once
from dlogd.server.response_builder import Fields

TOPIC_IDS_SINCE_VERSION = 12
AUTO_CREATE_TIMEOUT_MS = 2_000
"""Clients wait for the topics that exist, too; they ask again for those that do not yet."""


class TopicEntries:
    """Encoded entries of topics in Metadata responses, per version. Owner: one dispatcher.

    Invariant: an entry is only used for the very topic image and nodes that it was made of, and
    while the same partitions are out of service.
    """

    def __init__(self) -> None:
        self._nodes: Mapping[NodeId, NodeRegistration] | None = None
        self._offline: frozenset[tuple[TopicId, int]] | None = None
        self._kept: dict[tuple[int, bool], dict[str, tuple[TopicImage, bytes]]] = {}

    def entry(
        self, seen: topology.Topology, topic: TopicImage, version: int, with_operations: bool
    ) -> Generator[None, None, bytes]:
        """Return the encoded entry of a topic of the image; yields behind each partition."""
        image = seen.image
        if self._nodes is not image.nodes or self._offline is not seen.offline:
            self._nodes, self._offline = image.nodes, seen.offline
            self._kept.clear()
        kept = self._kept.setdefault((version, with_operations), {})
        found = kept.get(topic.name)
        if found is not None and found[0] is topic:
            return found[1]
        if len(kept) > len(image.topics):
            self._drop_deleted(kept, image)
        fields = yield from _topic_fields(seen, topic, version, with_operations)
        encoded = yield from _encode_topic(fields, version)
        if self._nodes is image.nodes and self._offline is seen.offline:
            kept[topic.name] = (topic, encoded)
        return encoded

    def _drop_deleted(self, kept: dict[str, tuple[TopicImage, bytes]], image: ClusterImage) -> None:
        for name in [name for name in kept if name not in image.topics]:
            del kept[name]


def _encode_topic(fields: Fields, version: int) -> Generator[None, None, bytes]:
    builder = response_builder.response_builder(ApiKey.METADATA, version).nested["topics"]
    return bytes((yield from builder.encode_in_pieces(fields)))


def _encode_missing(error: WireError, name: str | None, topic_id: TopicId, version: int) -> bytes:
    builder = response_builder.response_builder(ApiKey.METADATA, version).nested["topics"]
    return builder.encode(_missing_fields(error, name, topic_id))


def _topic_fields(
    seen: topology.Topology, topic: TopicImage, version: int, with_operations: bool
) -> Generator[None, None, Fields]:
    partitions: list[Fields] = []
    for index, partition in enumerate(topic.partitions):
        fields = topology.partition_fields(seen, topic, index)
        partitions.append(
            topology.alive_only(seen.image, fields, partition) if version == 0 else fields
        )
        yield
    return {
        "error_code": 0,
        "name": topic.name,
        "topic_id": topic.topic_id,
        "is_internal": topic.name in topology.INTERNAL_TOPICS,
        "partitions": partitions,
        "topic_authorized_operations": _operations(with_operations, topology.TOPIC_OPERATIONS),
    }


def _operations(asked: bool, operations: int) -> int:
    return operations if asked else topology.OPERATIONS_UNKNOWN


def _missing_fields(error: WireError, name: str | None, topic_id: TopicId) -> Fields:
    return {
        "error_code": error.code,
        "name": name,
        "topic_id": topic_id,
        "topic_authorized_operations": topology.OPERATIONS_UNKNOWN,
    }


class MetadataHandler:
    """Answers Metadata requests; keeps encoded entries. Owner: one dispatcher."""

    def __init__(self) -> None:
        self._entries = TopicEntries()

    def answer(
        self, context: ServerContext, request: Request
    ) -> Pieces | Coroutine[Any, Any, Answer]:
        """Describe the topics asked for, creating missing ones where node and client allow it."""
        if len(request.body.topics or ()) > PIECE_ENTRIES:
            return self._answer_many(context, request)
        wanted, missing = at_once(_wanted(context.image(), request))
        return self._answer_for(context, request, wanted, missing)

    async def _answer_many(self, context: ServerContext, request: Request) -> Answer:
        wanted, missing = await context.turns.finish(_wanted(context.image(), request))
        answer = self._answer_for(context, request, wanted, missing)
        if isinstance(answer, Coroutine):
            return await answer
        return await context.turns.finish(answer)

    def _answer_for(
        self,
        context: ServerContext,
        request: Request,
        wanted: list[str | TopicId] | None,
        missing: list[str],
    ) -> Pieces | Coroutine[Any, Any, Answer]:
        if (
            missing
            and context.config.topic.auto_create
            and request.get("allow_auto_topic_creation", True)
        ):
            return self._answer_created(context, request, wanted, missing)
        settling = None if wanted == [] else context.until_settled()
        if settling is not None:
            return self._answer_settled(settling, context, request, wanted)
        return self._describe(context, request, wanted, {})

    async def _answer_created(
        self,
        context: ServerContext,
        request: Request,
        wanted: list[str | TopicId] | None,
        missing: list[str],
    ) -> Answer:
        failed = await _create(context, missing)
        return await context.turns.finish(self._describe(context, request, wanted, failed))

    async def _answer_settled(
        self,
        settling: Coroutine[Any, Any, None],
        context: ServerContext,
        request: Request,
        wanted: list[str | TopicId] | None,
    ) -> Answer:
        await settling
        return await context.turns.finish(self._describe(context, request, wanted, {}))

    def _describe(
        self,
        context: ServerContext,
        request: Request,
        wanted: list[str | TopicId] | None,
        failed_names: Mapping[str, WireError],
    ) -> Pieces:
        seen = topology.Topology(context)
        image, version = seen.image, request.version
        with_operations = request.get("include_topic_authorized_operations", False)
        failed: list[bytes] = []
        topics: Iterable[TopicImage] = image.topics.values()
        if wanted is not None:
            topics, failed = yield from _select(image, wanted, failed_names, version)
        entries: list[bytes] = []
        for topic in topics:
            entries.append((yield from self._entries.entry(seen, topic, version, with_operations)))
            yield
        entries += failed
        return _assemble(context, request, image, entries)


def _wanted(
    image: ClusterImage, request: Request
) -> Generator[None, None, tuple[list[str | TopicId] | None, list[str]]]:
    """Return the topics asked for, by name or by id, each once (None: all), and missing names.

    Yields behind each of them.
    """
    topics = request.body.topics
    if topics is None or (request.version == 0 and not topics):
        return None, []
    names: dict[str, None] = {}
    ids: dict[TopicId, None] = {}
    for topic in topics:
        yield
        topic_id = getattr(topic, "topic_id", None) or ZERO_TOPIC_ID
        if topic_id != ZERO_TOPIC_ID:
            if request.version < TOPIC_IDS_SINCE_VERSION:
                raise InvalidRequestError(
                    f"Topic IDs are not supported in requests for version {request.version}"
                )
            ids[topic_id] = None
        elif topic.name is None:
            if request.version < TOPIC_IDS_SINCE_VERSION:
                raise InvalidRequestError(
                    f"Topic name can not be null for version {request.version}"
                )
        else:
            names[topic.name] = None
    # Kafka ignores names as soon as there is one id.
    if ids:
        return list(ids), []
    missing: list[str] = []
    for name in names:
        yield
        if name not in image.topics:
            missing.append(name)
    return list(names), missing


def _select(
    image: ClusterImage,
    wanted: list[str | TopicId],
    failed_names: Mapping[str, WireError],
    version: int,
) -> Generator[None, None, tuple[list[TopicImage], list[bytes]]]:
    """Return the topics that exist, and encoded entries of those that do not."""
    topics: list[TopicImage] = []
    failed: list[bytes] = []
    for each in wanted:
        if isinstance(each, str):
            topic = image.topics.get(each)
            if topic is None:
                error = failed_names.get(each) or topology.absence(each)
                failed.append(_encode_missing(error, each, ZERO_TOPIC_ID, version))
        else:
            topic = image.topics_by_id.get(each)
            if topic is None:
                failed.append(_encode_missing(UnknownTopicIdError(), None, each, version))
        if topic is not None:
            topics.append(topic)
        yield
    return topics, failed


async def _create(context: ServerContext, names: list[str]) -> dict[str, WireError]:
    """Create topics with the node's defaults; return what was refused, by name."""
    failed: dict[str, WireError] = {}
    planner = topic_creation.Planner(context)
    planned: list[NewTopic] = []
    async for name in context.turns.each(names, topic_creation.BURST_COUNT):
        try:
            planned.append(planner.plan(topic_creation.WantedTopic(name=name)))
        except WireError as error:
            failed[name] = error.with_traceback(None)  # its frames are a kilobyte
    deadline_ms = context.deadline_ms(AUTO_CREATE_TIMEOUT_MS)
    refused = await topic_creation.create(context, planner, planned, deadline_ms)
    # Where somebody else was faster, or is slow, a later look at the image shows the topic.
    failed |= {
        name: each
        for name, each in refused.items()
        if not isinstance(each, (TopicAlreadyExistsError, RequestTimedOutError))
    }
    await context.opened([name for name in names if name not in failed], deadline_ms)
    return failed


def _assemble(
    context: ServerContext, request: Request, image: ClusterImage, entries: list[bytes]
) -> EncodedBody:
    """Put the kept entries between the head and the tail of a response without topics."""
    version = request.version
    fields = {
        "brokers": [_broker(node, request.session.listener) for node in _named(context, image)],
        "cluster_id": image.cluster_id,
        "controller_id": topology.controller_id(image, context.node_id),
        "cluster_authorized_operations": _operations(
            request.get("include_cluster_authorized_operations", False),
            topology.CLUSTER_OPERATIONS,
        ),
    }
    body = response_builder.response_builder(ApiKey.METADATA, version).encode(fields)
    flexible = is_flexible(ApiKey.METADATA, version)
    return EncodedBody(
        response_builder.splice(body, _tail_bytes(version), entries, flexible=flexible)
    )


def _tail_bytes(version: int) -> int:
    """Return how many bytes of a response follow its topics."""
    operations = 4 if 8 <= version <= 10 else 0
    error_code = 2 if version >= 13 else 0
    return operations + error_code + (1 if is_flexible(ApiKey.METADATA, version) else 0)


def _named(context: ServerContext, image: ClusterImage) -> list[NodeRegistration]:
    """Return the nodes that clients can reach, and for a moment those that they could reach."""
    now_ms, lingering = context.clock.now_ms(), context.lingering
    return [
        node
        for node_id, node in image.nodes.items()
        if topology.is_alive(image, node_id) or (node.addresses and lingering.has(node_id, now_ms))
    ]


def _broker(node: NodeRegistration, listener: str) -> Fields:
    address = topology.address_of(node, listener)
    return {
        "node_id": node.node_id,
        "host": "" if address is None else address.host,
        "port": -1 if address is None else address.port,
        "rack": node.rack,
    }


def refuse(request: Request, error: WireError) -> Fields:
    """Carry the error for each topic asked for, and at the top from version 13 on."""
    topics: list[Any] = list(request.body.topics or ())
    return {
        "error_code": error.code,
        "controller_id": -1,
        "topics": [
            _missing_fields(
                error, topic.name or "", getattr(topic, "topic_id", None) or ZERO_TOPIC_ID
            )
            for topic in topics
        ],
    }


def make_handler() -> Handler:
    """Return a handler with entries of its own."""
    return Handler(MetadataHandler().answer, refuse)
