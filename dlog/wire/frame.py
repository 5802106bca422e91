"""Frames and headers: how requests and responses are cut out of a byte stream (sans-IO).

A frame is a length (int32, not counting itself) and that many bytes: a header and a body
(docs/formats/frame.md). Both directions use the same framing. Nothing here reads a socket: the
caller feeds bytes and gets frames; the bytes of a frame that arrived whole are not copied.
"""

import struct
from typing import NamedTuple

from dlog.checksum import Buffer
from dlog.errors import ProtocolError
from dlog.wire.apis import FLEXIBLE_FROM, has_flexible_response_header, is_flexible
from dlog.wire.primitives import skip_tags

LENGTH_BYTES = 4
FRAME_BYTES_MAX = 100 * 1024 * 1024
"""Default limit of a frame, as Kafka's `socket.request.max.bytes`."""

RECEIVE_BYTES = 64 * 1024
GROW_BYTES = 32 * 1024 * 1024
"""As much as a consumer asks for at once: such an answer is not copied while it grows."""

_LENGTH = struct.Struct(">i")
_REQUEST_HEAD = struct.Struct(">hhih")  # api key, api version, correlation id, client id's length
_RESPONSE_HEAD = struct.Struct(">ii")  # frame length, correlation id
_CORRELATION_ID = struct.Struct(">i")
_CLIENT_ID_BYTES_MAX = 1024
_CLIENT_IDS_MAX = 1024
_API_KEYS_MAX = max(FLEXIBLE_FROM) + 1
_NEVER = 1 << 15
# An alert and a handshake of TLS 1, of any minor version: who speaks it takes us for another.
_TLS_HEADS = (0x1503, 0x1603)

# First flexible version by api key, as a list: one index instead of a dict look-up by enum.
_FLEXIBLE_FROM = [FLEXIBLE_FROM.get(key, _NEVER) for key in range(_API_KEYS_MAX)]  # type: ignore[call-overload]
_client_ids: dict[bytes, str] = {}
_new_tuple = tuple.__new__


class RequestHeader(NamedTuple):
    """Header of a request (version 1, or 2 with tagged fields); the body is at `body_position`."""

    api_key: int
    api_version: int
    correlation_id: int
    client_id: str | None
    body_position: int


def _refused(length: int) -> ProtocolError:
    """Return the error for a length that no frame has; says what else it may be."""
    is_tls = length >> 16 in _TLS_HEADS
    return ProtocolError(f"a frame of {length} bytes{': this is TLS' if is_tls else ''}")


class FrameSplitter:
    """Cut a byte stream into frames; one per connection and direction.

    Frames that arrive whole are views into the bytes fed, valid as long as those are. Of a frame
    that arrives in pieces, the pieces are gathered in a buffer of its own, which grows with what
    has arrived and not with what the length claims.
    """

    __slots__ = ("_frame_bytes_max", "_missing", "_partial")

    def __init__(self, frame_bytes_max: int = FRAME_BYTES_MAX) -> None:
        self._frame_bytes_max = frame_bytes_max
        self._partial: bytearray | None = None  # length field included
        self._missing = 0  # bytes until the length is known, then until the frame is whole

    @property
    def pending_bytes(self) -> int:
        """Bytes held of a frame that is not whole yet."""
        return 0 if self._partial is None else len(self._partial)

    @property
    def missing_bytes(self) -> int:
        """Bytes that the cut frame still needs (or its length field); 0 between frames."""
        return self._missing

    def take_cut(self, missing_min: int) -> tuple[bytearray, int] | None:
        """Give the cut frame away, length field included, and how long it will be.

        Only one whose length is known and of which at least `missing_min` bytes are missing.
        """
        partial = self._partial
        if partial is None or len(partial) < LENGTH_BYTES or self._missing < missing_min:
            return None
        self._partial = None
        return partial, len(partial) + self._missing

    def feed(self, data: memoryview) -> list[memoryview]:
        """Take the next bytes of the stream and return the frames that are whole now.

        Each without its length field. Raises ProtocolError when a length is negative or above the
        limit; frames before that in the same call are lost, for the connection is to be closed.
        """
        frames: list[memoryview] = []
        position = 0
        end = len(data)
        if self._partial is not None:
            position = self._feed_partial(data, frames)
            if self._partial is not None:
                return frames
        while end - position >= LENGTH_BYTES:
            (length,) = _LENGTH.unpack_from(data, position)
            if not 0 <= length <= self._frame_bytes_max:
                raise _refused(length)
            start = position + LENGTH_BYTES
            if end - start < length:
                self._missing = length - (end - start)
                break
            position = start + length
            frames.append(data[start:position])
        else:
            if position == end:
                return frames
            self._missing = LENGTH_BYTES - (end - position)
        self._partial = bytearray(data[position:])
        return frames

    def _feed_partial(self, data: memoryview, frames: list[memoryview]) -> int:
        """Complete the cut frame as far as `data` goes and return the position after it."""
        partial = self._partial
        assert partial is not None
        position = 0
        if len(partial) < LENGTH_BYTES:
            position = min(self._missing, len(data))
            partial += data[:position]
            self._missing -= position
            if self._missing:
                return position
            (length,) = _LENGTH.unpack_from(partial)
            if not 0 <= length <= self._frame_bytes_max:
                raise _refused(length)
            self._missing = length
        taken = min(self._missing, len(data) - position)
        partial += data[position : position + taken]
        self._missing -= taken
        if self._missing == 0:
            frames.append(memoryview(partial)[LENGTH_BYTES:])
            self._partial = None
        return position + taken


class FrameReceiver:
    """Buffers to receive into, and the frames that came: a `FrameSplitter` behind one buffer.

    What is missing of a large frame is received into the frame's own buffer, without another copy;
    that grows with what has arrived. Frames are the caller's to keep.
    """

    __slots__ = ("_common", "_filled", "_frame", "_frame_bytes", "_grow_bytes", "_splitter")

    def __init__(
        self,
        frame_bytes_max: int = FRAME_BYTES_MAX,
        *,
        receive_bytes: int = RECEIVE_BYTES,
        grow_bytes: int = GROW_BYTES,
    ) -> None:
        self._splitter = FrameSplitter(frame_bytes_max)
        self._common = memoryview(bytearray(receive_bytes))
        self._grow_bytes = grow_bytes
        # A large frame on its way, length field included, and how much of it is there.
        self._frame: bytearray | None = None
        self._frame_bytes = 0
        self._filled = 0

    def buffer(self) -> memoryview:
        """Return where the next bytes of the stream go; ask anew each time."""
        if self._frame is None:
            return self._common
        return memoryview(self._frame)[self._filled :]

    def received(self, count: int) -> list[memoryview]:
        """Take the first `count` bytes of `buffer()`; return the frames that are whole now.

        Raises ProtocolError as `FrameSplitter.feed`.
        """
        if self._frame is None:
            frames = self._splitter.feed(memoryview(bytes(self._common[:count])))
            partial = self._splitter.take_cut(len(self._common))
            if partial is not None:
                self._frame, self._frame_bytes = partial
                self._filled = len(self._frame)
                self._grow()
            return frames
        self._filled += count
        if self._filled < len(self._frame):
            return []
        if self._filled < self._frame_bytes:
            self._grow()
            return []
        frame, self._frame = memoryview(self._frame)[LENGTH_BYTES:], None
        return [frame]

    def _grow(self) -> None:
        """Make room for more of the large frame: as much as is there already, or `_grow_bytes`."""
        assert self._frame is not None
        size = min(self._frame_bytes, self._filled + max(self._filled, self._grow_bytes))
        grown = bytearray(size)
        grown[: self._filled] = self._frame
        self._frame = grown


def encode_frame(*pieces: Buffer) -> bytes:
    """Return the pieces as one frame, its length in front."""
    body = b"".join(pieces)
    return _LENGTH.pack(len(body)) + body


def parse_request_header(buffer: memoryview, position: int, end: int) -> RequestHeader:
    """Read a request's header at `position`; the frame ends at `end`.

    The api key may be unknown: then the header is read as version 1. Raises ProtocolError when the
    bytes are no header.
    """
    try:
        api_key, api_version, correlation_id, client_id_bytes = _REQUEST_HEAD.unpack_from(
            buffer, position
        )
    except struct.error:
        raise ProtocolError("a request shorter than its header") from None
    position += 10
    client_id = None
    if client_id_bytes > 0:
        raw = bytes(buffer[position : position + client_id_bytes])
        position += client_id_bytes
        client_id = _client_ids.get(raw)
        if client_id is None:
            client_id = _decode_client_id(raw)
    elif client_id_bytes == 0:
        client_id = ""
    elif client_id_bytes != -1:
        raise ProtocolError(f"a client id of {client_id_bytes} bytes")
    if 0 <= api_key < _API_KEYS_MAX and api_version >= _FLEXIBLE_FROM[api_key]:
        if position < end and buffer[position] == 0:
            position += 1
        else:
            position = skip_tags(buffer, position, end)
    if position > end:
        raise ProtocolError("a request shorter than its header")
    return _new_tuple(RequestHeader, (api_key, api_version, correlation_id, client_id, position))


def _decode_client_id(raw: bytes) -> str:
    """Decode and remember a client id; what is not UTF-8 is shown with replacement characters."""
    client_id = raw.decode("utf-8", "replace")
    if len(raw) <= _CLIENT_ID_BYTES_MAX:
        if len(_client_ids) >= _CLIENT_IDS_MAX:
            _client_ids.clear()
        _client_ids[raw] = client_id
    return client_id


def encode_request_header(
    api_key: int, api_version: int, correlation_id: int, client_id: str | None
) -> bytes:
    """Return the header of a request, without a frame's length."""
    raw = b"" if client_id is None else client_id.encode()
    head = _REQUEST_HEAD.pack(
        api_key, api_version, correlation_id, -1 if client_id is None else len(raw)
    )
    return head + raw + (b"\x00" if is_flexible(api_key, api_version) else b"")


def parse_response_header(
    buffer: memoryview, position: int, end: int, api_key: int, api_version: int
) -> tuple[int, int]:
    """Return (correlation id, position of the body) of the response to such a request."""
    if end - position < _CORRELATION_ID.size:
        raise ProtocolError("a response shorter than its header")
    (correlation_id,) = _CORRELATION_ID.unpack_from(buffer, position)
    position += _CORRELATION_ID.size
    if has_flexible_response_header(api_key, api_version):
        position = skip_tags(buffer, position, end)
    return correlation_id, position


def encode_response(api_key: int, api_version: int, correlation_id: int, body: Buffer) -> bytes:
    """Return a whole response frame: length, the right header for the version, body."""
    if has_flexible_response_header(api_key, api_version):
        return _RESPONSE_HEAD.pack(len(body) + 5, correlation_id) + b"\x00" + body
    return _RESPONSE_HEAD.pack(len(body) + 4, correlation_id) + body
