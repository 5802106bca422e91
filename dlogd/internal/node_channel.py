"""Channel to the internal listener of another node, with mutual proof of the cluster's secret.

Who connects sends a hello with a nonce, who listens answers with its own. Both then know the keys
of this connection: every further frame ends with a keyed checksum over it and its number, so only
who knows the secret can renew a lease, or answer a probe, and nothing can be replayed. Secrecy is
the matter of TLS. docs/formats/heartbeat.md.
"""

import asyncio
import hmac
from collections.abc import Callable

from dlog import transport
from dlog.errors import ProtocolError, error_for
from dlog.transport import Address, Connection, ConnectionOptions
from dlogd.internal import messages
from dlogd.internal.messages import Replicate
from dlogd.metadata.raft.handshake import MAC_BYTES, Proofs, Seal, same
from dlogd.runtime.randomness import Entropy

_LENGTH_BYTES = 4
_PURPOSE = b"internal listener"
"""Keys of one protocol are none of another."""


class Seals:
    """The checksums of both directions of one connection."""

    def __init__(self, secret: bytes, hello: bytes, answer: bytes, *, dialled: bool) -> None:
        """`hello` and `answer` are the payloads of the first two frames."""
        proofs = Proofs(hmac.digest(secret, _PURPOSE, "sha256"), hello, answer)
        self._own = Seal(proofs.key(of_dialler=dialled))
        self._other = Seal(proofs.key(of_dialler=not dialled))

    def seal(self, frame: bytes) -> bytes:
        """Return a whole frame with its checksum at the end."""
        payload = frame[_LENGTH_BYTES:]
        size = len(payload) + MAC_BYTES
        return size.to_bytes(_LENGTH_BYTES, "big") + payload + self._own.mac(payload)

    def unseal(self, payload: memoryview) -> memoryview:
        """Return what a peer sent without its checksum; raise ProtocolError when that is wrong."""
        body, mac = payload[:-MAC_BYTES], payload[-MAC_BYTES:]
        if len(payload) < MAC_BYTES or not same(bytes(mac), self._other.mac(body)):
            raise ProtocolError("a frame that does not prove the secret of the cluster")
        return body


class NodeChannel:
    """A connection whose requests are answered one after the other."""

    def __init__(self, connection: Connection, seals: Seals | None) -> None:
        self._connection = connection
        self._seals = seals

    @property
    def address(self) -> Address:
        """Where it leads."""
        return self._connection.address

    @property
    def is_open(self) -> bool:
        """Whether it can be used."""
        return self._connection.is_open

    async def call(self, encode: Callable[[int], bytes]) -> memoryview:
        """Send a request; return the answer's frame without its length. One at a time."""
        seals = self._seals
        if seals is None:
            return await self._connection.call(encode)
        answer = await self._connection.call(
            lambda correlation_id: seals.seal(encode(correlation_id))
        )
        return seals.unseal(answer)

    async def begin_requests(self, request: Replicate) -> Connection:
        """Return the connection for Kafka's requests, without seals; raise ProtocolError."""
        answer = await self.call(
            lambda correlation_id: messages.encode_replicate(
                request, correlation_id, messages.NODE_REQUESTS
            )
        )
        code = messages.decode_replicate_answer(answer)
        if code != messages.NONE:
            raise ProtocolError(f"it does not serve this node ({error_for(code).name})")
        return self._connection

    def close(self) -> None:
        """Close. Idempotent."""
        self._connection.close()


class Dialler:
    """Opens channels; without a secret nothing is proved (tests)."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        *,
        secret: bytes | None = None,
        cluster_id: str = "",
        entropy: Entropy | None = None,
    ) -> None:
        self._loop = loop
        self._secret = secret
        self._cluster_id = cluster_id
        self._entropy = entropy

    async def connect(self, address: Address, options: ConnectionOptions) -> NodeChannel:
        """Return an open channel; raise TransportError or ProtocolError."""
        connection = await transport.connect(self._loop, address, options)
        if self._secret is None or self._entropy is None:
            return NodeChannel(connection, None)
        met = False
        try:
            seals = await self._meet(connection, self._secret, self._entropy)
            met = True
        finally:
            if not met:
                connection.close()
        return NodeChannel(connection, seals)

    async def _meet(self, connection: Connection, secret: bytes, entropy: Entropy) -> Seals:
        sent = b""

        def hello(correlation_id: int) -> bytes:
            nonlocal sent
            nonce = entropy.token(messages.NONCE_BYTES)
            sent = messages.encode_hello(self._cluster_id, nonce, correlation_id)
            return sent

        answer = bytes(await connection.call(hello))
        code = messages.decode_hello_answer(memoryview(answer))
        if code != messages.NONE:
            raise ProtocolError(f"it is of another cluster ({error_for(code).name})")
        return Seals(secret, sent[_LENGTH_BYTES:], answer, dialled=True)


class StreamIntroduction:
    """How a follower introduces itself to a leader: a hello, then the request for a stream.

    The leader proves the secret with the seal of its answer. What follows is not sealed: records
    have their own checksums, and who can change bytes between nodes is kept away by TLS.
    """

    def __init__(self, secret: bytes, request: Replicate, entropy: Entropy) -> None:
        self._secret = secret
        self._request = request
        self._nonce = entropy.token(messages.NONCE_BYTES)
        self._seals: Seals | None = None

    def hello(self) -> bytes:
        """Return the first frame."""
        return messages.encode_hello(self._request.cluster_id, self._nonce, 0)

    def reply(self, payload: memoryview) -> bytes | None:
        """Take a frame of the leader; return the next one, None when that was the last."""
        if self._seals is None:
            code = messages.decode_hello_answer(payload)
            if code != messages.NONE:
                raise ProtocolError(f"it is of another cluster ({error_for(code).name})")
            sent = self.hello()[_LENGTH_BYTES:]
            self._seals = Seals(self._secret, sent, bytes(payload), dialled=True)
            return self._seals.seal(messages.encode_replicate(self._request, 1))
        code = messages.decode_replicate_answer(self._seals.unseal(payload))
        if code != messages.NONE:
            raise ProtocolError(f"it does not serve this node ({error_for(code).name})")
        return None
