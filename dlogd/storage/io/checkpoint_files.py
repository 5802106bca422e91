"""Small files that are replaced as a whole: identity, node epoch, clean-shutdown marker, others.

    dlog <kind> <version> <bytes of the payload> <crc32c, 8 hex digits>\n
    payload: lines of text, each ended by \n

The CRC covers `<kind> <version> <bytes>\n` and the payload. Text, so that an operator can read
them; docs/formats/small-files.md. All functions with a directory block: call them by `Engine.run`.
"""

import errno
import re
from collections.abc import Mapping
from dataclasses import dataclass
from uuid import UUID

from dlog.checksum import crc32c
from dlog.errors import ConfigError, DlogError
from dlog.types import NodeId, Offset
from dlogd.storage.io.errnos import NO_SPACE
from dlogd.storage.io.files import Directory

IDENTITY = "identity"
CLEAN_SHUTDOWN = "clean-shutdown"
HIGH_WATERMARKS = "high-watermarks"
PROMISED_OFFSETS = "promised-offsets"
METADATA_VERSION = "metadata-version"
LIFE = "life"
VERSION = 1

SIZE_MAX = 64 * 1024 * 1024
"""No small file is larger, bytes: what is larger is not one of ours."""

_HEAD = re.compile(rb"dlog ([a-z-]{1,32}) ([0-9]{1,9}) ([0-9]{1,9}) ([0-9a-f]{8})\n")
TEMPORARY = ".tmp"


class MalformedFileError(DlogError):
    """A small file is damaged, of another kind, or of a version that is not known."""


# -- bytes


def encode(kind: str, payload: str, version: int = VERSION) -> bytes:
    """Return the bytes of a small file."""
    body = payload.encode()
    head = f"{kind} {version} {len(body)}"
    crc = crc32c(body, crc32c(f"{head}\n".encode()))
    return f"dlog {head} {crc:08x}\n".encode() + body


def decode(kind: str, data: bytes) -> str:
    """Return the payload; raise MalformedFileError for any other bytes."""
    head = _HEAD.match(data)
    if head is None:
        raise MalformedFileError(f"not a {kind} file of dlog")
    found, version, size = head[1].decode(), int(head[2]), int(head[3])
    body = data[head.end() :]
    if len(body) != size:
        raise MalformedFileError(f"{found} file has {len(body)} bytes of payload, not {size}")
    if crc32c(body, crc32c(b"%s %s %s\n" % head.group(1, 2, 3))) != int(head[4], 16):
        raise MalformedFileError(f"{found} file does not match its checksum")
    if found != kind:
        raise MalformedFileError(f"{found} file in the place of {kind}")
    if version != VERSION:
        raise MalformedFileError(f"{kind} file has version {version}, known is {VERSION}")
    try:
        return body.decode()
    except UnicodeDecodeError as error:
        raise MalformedFileError(f"{kind} file is not text") from error


# -- files


def replace_file(directory: Directory, name: str, data: bytes) -> None:
    """Replace `name` atomically; on return the new content is on stable storage."""
    temporary = name + TEMPORARY
    if directory.exists(temporary):
        # Of an interrupted attempt; a new inode, in case its fsync has failed.
        directory.unlink(temporary)
    file = directory.open(temporary, create=True)
    try:
        file.pwrite(data, 0)
        file.sync()
    finally:
        file.close()
    directory.rename(temporary, name)
    directory.sync()


def load_file(directory: Directory, name: str, size_max: int = SIZE_MAX) -> bytes | None:
    """Return the content of `name`, None when it does not exist.

    Raises MalformedFileError when it has more than `size_max` bytes, or is a link to nowhere.
    """
    if not directory.exists(name):
        return None
    try:
        file = directory.open(name, read_only=True)
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ELOOP):
            raise MalformedFileError("it is a link that leads nowhere") from error
        raise
    try:
        size = file.size()
        if size > size_max:
            raise MalformedFileError(f"{file.path} has {size} bytes, at most {size_max} expected")
        return file.pread(size, 0)
    finally:
        file.close()


def load_own(directory: Directory, name: str) -> bytes | None:
    """Do as `load_file` for a file of a data directory; raise ConfigError for a directory there.

    Nothing could be saved in its place later, and it is somebody else's.
    """
    try:
        return load_file(directory, name)
    except IsADirectoryError as error:
        raise ConfigError(
            f"{directory.path}/{name} is a directory, where a file of dlogd belongs: move it away,"
            " and restore the file if there was one"
        ) from error


def remove_file(directory: Directory, name: str) -> None:
    """Remove `name` if it is there; on return that is on stable storage."""
    if directory.exists(name):
        directory.unlink(name)
        directory.sync()


# -- identity


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """Whose data directory this is; `directory_id` changes when a disk is replaced (KIP-858)."""

    cluster_id: str
    node_id: NodeId
    directory_id: UUID


def encode_identity(identity: Identity) -> bytes:
    """Return the bytes of an identity file."""
    return encode(
        IDENTITY,
        f"cluster_id={identity.cluster_id}\n"
        f"node_id={identity.node_id}\n"
        f"directory_id={identity.directory_id}\n",
    )


def decode_identity(data: bytes) -> Identity:
    """Parse an identity file; raise MalformedFileError."""
    fields = dict(line.partition("=")[::2] for line in decode(IDENTITY, data).splitlines())
    try:
        return Identity(
            cluster_id=fields["cluster_id"],
            node_id=NodeId(int(fields["node_id"])),
            directory_id=UUID(fields["directory_id"]),
        )
    except (KeyError, ValueError) as error:
        raise MalformedFileError(f"{IDENTITY} file lacks or garbles a field: {error}") from error


# -- life


@dataclass(frozen=True, slots=True, kw_only=True)
class Incarnation:
    """Which life of its node used a directory last, and which registration was under way then."""

    node_epoch: int | None = None
    registering: UUID | None = None  # the id of a command that may have begun a later life


def encode_life(life: Incarnation) -> bytes:
    """Return the bytes of a life file."""
    lines = []
    if life.node_epoch is not None:
        lines.append(f"node_epoch={life.node_epoch}\n")
    if life.registering is not None:
        lines.append(f"registering={life.registering}\n")
    return encode(LIFE, "".join(lines))


def decode_life(data: bytes) -> Incarnation:
    """Parse a life file; raise MalformedFileError."""
    fields = dict(line.partition("=")[::2] for line in decode(LIFE, data).splitlines())
    try:
        epoch, registering = fields.get("node_epoch"), fields.get("registering")
        return Incarnation(
            node_epoch=None if epoch is None else int(epoch),
            registering=None if registering is None else UUID(registering),
        )
    except ValueError as error:
        raise MalformedFileError(f"{LIFE} file garbles a field: {error}") from error


def save_life(directory: Directory, life: Incarnation) -> None:
    """Replace the note of the life; on a full disk overwrite it, which needs no space.

    Without it a partition that is only here would have no leader after a start on a full disk. One
    that a power cut garbles meanwhile proves as little as none.
    """
    data = encode_life(life)
    try:
        replace_file(directory, LIFE, data)
        return
    except OSError as error:
        if error.errno not in NO_SPACE or not directory.exists(LIFE):
            raise
    file = directory.open(LIFE)
    try:
        file.pwrite(data, 0)
        file.truncate(len(data))
        file.sync()
    finally:
        file.close()


# -- the metadata's version


def encode_metadata_version(version: int) -> bytes:
    """Return the bytes of the note of a metadata version that was reached."""
    return encode(METADATA_VERSION, f"{version}\n")


def decode_metadata_version(data: bytes) -> int:
    """Parse the note of a metadata version; raise MalformedFileError."""
    text = decode(METADATA_VERSION, data).strip()
    if not text.isdecimal() or len(text) > 20:
        raise MalformedFileError(f"{METADATA_VERSION} file has a line {text!r}")
    return int(text)


# -- offsets of many logs, by the names of their directories


def encode_offsets(kind: str, offsets: Mapping[str, Offset]) -> bytes:
    """Return the bytes of a file with one offset per log directory."""
    return encode(kind, "".join(f"{offset} {name}\n" for name, offset in sorted(offsets.items())))


def decode_offsets(kind: str, data: bytes) -> dict[str, Offset]:
    """Parse a file with one offset per log directory; raise MalformedFileError."""
    offsets: dict[str, Offset] = {}
    for line in decode(kind, data).splitlines():
        offset, _, name = line.partition(" ")
        if not offset.isdecimal() or not name:
            raise MalformedFileError(f"{kind} file has a line {line!r}")
        offsets[name] = Offset(int(offset))
    return offsets
