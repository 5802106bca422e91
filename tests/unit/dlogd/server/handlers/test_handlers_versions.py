"""Every API that dispatch serves, in every version: asked and answered through bytes, once well and
once with an error for the whole request; and no handler names a field that no version has.
"""

import asyncio
import logging
from typing import Any
from uuid import UUID

import pytest

from dlog.errors import KafkaStorageError, ProtocolError
from dlog.wire import frame, messages
from dlog.wire.apis import VERSIONS, ApiKey, advertised
from dlogd.server import response_builder
from dlogd.server.context import LogDir
from dlogd.server.dispatch import make_handlers
from dlogd.server.request import Handler
from dlogd.server.session import Session
from tests.fakes.server import FakeNode, new_topic

HOT = (ApiKey.PRODUCE, ApiKey.FETCH)
SERVED = [
    (api_key, version)
    for api_key, (low, high) in VERSIONS.items()
    if api_key not in HOT
    for version in range(low, high + 1)
]

ANY_ACL = {"resource_type_filter": 1, "operation": 1, "permission_type": 1}

REQUESTS: dict[ApiKey, dict[str, Any]] = {
    ApiKey.LIST_OFFSETS: {
        "replica_id": -1,
        "isolation_level": 0,
        "timeout": 0,
        "topics": [
            {
                "name": "t",
                "partitions": [{"partition_index": 0, "timestamp": -1, "max_num_offsets": 1}],
            }
        ],
    },
    ApiKey.METADATA: {"topics": [{"name": "t"}, {"name": "absent"}]},
    ApiKey.FIND_COORDINATOR: {"key": "g", "coordinator_keys": ["g", "h"]},
    ApiKey.API_VERSIONS: {"client_software_name": "test", "client_software_version": "1.0"},
    ApiKey.CREATE_TOPICS: {"topics": [new_topic("new"), new_topic("t")], "timeout": 100},
    ApiKey.DELETE_TOPICS: {
        "topic_names": ["t", "absent"],
        "topics": [{"name": "t"}, {"topic_id": UUID(int=99)}],
        "timeout": 100,
    },
    ApiKey.DELETE_RECORDS: {
        "topics": [{"name": "t", "partitions": [{"partition_index": 0, "offset": 0}]}],
        "timeout": 100,
    },
    ApiKey.INIT_PRODUCER_ID: {
        "transactional_id": None,
        "transaction_timeout": 100,
        "producer_id": -1,
        "producer_epoch": -1,
    },
    ApiKey.OFFSET_FOR_LEADER_EPOCH: {
        "replica_id": -1,
        "topics": [
            {
                "topic": "t",
                "partitions": [{"partition": 0, "current_leader_epoch": -1, "leader_epoch": 0}],
            }
        ],
    },
    ApiKey.DESCRIBE_CONFIGS: {
        "resources": [
            {"resource_type": 2, "resource_name": "t", "configuration_keys": None},
            {"resource_type": 4, "resource_name": "1", "configuration_keys": None},
            {"resource_type": 4, "resource_name": "", "configuration_keys": ["x"]},
        ],
        "include_synonyms": True,
        "include_documentation": True,
    },
    ApiKey.ALTER_CONFIGS: {
        "resources": [
            {
                "resource_type": 2,
                "resource_name": "t",
                "configs": [{"name": "retention.ms", "value": "5"}],
            }
        ]
    },
    ApiKey.DESCRIBE_ACLS: ANY_ACL,
    ApiKey.CREATE_ACLS: {
        "creations": [
            {"resource_type": 2, "resource_name": "t", "principal": "User:x", "host": "*"}
            | {"operation": 3, "permission_type": 3}
        ]
    },
    ApiKey.DELETE_ACLS: {"filters": [ANY_ACL]},
    ApiKey.ALTER_REPLICA_LOG_DIRS: {
        "dirs": [
            {"path": "/data", "topics": [{"name": "t", "partitions": [0, 1]}]},
            {"path": "/other", "topics": [{"name": "t", "partitions": [1]}]},
        ]
    },
    ApiKey.LIST_CONFIG_RESOURCES: {"resource_types": [2, 4]},
    ApiKey.DESCRIBE_LOG_DIRS: {"topics": None},
    ApiKey.CREATE_PARTITIONS: {
        "topics": [{"name": "t", "count": 5, "assignments": None}],
        "timeout": 100,
    },
    ApiKey.INCREMENTAL_ALTER_CONFIGS: {
        "resources": [
            {
                "resource_type": 2,
                "resource_name": "t",
                "configs": [{"name": "retention.ms", "config_operation": 0, "value": "5"}],
            }
        ]
    },
    ApiKey.ELECT_LEADERS: {
        "election_type": 0,
        "topic_partitions": [
            {"topic": "t", "partitions": [0, 9]},
            {"topic": "absent", "partitions": [0]},
        ],
        "timeout": 100,
    },
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: {
        "topics": [
            {"name": "t", "partitions": [{"partition_index": 0, "replicas": [1]}]},
            {"name": "absent", "partitions": [{"partition_index": 0, "replicas": None}]},
        ],
        "timeout": 100,
    },
    ApiKey.LIST_PARTITION_REASSIGNMENTS: {"topics": None, "timeout": 100},
    ApiKey.DESCRIBE_QUORUM: {
        "topics": [{"topic_name": "__cluster_metadata", "partitions": [{"partition_index": 0}]}]
    },
    ApiKey.UNREGISTER_BROKER: {"broker_id": 9},
    ApiKey.ADD_RAFT_VOTER: {
        "cluster_id": None,
        "timeout": 100,
        "voter_id": 4,
        "voter_directory_id": UUID(int=4),
        "listeners": [{"name": "CONTROLLER", "host": "h", "port": 9093}],
    },
    ApiKey.REMOVE_RAFT_VOTER: {
        "cluster_id": None,
        "voter_id": 4,
        "voter_directory_id": UUID(int=4),
    },
    ApiKey.DESCRIBE_CLUSTER: {"include_cluster_authorized_operations": True},
    ApiKey.DESCRIBE_TOPIC_PARTITIONS: {
        "topics": [{"name": "t"}, {"name": "absent"}],
        "response_partition_limit": 1,
    },
}


def field_names() -> dict[tuple[int, str], frozenset[str]]:
    """Return the fields that each entity of each response has in any version."""
    names: dict[tuple[int, str], frozenset[str]] = {}

    def add(builder: response_builder.ResponseBuilder, entity_type: type[Any]) -> None:
        key = (int(entity_type.__api_key__), entity_type.__name__)
        names[key] = names.get(key, frozenset()) | builder.names
        for inner in builder.nested.values():
            add(inner, inner.entity_type)

    for api_key, version in SERVED:
        add(
            response_builder.response_builder(api_key, version),
            messages.response_type(api_key, version),
        )
    return names


@pytest.fixture
def strict(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make builders refuse fields that no version of the response has."""
    names = field_names()
    build = response_builder.ResponseBuilder.build

    def build_strictly(
        self: response_builder.ResponseBuilder, fields: response_builder.Fields
    ) -> Any:
        key = (int(self.entity_type.__api_key__), self.entity_type.__name__)
        if self.entity_type.__type__.name != "request" and key in names:
            unknown = [name for name in fields if name not in names[key]]
            assert not unknown, f"{self.entity_type.__name__} has no field {unknown}"
        return build(self, fields)

    monkeypatch.setattr(response_builder.ResponseBuilder, "build", build_strictly)


def node() -> FakeNode:
    made = FakeNode()
    made.log_dirs = [
        LogDir(
            path="/data",
            online=True,
            total_bytes=10,
            free_bytes=5,
            partitions=[],
        ),
        LogDir(path="/broken", online=False),
    ]
    return made


@pytest.mark.usefixtures("strict")
@pytest.mark.parametrize(("api_key", "version"), SERVED, ids=lambda value: str(value))
def test_every_version_is_answered(api_key: ApiKey, version: int) -> None:
    async def run() -> None:
        asked = node()
        await asked.create("t", 2)
        response = await asked.ask(api_key, version, **REQUESTS[api_key])
        assert isinstance(response, messages.response_type(api_key, version))
        assert asked.dispatcher.error_total == 0

    asyncio.run(run())


@pytest.mark.usefixtures("strict")
@pytest.mark.parametrize(("api_key", "version"), SERVED, ids=lambda value: str(value))
def test_an_error_of_the_whole_request_is_carried_in_every_version(
    api_key: ApiKey, version: int
) -> None:
    async def run() -> None:
        asked = node()

        def fail(*_: Any) -> Any:
            raise KafkaStorageError("the disk is gone")

        handlers = asked.dispatcher._handlers
        handlers[api_key] = Handler(fail, handlers[api_key].refuse)
        response = await asked.ask(api_key, version, **REQUESTS[api_key])
        assert "kafka_storage_error" in str(response)

    asyncio.run(run())


def test_the_table_has_what_is_advertised_and_nothing_else() -> None:
    assert sorted([*make_handlers(), *HOT]) == [key for key, _, _ in advertised()]


def test_a_bug_is_one_log_line_and_an_unknown_server_error(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def run() -> None:
        asked = node()

        async def fail(*_: Any) -> Any:
            raise KeyError("bug")

        handlers = asked.dispatcher._handlers
        key = ApiKey.DESCRIBE_CLUSTER
        handlers[key] = Handler(fail, handlers[key].refuse)
        response = await asked.ask(key, 0, **REQUESTS[key])
        assert response.error_code == -1
        assert "bug" not in response.error_message
        assert asked.dispatcher.error_total == 1

    with caplog.at_level(logging.INFO):
        asyncio.run(run())
    assert len(caplog.records) == 1
    assert caplog.records[0].exc_info is None
    assert "DESCRIBE_CLUSTER" in caplog.text


def test_an_answer_that_does_not_fit_its_fields_is_a_bug_and_still_answered() -> None:
    async def run() -> None:
        asked = node()
        handlers = asked.dispatcher._handlers
        key = ApiKey.DESCRIBE_CLUSTER
        handlers[key] = Handler(lambda *_: {"controller_id": 1 << 40}, handlers[key].refuse)
        response = await asked.ask(key, 0, **REQUESTS[key])
        assert response.error_code == -1

    asyncio.run(run())


@pytest.mark.parametrize("version", [5, 99, 32767])
def test_an_unknown_version_of_api_versions_is_told_what_there_is(version: int) -> None:
    asked = node()
    sent = memoryview(frame.encode_request_header(ApiKey.API_VERSIONS, version, 5, "new"))
    header = frame.parse_request_header(sent, 0, len(sent))
    answer = asked.dispatcher.respond(header, sent, len(sent), Session())
    assert isinstance(answer, bytes)
    response = messages.parse_response(ApiKey.API_VERSIONS, 0, memoryview(answer)[4:])
    assert response.error_code == 35
    ranges = [(r.api_key, r.min_version, r.max_version) for r in response.api_keys]
    assert ranges == advertised()


@pytest.mark.parametrize(
    ("api_key", "version"), [(11, 0), (71, 0), (3, 14), (3, -1), (-1, 0), (999, 0)]
)
def test_what_is_not_served_closes_the_connection(api_key: int, version: int) -> None:
    asked = node()
    header = frame.RequestHeader(api_key, version, 1, None, 10)
    with pytest.raises(ProtocolError, match="not served"):
        asked.dispatcher.respond(header, memoryview(b""), 0, Session())


def test_answers_that_need_not_wait_are_there_at_once() -> None:
    async def test() -> None:
        asked = node()
        for api_key in (ApiKey.API_VERSIONS, ApiKey.METADATA, ApiKey.FIND_COORDINATOR):
            entity = response_builder.build_request(api_key, 4, REQUESTS[api_key])
            sent = memoryview(messages.encode_request(entity, 1, None))[4:]
            header = frame.parse_request_header(sent, 0, len(sent))
            assert isinstance(asked.dispatcher.respond(header, sent, len(sent), Session()), bytes)

    asyncio.run(test())
