"""Golden bytes of heartbeats and probes (docs/formats/heartbeat.md), and bytes that are none."""

from collections.abc import Callable
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlog.errors import ProtocolError
from dlog.types import NodeId
from dlog.wire.apis import ApiKey, advertised, is_supported
from dlog.wire.frame import RequestHeader, parse_request_header
from dlogd.internal import messages
from dlogd.internal.beat import Beat
from dlogd.internal.messages import Heartbeat, HeartbeatAnswer, Probe, ProbeAnswer
from dlogd.internal.node_channel import Seals
from tests.golden.documents import examples

HEARTBEAT, HEARTBEAT_ANSWER, PROBE, PROBE_ANSWER, *_HELLOS = examples("heartbeat.md")
HELLO, HELLO_ANSWER, HELLO_REFUSAL = _HELLOS

BEAT = Heartbeat(
    cluster_id="c",
    sequence=5,
    beat=Beat(node_id=NodeId(2), node_epoch=7, image_version=42, wants_shutdown=True),
    failed_directories=(UUID("00112233-4455-6677-8899-aabbccddeeff"),),
)
ANSWER = HeartbeatAnswer(
    error_code=0,
    controller_epoch=3,
    node_epoch=7,
    sequence=5,
    lease_ms=3_000,
    image_version=43,
    should_shut_down=True,
)
ASKED = Probe(cluster_id="c", node_id=NodeId(1), controller_epoch=3)
ANSWERED = ProbeAnswer(error_code=0, node_id=NodeId(2), node_epoch=7)


def header_of(frame: bytes) -> RequestHeader:
    return parse_request_header(memoryview(frame), 4, len(frame))


def test_heartbeat() -> None:
    assert messages.encode_heartbeat(BEAT, 9) == HEARTBEAT
    assert messages.encode_heartbeat_answer(ANSWER, 9) == HEARTBEAT_ANSWER
    assert messages.decode_heartbeat_answer(memoryview(HEARTBEAT_ANSWER)[4:]) == ANSWER
    header = header_of(HEARTBEAT)
    assert (header.api_key, header.api_version, header.client_id) == (20_001, 0, "dlogd")
    # A later version's fields behind ours are passed over.
    longer = memoryview(HEARTBEAT + b"more")
    for view in (memoryview(HEARTBEAT), longer):
        assert messages.decode_heartbeat(view, header.body_position, len(view)) == BEAT


def test_probe() -> None:
    assert messages.encode_probe(ASKED, 9) == PROBE
    assert messages.encode_probe_answer(ANSWERED, 9) == PROBE_ANSWER
    assert messages.decode_probe_answer(memoryview(PROBE_ANSWER)[4:]) == ANSWERED
    header = header_of(PROBE)
    assert header.api_key == 20_002
    view = memoryview(PROBE)
    assert messages.decode_probe(view, header.body_position, len(view)) == ASKED


def test_hello() -> None:
    nonce = bytes(range(32))
    assert messages.encode_hello("c", nonce, 9) == HELLO
    assert messages.encode_hello_answer(nonce, 9) == HELLO_ANSWER
    view = memoryview(HELLO)
    assert messages.decode_hello(view, header_of(HELLO).body_position, len(view)) == "c"
    assert messages.decode_hello_answer(memoryview(HELLO_ANSWER)[4:]) == 0
    with pytest.raises(ProtocolError):
        messages.decode_hello_answer(memoryview(HELLO_ANSWER)[4:-1])
    assert messages.encode_hello_refusal(104, 9) == HELLO_REFUSAL
    assert messages.decode_hello_answer(memoryview(HELLO_REFUSAL)[4:]) == 104
    for size in range(len(HELLO)):
        with pytest.raises(ProtocolError):
            messages.decode_hello(view, header_of(HELLO).body_position, size)


def test_sealed_frames() -> None:
    secret = b"a secret of some length"
    here = Seals(secret, HELLO[4:], HELLO_ANSWER[4:], dialled=True)
    there = Seals(secret, HELLO[4:], HELLO_ANSWER[4:], dialled=False)
    for _ in range(2):
        sealed = here.seal(HEARTBEAT)
        assert int.from_bytes(sealed[:4], "big") == len(sealed) - 4 == len(HEARTBEAT) - 4 + 16
        assert there.unseal(memoryview(sealed)[4:]) == HEARTBEAT[4:]
    with pytest.raises(ProtocolError):
        there.unseal(memoryview(sealed)[4:])  # once more


def test_no_client_is_told_of_them_or_served() -> None:
    keys = {int(key) for key in ApiKey} | {key for key, _, _ in advertised()}
    for key in (messages.HELLO, messages.HEARTBEAT, messages.PROBE):
        assert key not in keys
        assert not is_supported(key, messages.VERSION)


DECODERS: list[Callable[[memoryview], object]] = [
    lambda view: messages.decode_heartbeat(view, 0, len(view)),
    lambda view: messages.decode_probe(view, 0, len(view)),
    messages.decode_heartbeat_answer,
    messages.decode_probe_answer,
]


@given(data=st.binary(max_size=120))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    for decode in DECODERS:
        try:
            decode(memoryview(data))
        except ProtocolError:
            pass


def test_every_shortened_message_is_refused() -> None:
    for frame, skipped, decode in (
        (HEARTBEAT, header_of(HEARTBEAT).body_position, DECODERS[0]),
        (PROBE, header_of(PROBE).body_position, DECODERS[1]),
        (HEARTBEAT_ANSWER, 4, DECODERS[2]),
        (PROBE_ANSWER, 4, DECODERS[3]),
    ):
        body = memoryview(frame)[skipped:]
        decode(body)
        for size in range(len(body)):
            with pytest.raises(ProtocolError):
                decode(body[:size])


def test_a_lease_of_less_than_nothing_is_refused() -> None:
    wrong = messages.encode_heartbeat_answer(HeartbeatAnswer(error_code=0, lease_ms=-1), 1)
    with pytest.raises(ProtocolError):
        messages.decode_heartbeat_answer(memoryview(wrong)[4:])
