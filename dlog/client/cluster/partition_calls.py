"""Calls on partitions of one node: produce, fetch, list offsets, delete records.

Thin: one request each, no retry, no batching. The caller has found the leader
(`dlog.client.cluster.cluster`); the producer and the consumer are built on these.
"""

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from dlog.checksum import Buffer
from dlog.client.cluster.node import NodeClient, raise_for
from dlog.client.views import FetchedView, ProducedView
from dlog.errors import NONE, ProtocolError, WireError, error_for
from dlog.wire import fetch_client, produce_client
from dlog.wire.apis import ApiKey
from dlog.wire.fetch import FetchRequest

ACKS_NONE = 0
ACKS_LEADER = 1
ACKS_ALL = -1
ACKS_BY_NAME: Mapping[str, int] = {"none": ACKS_NONE, "leader": ACKS_LEADER, "all": ACKS_ALL}
ACK_DEFAULT = "ack.default"

_TOPIC = 2  # a resource of DescribeConfigs

CONSUMER = -1
OBSERVER = -2
"""Asks where logs end, not how far consumers may read them: Kafka's "debugging consumer"."""
FETCH_BYTES_MAX = 50 * 1024 * 1024
# An answer may come this much later than the node was asked to wait.
ANSWER_SLACK_S = 5.0


async def produce(
    node: NodeClient,
    topic: str,
    partition: int,
    records: Buffer,
    *,
    acks: int | None = None,
    timeout_ms: int = 30_000,
) -> ProducedView | None:
    """Append a record set (whole batches); None when `acks` is 0, for nothing is answered then.

    Without `acks` the topic's `ack.default` counts, which costs a request of its own.
    """
    if acks is None:
        acks = await ack_default(node, topic)
    version = node.version_of(ApiKey.PRODUCE)
    client_id = node.connection.options.client_id

    def encode(correlation_id: int) -> bytes:
        return produce_client.encode_request(
            version, correlation_id, client_id, acks, timeout_ms, [(topic, [(partition, records)])]
        )

    timeout_s = timeout_ms / 1000 + ANSWER_SLACK_S
    if acks == ACKS_NONE:
        await node.connection.send(encode, timeout_s)
        return None
    frame, position = await node.exchange(ApiKey.PRODUCE, version, encode, timeout_s)
    response = produce_client.parse_response(frame, position, len(frame), version)
    for _, partitions in response.topics:
        for index, code, base_offset, append_time_ms, log_start_offset, message in partitions:
            if index == partition:
                raise_for(code, message)
                return ProducedView(
                    base_offset=base_offset,
                    log_append_time_ms=append_time_ms,
                    log_start_offset=log_start_offset,
                )
    raise ProtocolError(f"{node.address} answered a produce without its partition")


async def ack_default(node: NodeClient, topic: str) -> int:
    """Return the acks that the topic wants where a caller does not say: its `ack.default`.

    ACKS_ALL where the node does not know such a config, as Apache Kafka does not.
    """

    def build(module: Any) -> Any:
        wanted = module.DescribeConfigsResource(
            resource_type=_TOPIC, resource_name=topic, configuration_keys=(ACK_DEFAULT,)
        )
        return module.DescribeConfigsRequest(
            resources=(wanted,), include_synonyms=False, include_documentation=False
        )

    response = await node.call(ApiKey.DESCRIBE_CONFIGS, build)
    for result in response.results:
        raise_for(int(result.error_code), result.error_message)
        for each in result.configs:
            if each.name == ACK_DEFAULT:
                return ACKS_BY_NAME.get(str(each.value), ACKS_ALL)
    return ACKS_ALL


async def fetch(
    node: NodeClient,
    topic: str,
    partition: int,
    offset: int,
    *,
    max_wait_ms: int = 500,
    min_bytes: int = 1,
    max_bytes: int = FETCH_BYTES_MAX,
    partition_max_bytes: int = 1024 * 1024,
    leader_epoch: int = -1,
    replica_id: int = CONSUMER,
) -> FetchedView:
    """Read batches from `offset` on; waits on the node up to `max_wait_ms` for `min_bytes`.

    With OBSERVER as `replica_id` any replica answers, up to the high watermark that it knows.
    """
    version = node.version_of(ApiKey.FETCH)
    wanted = (partition, leader_epoch, offset, -1, -1, partition_max_bytes)
    request = FetchRequest(
        replica_id=replica_id,
        max_wait_ms=max_wait_ms,
        min_bytes=min_bytes,
        max_bytes=max_bytes,
        isolation_level=0,
        session_id=0,
        session_epoch=-1,
        topics=[(topic, [wanted])],
        forgotten=[],
        rack_id="",
    )
    client_id = node.connection.options.client_id
    frame, position = await node.exchange(
        ApiKey.FETCH,
        version,
        lambda cid: fetch_client.encode_request(version, cid, client_id, request),
        max_wait_ms / 1000 + ANSWER_SLACK_S,
    )
    response = fetch_client.parse_response(frame, position, len(frame), version)
    raise_for(response.error_code)
    for _, partitions in response.topics:
        for fetched, start in partitions:
            if fetched.partition == partition:
                raise_for(fetched.error_code)
                return FetchedView(
                    high_watermark=fetched.high_watermark,
                    log_start_offset=fetched.log_start_offset,
                    records=frame[start : start + max(0, fetched.records_bytes)],
                )
    raise ProtocolError(f"{node.address} answered a fetch without its partition")


async def list_offsets(
    node: NodeClient, topic: str, timestamps_ms: Mapping[int, int]
) -> dict[int, tuple[int, int]]:
    """Return partition -> (offset, timestamp) for partition -> timestamp (EARLIEST, LATEST, ...).

    (-1, -1) where no record is that young. Raises the first error of a partition.
    """
    found: dict[int, tuple[int, int]] = {}
    for partition, each in (await try_list_offsets(node, topic, timestamps_ms)).items():
        if isinstance(each, WireError):
            raise each
        found[partition] = each
    return found


async def try_list_offsets(
    node: NodeClient, topic: str, timestamps_ms: Mapping[int, int]
) -> dict[int, tuple[int, int] | WireError]:
    """Do what `list_offsets` does, but give the error of a partition in its place."""

    def build(module: Any) -> Any:
        partitions = tuple(
            module.ListOffsetsPartition(partition_index=partition, timestamp=timestamp_ms)
            for partition, timestamp_ms in timestamps_ms.items()
        )
        return module.ListOffsetsRequest(
            replica_id=CONSUMER,
            isolation_level=0,
            topics=(module.ListOffsetsTopic(name=topic, partitions=partitions),),
        )

    response = await node.call(ApiKey.LIST_OFFSETS, build)
    found: dict[int, tuple[int, int] | WireError] = {}
    for answered in response.topics:
        for each in answered.partitions:
            code = int(each.error_code)
            found[int(each.partition_index)] = (
                error_for(code, f"{topic}-{each.partition_index}")
                if code != NONE
                else (int(each.offset), int(each.timestamp))
            )
    return found


async def delete_records(
    node: NodeClient, topic: str, before: Mapping[int, int], timeout_ms: int = 30_000
) -> dict[int, int]:
    """Trim partitions to offsets (-1: the high watermark); return the new log start offsets."""

    def build(module: Any) -> Any:
        partitions = tuple(
            module.DeleteRecordsPartition(partition_index=partition, offset=offset)
            for partition, offset in before.items()
        )
        return module.DeleteRecordsRequest(
            topics=(module.DeleteRecordsTopic(name=topic, partitions=partitions),),
            timeout=timedelta(milliseconds=timeout_ms),
        )

    response = await node.call(ApiKey.DELETE_RECORDS, build, timeout_ms / 1000 + ANSWER_SLACK_S)
    found: dict[int, int] = {}
    for answered in response.topics:
        for each in answered.partitions:
            raise_for(int(each.error_code), f"{topic}-{each.partition_index}")
            found[int(each.partition_index)] = int(each.low_watermark)
    return found
