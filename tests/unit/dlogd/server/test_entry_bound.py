"""How many entries a request is counted with before it is read, against what is read."""

import pytest

from dlog.wire.apis import ApiKey, is_flexible
from dlog.wire.decoders import decoder
from dlog.wire.messages import request_type
from dlog.wire.reader import ENTRIES_MAX, Reader
from dlogd.server.entry_budget import entries_of

COUNT = 20_000
COUNTED = COUNT.to_bytes(4, "big")
COMPACT = bytes(((COUNT + 1) & 0x7F | 0x80, (COUNT + 1) >> 7 & 0x7F | 0x80, (COUNT + 1) >> 14))
# The smallest entries there are: names without a letter.
BODIES = {
    (ApiKey.METADATA, 1): COUNTED + b"\0\0" * COUNT,
    (ApiKey.METADATA, 9): COMPACT + b"\1\0" * COUNT + bytes(4),
    (ApiKey.DELETE_TOPICS, 1): COUNTED + b"\0\0" * COUNT + bytes(4),
    (ApiKey.DESCRIBE_CONFIGS, 1): b"\0\0\0\1\2\0\1t" + COUNTED + b"\0\0" * COUNT + b"\0",
    (ApiKey.DESCRIBE_CONFIGS, 4): b"\2\2\2t" + COMPACT + b"\1" * COUNT + bytes(4),
}


@pytest.mark.parametrize("message", BODIES, ids=lambda message: f"{message[0].name}-{message[1]}")
def test_no_request_has_more_entries_than_it_is_counted_with(message: tuple[ApiKey, int]) -> None:
    body = BODIES[message]
    reader = Reader(memoryview(body), 0, len(body), flexible=is_flexible(*message))
    decoder(request_type(*message))(reader)
    assert reader.position == len(body)
    read = ENTRIES_MAX - reader.entries_left
    assert COUNT <= read <= entries_of(len(body))
