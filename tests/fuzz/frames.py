"""Frames that a hostile or broken client might send: well-formed nonsense, and mutations of it.

Everything comes from the given generator, so a seed gives the same frames again.
"""

import random
import struct
from uuid import UUID

from dlog.batch.records import Record, encode
from dlog.wire import fetch_client, messages, produce_client
from dlog.wire.apis import VERSIONS, ApiKey
from dlog.wire.fetch import FetchRequest
from dlog.wire.topics import TopicKey
from tests.fakes.nonsense import Requests

SERVED = [
    (key, version) for key, (low, high) in VERSIONS.items() for version in range(low, high + 1)
]
TOPICS = ("fuzz", "other", "nothing", "", "..", "x" * 249)
COUNTS = (0, 1, 2, 0x7F, 0xFF, 0x7FFF, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFE, 0xFFFFFFFF)
EDGES = (-(2**63), -3, -2, -1, 0, 1, 2**31 - 1, 2**63 - 1)


class Frames:
    """Random frames, each with its length in front."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.topic_ids = [UUID(int=0), UUID(int=1)]
        self._requests = Requests(rng)  # by itself: nothing that is there is deleted

    def well_formed(self) -> bytes:
        """Return a request that can be parsed, of any API and version."""
        api_key, version = self.rng.choice(SERVED)
        if api_key is ApiKey.PRODUCE:
            return self.produce(version)
        if api_key is ApiKey.FETCH:
            return self.fetch(version)
        entity = self._requests.entity(messages.request_type(api_key, version))
        return messages.encode_request(entity, self.rng.getrandbits(31), self._client_id())

    def _client_id(self) -> str | None:
        return self.rng.choice((None, "", "fuzz", "line\nbreak \x1b[31m\0", "ü" * 400))

    def _topic(self, by_id: bool) -> TopicKey:
        if by_id:
            return self.rng.choice(self.topic_ids)
        return self.rng.choice(TOPICS)

    def produce(self, version: int) -> bytes:
        """Return a Produce request; some of its batches are broken."""
        rng = self.rng
        topics = [
            (
                self._topic(version >= 13),
                [(rng.choice((0, 1, -1, 99)), self.batch()) for _ in range(rng.choice((0, 1, 3)))],
            )
            for _ in range(rng.choice((1, 1, 2)))
        ]
        acks = rng.choice((0, 1, -1, -1, 7))
        timeout_ms = rng.choice((-1, 0, 1, 1000, 2**31 - 1))
        transactional_id = rng.choice((None, None, "", "tx"))
        return produce_client.encode_request(
            version, rng.getrandbits(31), self._client_id(), acks, timeout_ms, topics,
            transactional_id,
        )  # fmt: skip

    def batch(self) -> bytes:
        """Return a record batch, whole or not."""
        rng = self.rng
        records = [
            Record(
                value=rng.randbytes(rng.choice((0, 1, 100, 5000))), timestamp_ms=rng.choice(EDGES)
            )
            if rng.random() < 0.2
            else Record(value=rng.randbytes(50), timestamp_ms=1_790_000_000_000)
            for _ in range(rng.choice((1, 1, 10)))
        ]
        try:
            data = encode(
                records,
                producer_id=rng.choice((-1, -1, 0, 5)),
                producer_epoch=rng.choice((-1, 0)),
                base_sequence=rng.choice((-1, 0, 3)),
            )
        except (ValueError, OverflowError, struct.error):
            data = encode([Record(value=b"x", timestamp_ms=1)])
        if rng.random() < 0.4:
            data = bytearray(self._mutated(bytes(data)))
        return bytes(data)

    def fetch(self, version: int) -> bytes:
        """Return a Fetch request."""
        rng = self.rng
        topics = [
            (
                self._topic(version >= 13),
                [
                    (
                        rng.choice((0, 0, 1, -1, 2**31 - 1)),
                        rng.choice((-1, -1, 0, 1, 5)),
                        rng.choice((0, 0, 1, 5, *EDGES)),
                        -1,
                        -1,
                        rng.choice((0, 1, 1000, 1 << 20, -1, 2**31 - 1)),
                    )
                    for _ in range(rng.choice((0, 1, 3)))
                ],
            )
            for _ in range(rng.choice((0, 1, 1, 2)))
        ]
        request = FetchRequest(
            replica_id=rng.choice((-1, -1, -1, 0, 2)),
            max_wait_ms=rng.choice((-1, 0, 10, 200, 2**31 - 1)),
            min_bytes=rng.choice((-1, 0, 1, 100, 2**31 - 1)),
            max_bytes=rng.choice((-1, 0, 1, 1000, 2**31 - 1)),
            isolation_level=rng.choice((0, 1, 5)),
            session_id=rng.choice((0, 0, 1)),
            session_epoch=rng.choice((-1, 0, 1)),
            topics=topics,
            forgotten=[(self._topic(version >= 13), [0, 1])] if rng.random() < 0.2 else [],
            rack_id=rng.choice(("", "r1")),
        )
        return fetch_client.encode_request(version, rng.getrandbits(31), self._client_id(), request)

    def mutated(self) -> bytes:
        """Return a request with some bytes changed; its length is right most of the time."""
        body = self._mutated(self.well_formed()[4:])
        if self.rng.random() < 0.8:
            return len(body).to_bytes(4, "big") + body
        return self.rng.choice(COUNTS).to_bytes(4, "big") + body

    def _mutated(self, data: bytes) -> bytes:
        rng = self.rng
        changed = bytearray(data)
        for _ in range(rng.choice((1, 1, 2, 5))):
            at = rng.randrange(len(changed) + 1)
            kind = rng.randrange(6)
            if kind == 0 and changed:
                changed[at % len(changed)] ^= 1 << rng.randrange(8)
            elif kind == 1:
                del changed[at:]  # cut
            elif kind == 2:
                changed[at:at] = rng.randbytes(rng.choice((1, 4, 200)))
            elif kind == 3:
                changed[at : at + 4] = rng.choice(COUNTS).to_bytes(4, "big")
            elif kind == 4:
                changed[at : at + 2] = rng.choice((0xFFFF, 0x8000, 0x7FFF)).to_bytes(2, "big")
            else:
                del changed[at : at + rng.choice((1, 2, 4, 8))]
        return bytes(changed)

    def garbage(self) -> bytes:
        """Return bytes that no client means: noise, other protocols, impossible lengths."""
        rng = self.rng
        kind = rng.randrange(5)
        if kind == 0:
            return rng.randbytes(rng.choice((1, 3, 4, 12, 1000, 70_000)))
        if kind == 1:
            return rng.choice((b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", b"\x16\x03\x01\x02\x00\x01"))
        if kind == 2:
            return rng.choice(COUNTS).to_bytes(4, "big") + rng.randbytes(20)
        body = struct.pack(
            ">hhih", rng.choice((-1, 0, 1, 3, 18, 99, 32767)), rng.choice((-1, 0, 3, 99)), 1, -1
        )
        body += rng.randbytes(rng.choice((0, 1, 50, 3000)))
        return len(body).to_bytes(4, "big") + body

    def any(self) -> bytes:
        """Return one of all kinds."""
        return self.rng.choice((self.well_formed, self.mutated, self.mutated, self.garbage))()
