"""ListOffsets 0, byte by byte as librdkafka 1.7 sends and reads it."""

import struct
from typing import Any

from kio.schema.errors import ErrorCode

from dlog.wire import list_offsets_v0, messages
from dlog.wire.apis import ApiKey
from dlog.wire.frame import encode_request_header

VERSION = 0


def test_a_request_is_read() -> None:
    header = encode_request_header(ApiKey.LIST_OFFSETS, VERSION, 7, "rdkafka")
    body = struct.pack(">iih3siiqi", -1, 1, 3, b"top", 1, 5, -2, 1)
    view = memoryview(bytes(header) + body)
    request: Any = messages.parse_request(ApiKey.LIST_OFFSETS, VERSION, view, len(header))
    assert isinstance(request, list_offsets_v0.ListOffsetsRequest)
    (topic,) = request.topics
    (partition,) = topic.partitions
    assert (request.replica_id, topic.name) == (-1, "top")
    assert (partition.partition_index, partition.timestamp, partition.max_num_offsets) == (5, -2, 1)


def test_a_response_is_written() -> None:
    response_of: Any = messages.response_type(ApiKey.LIST_OFFSETS, VERSION)
    topic_of: Any = list_offsets_v0.ListOffsetsTopicResponse
    partition_of: Any = list_offsets_v0.ListOffsetsPartitionResponse
    none = ErrorCode.none
    refused = ErrorCode.unknown_topic_or_partition
    found = partition_of(partition_index=5, error_code=none, old_style_offsets=(42,))
    missing = partition_of(partition_index=6, error_code=refused)
    entity = response_of(topics=(topic_of(name="top", partitions=(found, missing)),))
    body = struct.pack(">ih3siihiqihi", 1, 3, b"top", 2, 5, 0, 1, 42, 6, 3, 0)
    frame = messages.encode_response(entity, 7)
    assert frame == struct.pack(">ii", len(body) + 4, 7) + body
    parsed = messages.parse_response(ApiKey.LIST_OFFSETS, VERSION, memoryview(frame)[4:])
    assert parsed == entity
