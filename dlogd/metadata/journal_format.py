"""Format of the metadata journal (docs/formats/metadata-journal.md).

Pure. A journal is a head and then frames. A frame is written and flushed as a whole before the next
one is begun, and its checksum covers all its commands, so after a crash at most the last frame is
torn. A frame that does not read while a later one does is not a torn one: the file is corrupt, and
nothing may be cut.
"""

import struct
from collections.abc import Sequence
from dataclasses import dataclass

from dlog.checksum import crc32c
from dlogd.metadata.state.encoding import MalformedError

MAGIC = b"dlogjrnl"
FRAME_MAGIC = b"\xd1FRM"
FORMAT_VERSION = 1

_HEAD = struct.Struct(">8sHQI")
"""Magic, format version, base version, CRC-32C of the three."""

_FRAME = struct.Struct(">4sIIQI")
"""Magic, CRC-32C of position and all that follows, length of the body, first version, count."""

_LENGTH = struct.Struct(">I")
_POSITION = struct.Struct(">Q")
_CHECKED_FROM = 8  # of a frame: what stands behind its CRC

HEAD_BYTES = _HEAD.size


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """Commands that were made durable together; the first one makes `first_version`."""

    first_version: int
    commands: tuple[bytes, ...]

    @property
    def next_version(self) -> int:
        """The version that the first command of the next frame makes."""
        return self.first_version + len(self.commands)


@dataclass(frozen=True, slots=True, kw_only=True)
class Journal:
    """What a journal file holds."""

    base_version: int  # its first command makes the version after this one
    frames: tuple[Frame, ...]
    end_position: int  # exclusive; what lies behind is a torn frame
    torn_bytes: int

    @property
    def end_version(self) -> int:
        """The version that its last command makes."""
        return self.frames[-1].next_version - 1 if self.frames else self.base_version


def encode_head(base_version: int) -> bytes:
    """Return the head of a journal that continues from `base_version`."""
    head = _HEAD.pack(MAGIC, FORMAT_VERSION, base_version, 0)[:-4]
    return head + _LENGTH.pack(crc32c(head))


def encode_frame(position: int, first_version: int, commands: Sequence[bytes]) -> bytes:
    """Return the frame to be written at `position`; without commands it only seals what is before.

    The position is part of the checksum, so that a frame counts nowhere else.
    """
    body = b"".join(_LENGTH.pack(len(command)) + command for command in commands)
    frame = _FRAME.pack(FRAME_MAGIC, 0, len(body), first_version, len(commands)) + body
    return FRAME_MAGIC + _LENGTH.pack(_frame_crc(position, frame)) + frame[_CHECKED_FROM:]


def _frame_crc(position: int, frame: bytes | memoryview) -> int:
    return crc32c(frame[_CHECKED_FROM:], crc32c(_POSITION.pack(position)))


def decode(data: bytes) -> Journal:
    """Return what a journal file holds; raise MalformedError unless only its end may be torn."""
    base_version = _decode_head(data)
    frames: list[Frame] = []
    position, expected = HEAD_BYTES, base_version + 1
    while position < len(data):
        frame = _frame_at(data, position)
        if frame is None:
            _expect_no_frame_behind(data, position)
            break
        end, found = frame
        if found.first_version != expected:
            raise MalformedError(
                f"at {position} version {found.first_version} follows, expected {expected}"
            )
        frames.append(found)
        position, expected = end, found.next_version
    return Journal(
        base_version=base_version,
        frames=tuple(frames),
        end_position=position,
        torn_bytes=len(data) - position,
    )


def _decode_head(data: bytes) -> int:
    if len(data) < _HEAD.size:
        raise MalformedError(f"{len(data)} bytes are too few for a journal")
    magic, format_version, base_version, crc = _HEAD.unpack_from(data)
    if magic != MAGIC:
        raise MalformedError(f"it begins with {magic!r}, not {MAGIC!r}")
    if format_version != FORMAT_VERSION:
        raise MalformedError(
            f"its format version is {format_version}, this software knows {FORMAT_VERSION}"
        )
    if crc32c(data[: _HEAD.size - 4]) != crc:
        raise MalformedError("the checksum of its head does not fit")
    return int(base_version)


def _frame_at(data: bytes, position: int) -> tuple[int, Frame] | None:
    """Return the end and the content of a whole frame at `position`, None when there is none."""
    if len(data) - position < _FRAME.size:
        return None
    magic, crc, length, first_version, count = _FRAME.unpack_from(data, position)
    end = position + _FRAME.size + length
    if magic != FRAME_MAGIC or end > len(data):
        return None
    if _frame_crc(position, memoryview(data)[position:end]) != crc:
        return None
    commands = []
    at = position + _FRAME.size
    for _ in range(count):
        if end - at < _LENGTH.size:
            return None
        (command_length,) = _LENGTH.unpack_from(data, at)
        at += _LENGTH.size
        if end - at < command_length:
            return None
        commands.append(data[at : at + command_length])
        at += command_length
    return (
        (end, Frame(first_version=first_version, commands=tuple(commands))) if at == end else None
    )


def _expect_no_frame_behind(data: bytes, position: int) -> None:
    """Raise when a whole frame lies behind `position`: then the bytes there were once good."""
    at = data.find(FRAME_MAGIC, position + 1)
    while at >= 0:
        if _frame_at(data, at) is not None:
            raise MalformedError(
                f"it is corrupt at {position}: a good frame follows at {at}, so this is no torn end"
            )
        at = data.find(FRAME_MAGIC, at + 1)
