"""Mutual proof of the cluster's secret at the begin of a connection, and the keys that follow.

Pure. Who connects sends a hello, who listens answers with its own and a proof over both, who
connects sends its proof: challenge and response in both directions. Cluster, node ids and
directories are part of what is proven, so no proof can be used anywhere else. Afterwards each frame
carries a keyed checksum over its number, so nothing can be injected, dropped or replayed unnoticed;
secrecy is the matter of TLS (docs/formats/raft-wire.md).
"""

import hashlib
import hmac
from dataclasses import dataclass
from uuid import UUID

from dlogd.metadata.encoding import MalformedError, Reader, Writer

MAGIC = b"dlograft"
PROTOCOL_VERSION = 1
NONCE_BYTES = 32
PROOF_BYTES = 32
MAC_BYTES = 16
HELLO_BYTES_MAX = 512
SECRET_BYTES_MIN = 16


class RefusedPeerError(MalformedError):
    """The peer does not know the secret, or is not who is wanted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hello:
    """What each side says of itself."""

    cluster: str
    node_id: int
    directory_id: UUID
    wanted_id: int  # whom it wants to talk to; -1: whoever connects
    nonce: bytes


def encode_hello(hello: Hello) -> bytes:
    """Return the bytes of a hello."""
    writer = Writer()
    writer.data += MAGIC
    writer.u16(PROTOCOL_VERSION)
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
    if version != PROTOCOL_VERSION:
        raise MalformedError(f"it speaks version {version}, this software {PROTOCOL_VERSION}")
    hello = Hello(
        cluster=reader.text(),
        node_id=reader.i32(),
        directory_id=reader.uuid(),
        wanted_id=reader.i32(),
        nonce=reader.raw(NONCE_BYTES),
    )
    reader.expect_end()
    return hello


def expect(own: Hello, other: Hello) -> None:
    """Raise RefusedPeerError unless the two want to talk to each other."""
    if own.cluster != other.cluster:
        raise RefusedPeerError(f"it is of cluster {other.cluster!r}, this is {own.cluster!r}")
    if other.node_id < 0 or other.node_id == own.node_id:
        raise RefusedPeerError(f"it says that it is node {other.node_id}")
    if own.wanted_id not in (-1, other.node_id) or other.wanted_id not in (-1, own.node_id):
        raise RefusedPeerError(f"node {other.node_id} is not who was wanted")


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
            raise RefusedPeerError("it does not know the secret of this cluster")

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
