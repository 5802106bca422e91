"""Members out of tags, disagreement with the metadata, the static list, agents that misbehave."""

import asyncio
import random
import struct
from collections.abc import Awaitable, Callable
from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlog.transport import Address
from dlog.types import NodeId
from dlogd.membership.members import (
    TAGS_BYTES_MAX,
    Disagreement,
    DisagreementKind,
    MalformedTagsError,
    Member,
    Membership,
    MemberState,
    Source,
    decode_tags,
    disagreements,
    encode_tags,
)
from dlogd.membership.serf import SerfMembership, SerfSettings, agent_of, view_of
from dlogd.membership.serf_rpc import SerfError, SerfRefusedError, SerfRpc
from dlogd.membership.static import StaticMembership
from dlogd.metadata.state.image import NodeAddress, NodeRegistration

ALIVE, FAILED, LEFT = MemberState.ALIVE, MemberState.FAILED, MemberState.LEFT
UNCERTAIN = MemberState.UNCERTAIN


def address(listener: str = "internal", host: str = "h", port: int = 9000) -> NodeAddress:
    return NodeAddress(listener=listener, host=host, port=port)


def member(node_id: int, state: MemberState = ALIVE, **changes: Any) -> Member:
    fields: dict[str, Any] = {
        "node_id": NodeId(node_id),
        "addresses": (address(),),
        "rack": None,
        "version": "1",
        "state": state,
        "source": Source.SERF,
    }
    return Member(**{**fields, **changes})


def node(node_id: int, *, fenced: bool = False, port: int = 9000) -> NodeRegistration:
    return NodeRegistration(
        node_id=NodeId(node_id),
        node_epoch=1,
        directory_ids=(),
        addresses=(address(port=port),),
        rack=None,
        version="1",
        fenced=fenced,
    )


# Tags.


@given(
    node_id=st.integers(0, 2**31 - 1),
    rack=st.none() | st.text(max_size=20),
    hosts=st.lists(st.text(min_size=1, max_size=20), max_size=3),
    version=st.text(max_size=10),
)
def test_tags_come_back_as_they_were(
    node_id: int, rack: str | None, hosts: list[str], version: str
) -> None:
    addresses = [address(f"l{i}", host, 1 + i) for i, host in enumerate(hosts)]
    try:
        tags = encode_tags(NodeId(node_id), addresses, rack=rack, version=version)
    except UnicodeEncodeError:
        return
    found = decode_tags({**tags, "later": "more"}, UNCERTAIN)
    assert found.node_id == node_id
    assert found.addresses == tuple(addresses)
    assert found.rack == rack
    assert found.version == version
    assert found.state is UNCERTAIN
    assert found.address("l0") == (addresses[0] if addresses else None)


def test_tags_beyond_what_gossip_carries_are_refused() -> None:
    with pytest.raises(MalformedTagsError, match="at most"):
        encode_tags(NodeId(1), [], rack="x" * TAGS_BYTES_MAX)


@pytest.mark.parametrize(
    "tags",
    [
        {},
        {"dlog": "2", "node": "1"},
        {"dlog": "1"},
        {"dlog": "1", "node": "-1"},
        {"dlog": "1", "node": "٣"},
        {"dlog": "1", "node": "2147483648"},
        {"dlog": "1", "node": "9" * 5000},
        {"dlog": "1", "node": "1", "a.x": "host"},
        {"dlog": "1", "node": "1", "a.x": ":1"},
        {"dlog": "1", "node": "1", "a.x": "h:0"},
        {"dlog": "1", "node": "1", "a.x": "h:65536"},
        {"dlog": "1", "node": "1", "a.x": "h:" + "9" * 5000},
        {"dlog": "1", "node": "1", "a.": "h:1"},
    ],
)
def test_malformed_tags_are_refused(tags: dict[str, str]) -> None:
    with pytest.raises(MalformedTagsError):
        decode_tags(tags, ALIVE)


def raw(name: str, status: bytes = b"alive", **tags: str) -> dict[bytes, Any]:
    return {
        b"Name": name.encode(),
        b"Addr": b"\x00" * 10 + b"\xff\xff\x7f\x00\x00\x01",
        b"Port": 7946,
        b"Status": status,
        b"Tags": {key.encode(): value.encode() for key, value in tags.items()},
    }


def test_only_left_and_failed_speak_against_a_member() -> None:
    states = {
        status: agent_of(raw("a", status)).state
        for status in (b"alive", b"left", b"failed", b"leaving", b"none", b"", b"\xff")
    }
    assert states.pop(b"alive") is ALIVE
    assert states.pop(b"left") is LEFT
    assert states.pop(b"failed") is FAILED
    assert set(states.values()) == {UNCERTAIN}


def test_addresses_of_agents_are_read_in_all_their_forms() -> None:
    assert agent_of(raw("a")).gossip == "127.0.0.1:7946"
    assert agent_of({**raw("a"), b"Addr": b"\x0a\x00\x00\x02"}).gossip == "10.0.0.2:7946"
    v6 = agent_of({**raw("a"), b"Addr": b"\x20\x01" + b"\x00" * 13 + b"\x01"}).gossip
    assert v6 == "[2001:0000:0000:0000:0000:0000:0000:0001]:7946"
    assert agent_of({**raw("a"), b"Addr": b"?"}).gossip == ""
    assert agent_of({}).gossip == ""


def test_a_view_holds_each_node_once_and_counts_the_rest() -> None:
    raws = [
        raw("b", dlog="1", node="1", cluster="c", rack="of b"),
        raw("a", b"failed", dlog="1", node="1", cluster="c", rack="of a"),
        raw("c", b"leaving", dlog="1", node="2"),
        raw("d", dlog="1", node="2", cluster="c"),
        raw("e", dlog="1", node="3", cluster="other"),
        raw("f", role="web"),
        raw("g", dlog="1", node="x"),
        {**raw("h"), b"Tags": {b"dlog": b"\xff"}},
    ]
    view = view_of([agent_of(each) for each in raws], "c")
    assert [(each.node_id, each.state, each.rack) for each in view.members] == [
        (1, ALIVE, "of b"),
        (2, ALIVE, None),
    ]
    assert (view.foreign, view.malformed, view.conflicts) == (2, 2, (2,))


# Disagreement.


def kinds(members: list[Member], *nodes: NodeRegistration) -> list[tuple[int, DisagreementKind]]:
    found: tuple[Disagreement, ...] = disagreements(members, {each.node_id: each for each in nodes})
    assert all(each.message for each in found)
    return [(each.node_id, each.kind) for each in found]


def test_disagreement_is_named_and_uncertainty_is_none() -> None:
    assert kinds([member(1), member(2)], node(1), node(2)) == []
    assert kinds([member(1), member(2, UNCERTAIN)], node(1), node(2)) == []
    assert kinds([member(1, FAILED), member(2, LEFT)], node(1), node(2)) == [
        (1, DisagreementKind.GONE),
        (2, DisagreementKind.GONE),
    ]
    assert kinds([member(1)], node(1, fenced=True)) == [(1, DisagreementKind.FENCED_ALIVE)]
    assert kinds([member(1, FAILED)], node(1, fenced=True)) == []
    assert kinds([member(1)]) == [(1, DisagreementKind.UNREGISTERED)]
    assert kinds([member(1, LEFT)]) == []
    assert kinds([], node(1), node(2, fenced=True)) == [(1, DisagreementKind.UNHEARD)]
    assert kinds([member(1)], node(1, port=1)) == [(1, DisagreementKind.ADDRESS)]


# The static list.


def test_a_static_list_knows_only_that_this_node_lives() -> None:
    peers = [member(2, UNCERTAIN, source=Source.CONFIG), member(1, UNCERTAIN, source=Source.CONFIG)]
    membership = StaticMembership(peers)
    typed: Membership = membership
    seen: list[tuple[int, ...]] = []
    typed.subscribe(lambda _, new: seen.append(tuple(each.node_id for each in new)))
    tags = encode_tags(NodeId(3), [address()], version="1")
    for _ in range(2):
        typed.announce(tags)
    assert [each.node_id for each in typed.members()] == [1, 2, 3]
    assert [each.state for each in typed.members()] == [UNCERTAIN, UNCERTAIN, ALIVE]
    assert seen == [(1, 2, 3)]
    assert typed.problem is None
    assert typed.counters.changes_total == 1


# Agents that misbehave.

Script = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


def against(script: Script, work: Callable[[Address], Awaitable[None]]) -> None:
    """Run `work` against a server on loopback that does as scripted."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await script(reader, writer)
        except ConnectionError:
            pass
        finally:
            writer.close()

    async def run() -> None:
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        try:
            host, port = server.sockets[0].getsockname()
            await work(Address(host, port))
        finally:
            server.close()

    asyncio.run(asyncio.wait_for(run(), 20))


async def requests(reader: asyncio.StreamReader) -> Any:
    """Yield each map that the client sends, header or body."""
    unpacker = msgpack.Unpacker()
    while data := await reader.read(65536):
        unpacker.feed(data)
        for each in unpacker:
            yield each


def pack(*values: Any) -> bytes:
    return b"".join(msgpack.packb(each, use_bin_type=False) for each in values)


async def handshake_then(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    answer: Callable[[dict[str, Any]], bytes],
) -> None:
    """Accept the handshake, answer every other command by `answer(header)`."""
    async for each in requests(reader):
        if "Command" not in each:
            continue
        if each["Command"] == "handshake":
            writer.write(pack({"Seq": each["Seq"], "Error": ""}))
        else:
            writer.write(answer(each))


async def connected(where: Address, timeout_s: float = 5.0) -> SerfRpc:
    loop = asyncio.get_running_loop()
    return await SerfRpc.connect(loop, where, auth_key=None, timeout_s=timeout_s)


@pytest.mark.parametrize(
    "answer",
    [
        lambda _: b"\xc1",  # no msgpack
        lambda _: pack(7),
        lambda _: pack([1]),
        lambda _: pack({"Seq": "x", "Error": ""}),
        lambda _: pack({"Seq": 99, "Error": ""}),
        lambda _: pack({"Members": []}),
        lambda each: pack({"Seq": each["Seq"], "Error": ""}, {"Members": 7}),
        lambda each: pack({"Seq": each["Seq"], "Error": ""}, {"Members": [7]}),
        lambda each: pack({"Seq": each["Seq"], "Error": ""}, 7),
        lambda _: b"\x81\x90\x01",  # a list as a key
        lambda _: b"\x91" * 100_000,  # depth
        lambda _: b"\xdb" + struct.pack(">I", 2**32 - 1) + b"x" * 1000,
    ],
)
def test_nonsense_ends_the_connection(answer: Callable[[dict[str, Any]], bytes]) -> None:
    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await handshake_then(reader, writer, answer)

    async def work(where: Address) -> None:
        rpc = await connected(where, timeout_s=0.5)
        with pytest.raises(SerfError) as raised:
            await rpc.members()
        assert not isinstance(raised.value, SerfRefusedError)
        assert rpc.closed.done()
        with pytest.raises(SerfError):
            await rpc.call("stats")

    against(script, work)


def test_a_refusal_leaves_the_connection_good_also_with_a_body_behind_it() -> None:
    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        def answer(each: dict[str, Any]) -> bytes:
            sequence = each["Seq"]
            if each["Command"] == "join":
                return pack({"Seq": sequence, "Error": "no one there"}, {"Num": 0})
            if each["Command"] == "tags":
                return pack({"Seq": sequence, "Error": "too long"})
            return pack({"Seq": sequence, "Error": ""}, {"Members": [raw("a")]})

        await handshake_then(reader, writer, answer)

    async def work(where: Address) -> None:
        rpc = await connected(where)
        for _ in range(2):
            with pytest.raises(SerfRefusedError, match="no one there"):
                await rpc.join(["h:1"])
            with pytest.raises(SerfRefusedError, match="too long"):
                await rpc.set_tags({"a": "b"}, [])
            assert len(await rpc.members()) == 1
        rpc.close()

    against(script, work)


def test_a_silent_agent_is_given_up() -> None:
    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await handshake_then(reader, writer, lambda _: b"")

    async def work(where: Address) -> None:
        rpc = await connected(where, timeout_s=0.2)
        with pytest.raises(SerfError, match="in time"):
            await rpc.members()
        assert "in time" in await rpc.closed

    against(script, work)


def test_events_lead_to_a_new_look_and_a_storm_to_few() -> None:
    looks = 0
    stormed = asyncio.Event()

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal looks

        def answer(each: dict[str, Any]) -> bytes:
            nonlocal looks
            head = {"Seq": each["Seq"], "Error": ""}
            if each["Command"] == "stats":
                return pack(head, {"agent": {"name": "me"}})
            if each["Command"] == "stream":
                stream = each["Seq"]
                asyncio.get_running_loop().call_later(0.05, storm, stream)
                return pack(head)
            looks += 1
            return pack(head, {"Members": [raw("me", dlog="1", node="1", rack=str(looks))]})

        def storm(stream: int) -> None:
            event = pack({"Seq": stream, "Error": ""}, {"Event": "member-update", "Members": []})
            writer.write(event * 5_000)
            stormed.set()

        await handshake_then(reader, writer, answer)

    async def work(where: Address) -> None:
        settings = SerfSettings(address=where, resync_ms=60_000)
        membership = SerfMembership(settings, loop=asyncio.get_running_loop(), rng=random.Random(1))
        changed = asyncio.Event()
        membership.subscribe(lambda _, new: changed.set() if stormed.is_set() else None)
        await membership.start()
        await changed.wait()
        await asyncio.sleep(0.2)
        await membership.stop()
        assert membership.counters.events_total == 5_000
        assert 2 <= looks < 30

    against(script, work)
