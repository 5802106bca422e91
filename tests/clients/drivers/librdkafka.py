"""The administrative calls of any librdkafka.so.1, by ctypes.

For versions that no present Python package carries. Holds only what `kcat` cannot do.
"""

import ctypes
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from tests.clients.drivers.driver import RefusedError

CALL_MS = 20_000
PRODUCER = 0
TOPIC_RESOURCE = 2
POINTER = ctypes.c_void_p
TEXT = ctypes.c_char_p
INT = ctypes.c_int
LONG = ctypes.c_int64
SIZE = ctypes.c_size_t
# Functions whose result is not an int, or whose arguments are not pointers and ints.
RETURNS_POINTER = (
    *("conf_new", "new", "queue_new", "queue_poll", "NewTopic_new", "DeleteTopic_new"),
    *("NewPartitions_new", "ConfigResource_new", "topic_partition_list_new", "DeleteRecords_new"),
    *("event_CreateTopics_result", "event_DeleteTopics_result", "event_CreatePartitions_result"),
    *("event_DescribeConfigs_result", "event_AlterConfigs_result", "event_DeleteRecords_result"),
    *("CreateTopics_result_topics", "DeleteTopics_result_topics"),
    *("CreatePartitions_result_topics", "DescribeConfigs_result_resources"),
    *("AlterConfigs_result_resources", "DeleteRecords_result_offsets", "ConfigResource_configs"),
    *("topic_partition_list_add", "clusterid"),
)
RETURNS_TEXT = (
    *("event_error_string", "topic_result_error_string", "ConfigResource_error_string"),
    *("ConfigEntry_name", "ConfigEntry_value", "err2str", "version_str"),
)


class _Partition(ctypes.Structure):
    """rd_kafka_topic_partition_t."""

    _fields_ = (
        ("topic", TEXT),
        ("partition", ctypes.c_int32),
        ("offset", LONG),
        ("metadata", POINTER),
        ("metadata_size", SIZE),
        ("opaque", POINTER),
        ("error", INT),
        ("private", POINTER),
    )


class _Partitions(ctypes.Structure):
    """rd_kafka_topic_partition_list_t."""

    _fields_ = (("count", INT), ("size", INT), ("elements", ctypes.POINTER(_Partition)))


class Librdkafka:
    """One client handle of the library at `path` (or of the system's, by its bare name)."""

    def __init__(self, path: str, bootstrap: str) -> None:
        self._library = ctypes.CDLL(path)
        for name in RETURNS_POINTER:
            getattr(self._library, f"rd_kafka_{name}").restype = POINTER
        for name in RETURNS_TEXT:
            getattr(self._library, f"rd_kafka_{name}").restype = TEXT
        conf = POINTER(self._("conf_new"))
        self._filled("conf_set", conf, b"bootstrap.servers", bootstrap.encode())
        self._handle = POINTER(self._filled("new", PRODUCER, conf))
        self._queue = POINTER(self._("queue_new", self._handle))

    @property
    def version(self) -> str:
        """The version that the library says it is."""
        return str(self._("version_str").decode())

    def _(self, name: str, *arguments: Any) -> Any:
        return getattr(self._library, f"rd_kafka_{name}")(*arguments)

    def _filled(self, name: str, *arguments: Any) -> Any:
        """Call a function that takes an error buffer last."""
        error = ctypes.create_string_buffer(512)
        result = self._(name, *arguments, error, SIZE(512))
        if error.value:
            # What the library refuses by itself: its own "invalid argument".
            raise RefusedError(-186, error.value.decode())
        return result

    @contextmanager
    def _asked(self, call: str, thing: Any) -> Iterator[POINTER]:
        """Run an admin call with one argument; yield its result, alive inside the block."""
        things = (POINTER * 1)(thing)
        self._(call, self._handle, things, SIZE(1), None, self._queue)
        event = POINTER(self._("queue_poll", self._queue, CALL_MS))
        assert event, f"{call} was not answered"
        try:
            code = self._("event_error", event)
            if code:
                raise RefusedError(code, self._("event_error_string", event).decode())
            yield POINTER(self._(f"event_{call}_result", event))
        finally:
            self._("event_destroy", event)

    def _items(self, function: str, owner: Any) -> list[Any]:
        count = SIZE()
        array = self._(function, owner, ctypes.byref(count))
        if not count.value:
            return []
        items = ctypes.cast(array, ctypes.POINTER(POINTER))
        return [POINTER(items[index]) for index in range(count.value)]

    def _topic_call(self, call: str, thing: Any) -> None:
        with self._asked(call, thing) as result:
            for item in self._items(f"{call}_result_topics", result):
                code = self._("topic_result_error", item)
                if code:
                    text = self._("topic_result_error_string", item) or b""
                    raise RefusedError(code, text.decode())

    def create_topic(self, topic: str, partitions: int, configs: Mapping[str, str]) -> None:
        """CreateTopics."""
        new = POINTER(self._filled("NewTopic_new", topic.encode(), partitions, 1))
        for key, value in configs.items():
            self._("NewTopic_set_config", new, key.encode(), value.encode())
        try:
            self._topic_call("CreateTopics", new)
        finally:
            self._("NewTopic_destroy", new)

    def delete_topic(self, topic: str) -> None:
        """DeleteTopics."""
        old = POINTER(self._("DeleteTopic_new", topic.encode()))
        try:
            self._topic_call("DeleteTopics", old)
        finally:
            self._("DeleteTopic_destroy", old)

    def create_partitions(self, topic: str, partitions: int) -> None:
        """CreatePartitions."""
        new = POINTER(self._filled("NewPartitions_new", topic.encode(), SIZE(partitions)))
        try:
            self._topic_call("CreatePartitions", new)
        finally:
            self._("NewPartitions_destroy", new)

    def _checked_resource(self, resource: POINTER) -> POINTER:
        code = self._("ConfigResource_error", resource)
        if code:
            text = self._("ConfigResource_error_string", resource) or b""
            raise RefusedError(code, text.decode())
        return resource

    def describe_configs(self, topic: str) -> dict[str, str | None]:
        """DescribeConfigs."""
        resource = POINTER(self._("ConfigResource_new", TOPIC_RESOURCE, topic.encode()))
        found: dict[str, str | None] = {}
        try:
            with self._asked("DescribeConfigs", resource) as result:
                (answer,) = self._items("DescribeConfigs_result_resources", result)
                for entry in self._items("ConfigResource_configs", self._checked_resource(answer)):
                    value = self._("ConfigEntry_value", entry)
                    name = self._("ConfigEntry_name", entry).decode()
                    found[name] = None if value is None else value.decode()
        finally:
            self._("ConfigResource_destroy", resource)
        return found

    def alter_configs(self, topic: str, configs: Mapping[str, str | None]) -> None:
        """AlterConfigs: replaces all overrides of the topic."""
        resource = POINTER(self._("ConfigResource_new", TOPIC_RESOURCE, topic.encode()))
        for key, value in configs.items():
            if value is not None:
                self._("ConfigResource_set_config", resource, key.encode(), value.encode())
        try:
            with self._asked("AlterConfigs", resource) as result:
                for answer in self._items("AlterConfigs_result_resources", result):
                    self._checked_resource(answer)
        finally:
            self._("ConfigResource_destroy", resource)

    @contextmanager
    def _partition_list(self, topic: str, partition: int, offset: int) -> Iterator[_Partitions]:
        address = POINTER(self._("topic_partition_list_new", 1))
        self._("topic_partition_list_add", address, topic.encode(), partition)
        partitions = ctypes.cast(address, ctypes.POINTER(_Partitions)).contents
        partitions.elements[0].offset = offset
        try:
            yield partitions
        finally:
            self._("topic_partition_list_destroy", address)

    def delete_records(self, topic: str, partition: int, offset: int) -> int:
        """DeleteRecords; return the low watermark."""
        with self._partition_list(topic, partition, offset) as wanted:
            request = POINTER(self._("DeleteRecords_new", ctypes.byref(wanted)))
            try:
                with self._asked("DeleteRecords", request) as result:
                    address = self._("DeleteRecords_result_offsets", result)
                    answers = ctypes.cast(address, ctypes.POINTER(_Partitions)).contents
                    answer = answers.elements[0]
                    if answer.error:
                        raise RefusedError(answer.error)
                    return int(answer.offset)
            finally:
                self._("DeleteRecords_destroy", request)

    def watermarks(self, topic: str, partition: int) -> tuple[int, int]:
        """Return the earliest and the latest offset (ListOffsets)."""
        low, high = LONG(), LONG()
        places = (ctypes.byref(low), ctypes.byref(high))
        code = self._(
            "query_watermark_offsets", self._handle, topic.encode(), partition, *places, CALL_MS
        )
        if code:
            raise RefusedError(code)
        return low.value, high.value

    def offset_for_time(self, topic: str, partition: int, timestamp_ms: int) -> int:
        """Return the first offset at or after a timestamp, -1 when there is none."""
        with self._partition_list(topic, partition, timestamp_ms) as wanted:
            code = self._("offsets_for_times", self._handle, ctypes.byref(wanted), CALL_MS)
            answer = wanted.elements[0]
            if code or answer.error:
                raise RefusedError(code or answer.error)
            return max(-1, int(answer.offset))

    def cluster(self) -> tuple[str, int]:
        """Return the cluster's id and its controller."""
        address = self._("clusterid", self._handle, CALL_MS)
        assert address, "no cluster id"
        name = ctypes.cast(address, TEXT).value or b""
        return name.decode(), int(self._("controllerid", self._handle, CALL_MS))

    def close(self) -> None:
        """Destroy the handle."""
        self._("queue_destroy", self._queue)
        self._("destroy", self._handle)
