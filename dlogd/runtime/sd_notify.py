"""Notifications to systemd: the sd_notify protocol, without libsystemd.

One datagram per message, never blocking: when nobody reads, STATUS and WATCHDOG are dropped, while
what changes the state of the unit (READY, RELOADING, STOPPING) is kept and goes out before the next
message. Called by `dlogd.__main__` only. Protocol: sd_notify(3), sd_watchdog_enabled(3).
"""

import socket
from collections import deque
from collections.abc import Mapping

PENDING_MAX = 8


def watchdog_interval_ms(environ: Mapping[str, str], pid: int) -> int | None:
    """Return the time within which the manager wants WATCHDOG=1, or None when it does not."""
    if environ.get("WATCHDOG_PID", str(pid)) != str(pid):
        return None
    try:
        interval_us = int(environ.get("WATCHDOG_USEC", ""))
    except ValueError:
        return None
    return max(1, interval_us // 1000) if interval_us > 0 else None


def _socket_address(text: str | None) -> str | None:
    if not text or text[0] not in "/@":
        return None
    return "\0" + text[1:] if text[0] == "@" else text


class Notifier:
    """Sends unit state to NOTIFY_SOCKET; does nothing where there is none.

    Owner: the event loop's thread. Life: until `close`.
    """

    def __init__(self, address: str | None) -> None:
        self._address = _socket_address(address)
        self._socket: socket.socket | None = None
        self._pending: deque[bytes] = deque(maxlen=PENDING_MAX)
        self.dropped_count = 0

    @property
    def enabled(self) -> bool:
        """Whether a service manager listens."""
        return self._address is not None

    def ready(self, status: str, **fields: str) -> None:
        """Tell that start-up or a reload has ended; `fields` travel as `X_DLOG_<NAME>=`."""
        extra = "".join(f"\nX_DLOG_{name.upper()}={value}" for name, value in fields.items())
        self._send_state(f"READY=1\nSTATUS={status}{extra}")

    def reloading(self, now_us: int) -> None:
        """Tell that a reload begins; `now_us` is CLOCK_MONOTONIC. `ready` must follow."""
        self._send_state(f"RELOADING=1\nMONOTONIC_USEC={now_us}")

    def stopping(self, status: str) -> None:
        """Tell that the shutdown begins."""
        self._send_state(f"STOPPING=1\nSTATUS={status}")

    def status(self, text: str) -> bool:
        """Show one line in `systemctl status`; False when it was dropped."""
        return self._send_lossy(f"STATUS={text}")

    def watchdog(self) -> bool:
        """Tell that the event loop still turns; False when it was dropped."""
        return self._send_lossy("WATCHDOG=1")

    def extend_timeout(self, timeout_ms: int) -> bool:
        """Ask for that much more time to start or to stop; False when it was dropped."""
        return self._send_lossy(f"EXTEND_TIMEOUT_USEC={timeout_ms * 1000}")

    def close(self) -> None:
        """Give the socket back, after one last try for what is pending. Idempotent."""
        self._flush()
        if self._socket is not None:
            self._socket.close()
        self._socket = None
        self._address = None

    def _send_state(self, message: str) -> None:
        if self._address is not None:
            self._pending.append(message.encode())
            self._flush()

    def _send_lossy(self, message: str) -> bool:
        if self._address is None:
            return False
        sent = self._flush() and self._try_send(message.encode())
        if not sent:
            self.dropped_count += 1
        return sent

    def _flush(self) -> bool:
        """Send what is pending, in order; return whether nothing is left."""
        while self._pending:
            if not self._try_send(self._pending[0]):
                return False
            self._pending.popleft()
        return True

    def _try_send(self, message: bytes) -> bool:
        if self._address is None:
            return False
        try:
            if self._socket is None:
                self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
                self._socket.setblocking(False)
            self._socket.sendto(message, self._address)
        except OSError:
            # EAGAIN when the manager's queue is full, ENOENT or ECONNREFUSED while it restarts:
            # none of them may hold up or end the daemon.
            return False
        return True
