"""Connection between two Raft nodes: frames, handshake, checksums, silence.

    u32 length, body, and after the handshake a checksum of 16 bytes (docs/formats/raft-wire.md)

A frame is bounded before a byte of it is kept. Whatever is wrong ends the connection. An empty body
is a ping. Owner: the Raft loop.
"""

import asyncio
from typing import Protocol
from uuid import UUID

from dlogd.metadata.raft import handshake, messages
from dlogd.metadata.raft.handshake import (
    MAC_BYTES,
    PROOF_BYTES,
    Hello,
    Proofs,
    RefusedPeerError,
    Seal,
)
from dlogd.metadata.raft.messages import MESSAGE_BYTES_MAX, Message
from dlogd.metadata.state.encoding import MalformedError
from dlogd.net import foreign_protocols
from dlogd.net.acceptor import Admitted
from dlogd.net.connection_admission import Place

UNSENT_BYTES_MAX = 64 << 20
_HEAD_BYTES = 4
_FIRST_FRAME_BYTES_MAX = handshake.HELLO_BYTES_MAX + PROOF_BYTES


class Owner(Protocol):
    """Who has the connection."""

    def on_authenticated(self, connection: "Connection") -> None:
        """Both sides have proven the secret."""

    def on_message(self, connection: "Connection", message: Message) -> None:
        """A message has come."""

    def on_refused(self, connection: "Connection", reason: object) -> None:
        """What the peer sent is refused; the connection ends."""

    def on_closed(self, connection: "Connection") -> None:
        """It is over."""


class Connection(asyncio.Protocol):
    """A connection, dialled or accepted. Life: until `on_closed`, which is called once."""

    def __init__(
        self, owner: Owner, secret: bytes, hello: Hello, place: Place[Admitted] | None = None
    ) -> None:
        """`place`: of an accepted connection that proves nothing yet; a dialled one has none."""
        self._owner = owner
        self._secret = secret
        self._hello = hello
        self._own_bytes = handshake.encode_hello(hello)
        self.dialled = place is None
        self.place = place
        self._transport: asyncio.Transport | None = None
        self._received = bytearray()
        self._proofs: Proofs | None = None
        self._send_seal: Seal | None = None
        self._receive_seal: Seal | None = None
        self.authenticated = False
        self.answered = False  # a frame of the peer has come
        self.closed = False
        self.peer_id = hello.wanted_id
        self.peer_host = "?"
        self.peer_directory: UUID = hello.directory_id
        self.received_count = 0
        self.heard_s = 0.0  # the loop's time when something came last
        self.sent_count = 0

    @property
    def _reads(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    @property
    def version(self) -> int:
        """Of the handshake, as this side speaks it."""
        return self._hello.version

    # -- asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        name = transport.get_extra_info("peername")
        if isinstance(name, tuple) and len(name) >= 2:
            self.peer_host = str(name[0])
        if self.dialled:
            self._write(self._own_bytes)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self.closed = True
        self._owner.on_closed(self)

    def data_received(self, data: bytes) -> None:
        self._received += data
        self.received_count += 1
        self.heard_s = asyncio.get_running_loop().time()
        try:
            while self._reads and self._take_frame():
                pass
        except MalformedError as error:
            self._owner.on_refused(self, error)
            self._refuse(error)

    # -- frames

    def _take_frame(self) -> bool:
        """Take one whole frame from what was received, if there is one."""
        if len(self._received) < _HEAD_BYTES:
            return False
        length = int.from_bytes(self._received[:_HEAD_BYTES], "big")
        bound = MESSAGE_BYTES_MAX + MAC_BYTES if self.authenticated else _FIRST_FRAME_BYTES_MAX
        if length > bound:
            other = None if self.answered else foreign_protocols.recognise(self._received)
            why = other.meaning if other else f"a frame of {length} bytes is too large"
            raise MalformedError(why)
        end = _HEAD_BYTES + length
        if len(self._received) < end:
            return False
        frame = bytes(memoryview(self._received)[_HEAD_BYTES:end])
        del self._received[:end]
        self.answered = True
        if self.authenticated:
            self._take_message(frame)
        elif self._proofs is not None:
            self._take_proof(self._proofs, frame)
        elif self.dialled:
            self._take_answer(frame)
        else:
            self._take_hello(frame)
        return True

    def _take_message(self, frame: bytes) -> None:
        assert self._receive_seal is not None
        if len(frame) < MAC_BYTES:
            raise MalformedError("a frame without a checksum")
        body, mac = frame[:-MAC_BYTES], frame[-MAC_BYTES:]
        if not handshake.same(mac, self._receive_seal.mac(body)):
            raise MalformedError("a frame was altered on its way")
        if body:
            self._owner.on_message(self, messages.decode(body))

    def _take_hello(self, frame: bytes) -> None:
        """Answer a dialler: own hello, and no proof before the dialler's."""
        self._meet(frame)
        self._proofs = Proofs(self._secret, frame, self._own_bytes)
        self._write(self._own_bytes)

    def _take_answer(self, frame: bytes) -> None:
        """Meet the node that was dialled, and prove the secret."""
        handshake.expect_no_refusal(frame)
        older = self._hello.version == handshake.OLDER_VERSION
        other, proof = (frame[:-PROOF_BYTES], frame[-PROOF_BYTES:]) if older else (frame, b"")
        self._meet(other)
        proofs = Proofs(self._secret, self._own_bytes, other)
        if older:
            proofs.check(proof, of_dialler=False)
        self._write(proofs.proof(of_dialler=True))
        self._proofs = proofs
        if older:
            self._begin(proofs)

    def _take_proof(self, proofs: Proofs, frame: bytes) -> None:
        """Check the proof of the other side; the listener's own comes after the dialler's."""
        if self.dialled:
            handshake.expect_no_refusal(frame)
        proofs.check(frame, of_dialler=not self.dialled)
        if not self.dialled:
            self._write(proofs.proof(of_dialler=False))
        self._begin(proofs)

    def _meet(self, frame: bytes) -> None:
        other = handshake.decode_hello(frame)
        self.peer_id = other.node_id
        handshake.expect(self._hello, other)
        self.peer_directory = other.directory_id

    def _begin(self, proofs: Proofs) -> None:
        self._send_seal = Seal(proofs.key(of_dialler=self.dialled))
        self._receive_seal = Seal(proofs.key(of_dialler=not self.dialled))
        self.authenticated = True
        self._owner.on_authenticated(self)

    # -- what the owner calls

    def send(self, message: Message) -> None:
        """Send a message; a peer that does not take what it is sent is cut off."""
        self._send_body(messages.encode(message))

    def ping(self) -> None:
        """Send nothing, so that the peer hears something."""
        self._send_body(b"")

    def _send_body(self, body: bytes) -> None:
        transport = self._transport
        if transport is None or transport.is_closing() or self._send_seal is None:
            return
        if transport.get_write_buffer_size() > UNSENT_BYTES_MAX:
            self._owner.on_refused(self, "it takes nothing")
            self.abort()
            return
        self._write(body + self._send_seal.mac(body))
        self.sent_count += 1

    def _write(self, frame: bytes) -> None:
        assert self._transport is not None
        self._transport.write(len(frame).to_bytes(_HEAD_BYTES, "big") + frame)

    def _refuse(self, error: MalformedError) -> None:
        """End it; a dialler of another cluster or version is told why."""
        code = error.code if isinstance(error, RefusedPeerError) else None
        if self._transport is None or self.dialled or code is None:
            self.abort()
            return
        self._write(handshake.encode_refusal(code))
        self._transport.close()

    def on_displaced(self) -> None:
        """Another address needs the place."""
        self.abort()

    def abort(self) -> None:
        """End it at once."""
        if self._transport is not None:
            self._transport.abort()
