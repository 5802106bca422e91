"""The table of versions, against kio's generated schemas."""

import pytest
from kio.index import load_request_schema, load_response_schema

from dlog.wire import apis
from dlog.wire.apis import FLEXIBLE_FROM, VERSIONS, ApiKey

EVERY = [(key, v) for key, (low, high) in VERSIONS.items() for v in range(low, high + 1)]


def test_both_tables_cover_every_key() -> None:
    assert set(VERSIONS) == set(FLEXIBLE_FROM) == set(ApiKey)


@pytest.mark.parametrize("key", [ApiKey.API_VERSIONS, ApiKey.METADATA, ApiKey.FETCH])
def test_flexible_versions_are_those_of_the_schemas(key: ApiKey) -> None:
    low, high = VERSIONS[key]
    for version in range(low, high + 1):
        request = load_request_schema(key, version)
        response = load_response_schema(key, version)
        assert request.__flexible__ == apis.is_flexible(key, version)
        header = response.__header_schema__.__version__
        assert apis.has_flexible_response_header(key, version) == (header == 1)


def test_supported() -> None:
    assert apis.is_supported(ApiKey.PRODUCE, 3)
    assert not apis.is_supported(ApiKey.PRODUCE, 2)
    assert not apis.is_supported(ApiKey.PRODUCE, -1)
    assert not apis.is_supported(4321, 0)
    assert not apis.is_flexible(4321, 9)


def test_advertised_differs_from_served_for_produce_alone() -> None:
    ranges = apis.advertised()
    assert ranges[0] == (0, 0, VERSIONS[ApiKey.PRODUCE][1])
    assert ranges[1:] == [(int(k), *VERSIONS[k]) for k in sorted(VERSIONS)][1:]
