"""Journal of systemd: systemd-python where installed, the native protocol otherwise.

    field         = name "=" value "\n"                             value without line feed
                  | name "\n" u64 little-endian length value "\n"  any value
    datagram      = field *field

https://systemd.io/JOURNAL_NATIVE_PROTOCOL. Never blocks: a full queue loses the entry. Called by
`dlogd.runtime.logging_setup`.
"""

import errno
import importlib
import select
import socket
import struct
from collections.abc import Callable
from typing import Any

JOURNAL_ADDRESS = "/run/systemd/journal/socket"
VALUE_CHARS_MAX = 16 * 1024  # after journald refused an entry for its size

Fields = list[tuple[str, str]]
Send = Callable[[Fields], bool]


def encode_fields(fields: Fields) -> bytes:
    """Encode one entry of the native protocol."""
    encoded = bytearray()
    for name, text in fields:
        value = text.encode("utf-8", "backslashreplace")
        encoded += name.encode("ascii")
        if b"\n" in value:
            encoded += b"\n" + struct.pack("<Q", len(value)) + value
        else:
            encoded += b"=" + value
        encoded += b"\n"
    return bytes(encoded)


class NativeJournal:
    """A connected, non-blocking datagram socket to journald; connects again after its restart."""

    def __init__(self, address: str) -> None:
        """Connect; raise OSError where no journald listens."""
        self._address = address
        self._socket = self._connect()

    def _connect(self) -> socket.socket:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        connection.setblocking(False)
        try:
            connection.connect(self._address)
        except OSError:
            connection.close()
            raise
        return connection

    @property
    def writable(self) -> bool:
        """Whether an entry would be taken now."""
        poll = select.poll()
        poll.register(self._socket, select.POLLOUT)
        return any(events & select.POLLOUT for _, events in poll.poll(0))

    def send(self, fields: Fields) -> bool:
        """Send one entry; False when it was lost."""
        try:
            self._socket.send(encode_fields(fields))
        except BlockingIOError:
            return False
        except OSError as error:
            if error.errno == errno.EMSGSIZE:
                return self._send_short(fields)
            return self._send_again(fields)
        return True

    def _send_short(self, fields: Fields) -> bool:
        cut = [(name, value[:VALUE_CHARS_MAX]) for name, value in fields]
        try:
            self._socket.send(encode_fields(cut))
        except OSError:
            return False
        return True

    def _send_again(self, fields: Fields) -> bool:
        """Connect anew: journald was restarted."""
        try:
            fresh = self._connect()
        except OSError:
            return False
        self._socket.close()
        self._socket = fresh
        try:
            self._socket.send(encode_fields(fields))
        except OSError:
            return False
        return True


class LibsystemdJournal:
    """Entries by libsystemd, which blocks when journald is slow: so it is asked first."""

    def __init__(self, sendv: Callable[..., Any], guard: NativeJournal) -> None:
        self._sendv = sendv
        self._guard = guard

    def send(self, fields: Fields) -> bool:
        """Send one entry; False when it was lost."""
        if not self._guard.writable:
            return False
        self._sendv(*(f"{name}={value}" for name, value in fields))
        return True


def open_journal(address: str = JOURNAL_ADDRESS) -> Send:
    """Return how to send entries; raise OSError where no journald listens."""
    native = NativeJournal(address)
    if address != JOURNAL_ADDRESS:
        return native.send
    try:
        libsystemd = importlib.import_module("systemd.journal")
    except ImportError:
        return native.send
    return LibsystemdJournal(libsystemd.sendv, native).send
