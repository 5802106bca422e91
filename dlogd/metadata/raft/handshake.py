"""Mutual proof of the cluster's secret at the begin of a connection, and the keys that follow.

Pure. The dialler sends a hello, the listener answers with its own, the dialler sends a proof over
both, the listener sends its proof: challenge and response in both directions. The listener proves
nothing before the dialler has: a stranger gets no material for guessing the secret. Cluster, node
ids and directories are part of what is proven, so no proof can be used anywhere else. In version 1
the listener proved first. This software dials nodes that answer only version 1, and answers no
dialler of version 1 (docs/decisions/0037-dialler-proves-first.md). Afterwards each frame
carries a keyed checksum over its number, so nothing can be injected, dropped or replayed unnoticed;
secrecy is the matter of TLS (docs/formats/raft-wire.md).
"""

import hashlib
import hmac
from dataclasses import dataclass
from uuid import UUID

from dlogd.metadata.state.encoding import MalformedError, Reader, Writer
from dlogd.net.peer_refusals import Reason

MAGIC = b"dlograft"
PROTOCOL_VERSION = 2
OLDER_VERSION = 1
"""The listener proves first. Spoken by a dialler only, to nodes before their upgrade."""
NONCE_BYTES = 32
PROOF_BYTES = 32
MAC_BYTES = 16
HELLO_BYTES_MAX = 512
SECRET_BYTES_MIN = 16
_CODE_BYTES = 2
_REFUSAL_BYTES = len(MAGIC) + 2 + _CODE_BYTES


WRONG_VERSION = 35
WRONG_PROOF = 58
WRONG_CLUSTER = 104
_REFUSALS = {
    WRONG_VERSION: "it does not answer this version of the handshake",
    WRONG_PROOF: "it refuses the proof: one of the two nodes does not know the secret",
    WRONG_CLUSTER: "it is of another cluster",
}
"""Error codes of a refusal, Kafka's."""


class RefusedPeerError(MalformedError):
    """The peer does not know the secret, or is not who is wanted."""

    def __init__(self, message: str, reason: Reason, code: int | None = None) -> None:
        """`code`: what a peer is told that dialled; None: nothing."""
        super().__init__(message)
        self.reason = reason
        self.code = code


@dataclass(frozen=True, slots=True, kw_only=True)
class Hello:
    """What each side says of itself."""

    cluster: str
    node_id: int
    directory_id: UUID
    wanted_id: int  # whom it wants to talk to; -1: whoever connects
    nonce: bytes
    version: int = PROTOCOL_VERSION


def encode_hello(hello: Hello) -> bytes:
    """Return the bytes of a hello."""
    writer = Writer()
    writer.data += MAGIC
    writer.u16(hello.version)
    writer.text(hello.cluster)
    writer.i32(hello.node_id)
    writer.uuid(hello.directory_id)
    writer.i32(hello.wanted_id)
    writer.data += hello.nonce
    return bytes(writer.data)


def decode_hello(data: bytes) -> Hello:
    """Return the hello of some bytes; raise only MalformedError."""
    reader = Reader(data)
    if reader.raw(len(MAGIC)) != MAGIC:
        raise MalformedError("it does not speak this protocol")
    version = reader.u16()
    if not OLDER_VERSION <= version <= PROTOCOL_VERSION:
        raise _wrong_version(version)
    hello = Hello(
        cluster=reader.text(),
        node_id=reader.i32(),
        directory_id=reader.uuid(),
        wanted_id=reader.i32(),
        nonce=reader.raw(NONCE_BYTES),
        version=version,
    )
    reader.expect_end()
    return hello


def encode_refusal(code: int) -> bytes:
    """Return the bytes that a listener answers a hello with that it refuses: no nonce, no proof."""
    writer = Writer()
    writer.data += MAGIC
    writer.u16(PROTOCOL_VERSION)
    writer.u16(code)
    return bytes(writer.data)


def expect_no_refusal(data: bytes) -> None:
    """Raise RefusedPeerError if a listener's answer is a refusal."""
    if len(data) != _REFUSAL_BYTES or not data.startswith(MAGIC):
        return
    code = int.from_bytes(data[-_CODE_BYTES:], "big")
    reasons = {WRONG_VERSION: Reason.VERSION, WRONG_PROOF: Reason.PROOF}
    message = _REFUSALS.get(code, f"it refuses with code {code}")
    raise RefusedPeerError(message, reasons.get(code, Reason.CLUSTER))


def _wrong_version(version: int) -> RefusedPeerError:
    return RefusedPeerError(
        f"it speaks version {version}, this software {PROTOCOL_VERSION}",
        Reason.VERSION,
        WRONG_VERSION,
    )


def expect(own: Hello, other: Hello) -> None:
    """Raise RefusedPeerError unless the two want to talk to each other."""
    if own.version != other.version:
        raise _wrong_version(other.version)
    if own.cluster != other.cluster:
        raise RefusedPeerError(
            f"it is of cluster {other.cluster!r}, this is {own.cluster!r}",
            Reason.CLUSTER,
            WRONG_CLUSTER,
        )
    if other.node_id < 0 or other.node_id == own.node_id:
        raise RefusedPeerError(f"it says that it is node {other.node_id}", Reason.IDENTITY)
    if own.wanted_id not in (-1, other.node_id) or other.wanted_id not in (-1, own.node_id):
        raise RefusedPeerError(f"node {other.node_id} is not the wanted node", Reason.IDENTITY)


def same(one: bytes, other: bytes) -> bool:
    """Compare two secrets in a time that tells nothing about them."""
    return hmac.compare_digest(one, other)


class Proofs:
    """Proofs and keys that follow from a secret and two hellos."""

    def __init__(self, secret: bytes, dialler: bytes, listener: bytes) -> None:
        self._secret = secret
        self._transcript = len(dialler).to_bytes(4, "big") + dialler + listener

    def _derive(self, label: bytes) -> bytes:
        return hmac.digest(self._secret, label + b"\0" + self._transcript, "sha256")

    def proof(self, *, of_dialler: bool) -> bytes:
        """Return what one side must show."""
        return self._derive(b"dialler proof" if of_dialler else b"listener proof")

    def check(self, proof: bytes, *, of_dialler: bool) -> None:
        """Raise RefusedPeerError unless the proof is right; takes the same time for any."""
        if not same(proof, self.proof(of_dialler=of_dialler)):
            raise RefusedPeerError(
                "it does not know the secret of this cluster", Reason.PROOF, WRONG_PROOF
            )

    def key(self, *, of_dialler: bool) -> bytes:
        """Return the key of the checksums in one direction."""
        return self._derive(b"dialler key" if of_dialler else b"listener key")


class Seal:
    """The keyed checksums of one direction of a connection."""

    def __init__(self, key: bytes) -> None:
        self._key = key
        self._number = 0

    def mac(self, body: bytes | memoryview) -> bytes:
        """Return the checksum of the next frame."""
        digest = hashlib.blake2b(body, key=self._key, digest_size=MAC_BYTES)
        digest.update(self._number.to_bytes(8, "big"))
        self._number += 1
        return digest.digest()
