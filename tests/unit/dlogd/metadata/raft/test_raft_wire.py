"""Messages and handshake of the Raft layer: only what is known, bounded, and proven."""

from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlogd.metadata.raft import entries as wire
from dlogd.metadata.raft import handshake, messages
from dlogd.metadata.raft.entries import Item, What
from dlogd.metadata.raft.handshake import Hello, Proofs, RefusedPeerError, Seal
from dlogd.metadata.raft.voters import Voter, Voters
from dlogd.metadata.state.encoding import MalformedError
from tests.fakes.raft_handshakes import hello_of

SECRET = b"sixteen bytes or more"
VOTERS = Voters.of([Voter(node_id=1, host="a", port=1)])

MESSAGES: list[dict[str, Any]] = [
    {"type": "pre_vote", "term": 4, "last_log_index": 9, "last_log_term": 3},
    {"type": "response_vote", "term": 1 << 40},
    {
        "type": "append_entries",
        "term": 4,
        "seq": 17,
        "commit_index": 8,
        "prevLogIdx": 8,
        "prevLogTerm": 3,
        "entries": [
            (
                wire.encode_items([Item(What.COMMAND, bytes(30)), Item(What.BARRIER, b"b" * 16)]),
                9,
                3,
            ),
            (wire.encode_voters(UUID(int=5), VOTERS), 10, 4),
            (wire.NO_OP_ENTRY, 11, 4),
        ],
    },
    {
        "type": "next_node_idx",
        "term": 4,
        "seq": 17,
        "next_node_idx": 12,
        "reset": False,
        "success": True,
    },
    {"type": "voters", "voters": VOTERS},
    {"type": "snapshot", "term": 4, "index": 7, "total": 3, "position": 0, "data": b"abc"},
    {"type": "propose", "term": 4, "items": (Item(What.COMMAND, bytes(20)),)},
    {
        "type": "admin",
        "request_id": UUID(int=9),
        "operation": "add",
        "node_id": 4,
        "host": "h",
        "port": 9,
    },
]


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: str(message["type"]))
def test_a_message_comes_back_as_it_was(message: dict[str, Any]) -> None:
    data = messages.encode(message)
    assert messages.decode(data) == message
    for end in range(len(data)):
        with pytest.raises(MalformedError):
            messages.decode(data[:end])
    with pytest.raises(MalformedError):
        messages.decode(data + b"\0")


@given(st.binary(max_size=200))
def test_any_bytes_are_a_message_or_malformed(data: bytes) -> None:
    try:
        message = messages.decode(data)
    except MalformedError:
        return
    assert messages.encode(message) == data


@given(st.sampled_from(MESSAGES), st.integers(0, 400), st.integers(0, 255))
def test_a_changed_byte_is_a_message_or_malformed(
    message: dict[str, Any], place: int, value: int
) -> None:
    data = bytearray(messages.encode(message))
    data[place % len(data)] = value
    try:
        messages.decode(bytes(data))
    except MalformedError:
        pass


def test_entries_out_of_order_are_malformed() -> None:
    message = MESSAGES[2] | {"entries": [(wire.NO_OP_ENTRY, 9, 3), (wire.NO_OP_ENTRY, 11, 3)]}
    with pytest.raises(MalformedError, match="out of order"):
        messages.decode(messages.encode(message))


@given(st.binary(max_size=120))
def test_any_bytes_are_a_hello_or_malformed(data: bytes) -> None:
    for candidate in (data, handshake.encode_hello(hello_of(1, 2))[: len(data)] + data):
        try:
            handshake.decode_hello(candidate)
        except MalformedError:
            pass


@pytest.mark.parametrize(
    ("own", "other"),
    [
        (hello_of(1, 2), hello_of(2, cluster="other")),
        (hello_of(1, 2), hello_of(3)),
        (hello_of(1), hello_of(2, 3)),
        (hello_of(1), hello_of(1, 1)),
        (hello_of(1), hello_of(-4, 1)),
    ],
)
def test_who_is_not_wanted_is_refused(own: Hello, other: Hello) -> None:
    with pytest.raises(RefusedPeerError):
        handshake.expect(own, other)


def test_a_proof_holds_for_one_secret_one_side_and_one_conversation() -> None:
    one, two = handshake.encode_hello(hello_of(1, 2)), handshake.encode_hello(hello_of(2))
    proofs = Proofs(SECRET, one, two)
    proofs.check(proofs.proof(of_dialler=True), of_dialler=True)
    proofs.check(proofs.proof(of_dialler=False), of_dialler=False)
    for foreign in (
        proofs.proof(of_dialler=False),
        Proofs(b"another secret!!", one, two).proof(of_dialler=True),
        Proofs(SECRET, two, one).proof(of_dialler=True),
        Proofs(SECRET, one[:-1] + b"?", two).proof(of_dialler=True),
        b"",
    ):
        with pytest.raises(RefusedPeerError):
            proofs.check(foreign, of_dialler=True)


def test_a_seal_counts_so_that_nothing_is_replayed_or_left_out() -> None:
    sender, receiver = Seal(b"k" * 32), Seal(b"k" * 32)
    first, second = sender.mac(b"x"), sender.mac(b"x")
    assert first != second
    assert receiver.mac(b"x") == first
    assert receiver.mac(b"y") != second


def test_bytes_on_disk_and_wire_stay_what_they_are() -> None:
    """Golden: a change of these needs a new version number (docs/formats/raft-*.md)."""
    voters = Voters.of([Voter(node_id=1, directory_id=UUID(int=2), host="a", port=9)])
    golden = {
        wire.identity_record(1, UUID(int=2)): "01 00000001" + f"{2:032x}",
        wire.base_record(5, 3, voters): f"02 {5:016x} {3:016x} 01 00000001 {2:032x} 0001 61 0009",
        wire.entry_record((b"\1", 6, 3)): f"03 {6:016x} {3:016x} 01",
        wire.index_record(wire.Record.CUT, 6): f"04 {6:016x}",
        wire.vote_record(4, None): f"05 {4:016x} 00 {0:016x}",
        wire.vote_record(4, 2): f"05 {4:016x} 01 {2:016x}",
        wire.index_record(wire.Record.COMMIT, 6): f"06 {6:016x}",
        wire.encode_items([Item(What.COMMAND, b"xy")]): "00 00000001 00 00000002 7879",
        messages.encode({"type": "response_vote", "term": 4}): f"04 {4:016x}",
        handshake.encode_hello(hello_of(1, 2)): (
            f"646c6f6772616674 0002 0001 63 00000001 {1:032x} 00000002 {'01' * 32}"
        ),
        Proofs(b"s" * 16, b"a", b"b").proof(of_dialler=True)[:4]: "62b4257c",
    }
    wrong = {data.hex(): text for data, text in golden.items() if data != bytes.fromhex(text)}
    assert not wrong
