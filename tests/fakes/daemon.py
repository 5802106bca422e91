"""Plays `dlogd` for the sandbox: reads its port from the configuration, says READY, waits.

`retention.check.interval` of the configuration chooses what it does: `1s` serve, `2s` fail at the
start, `3s` end with code 3 when stopped.
"""

import os
import re
import signal
import socket
import sys
from pathlib import Path


def main() -> int:
    """Serve nothing until SIGTERM."""
    text = Path(sys.argv[sys.argv.index("--config") + 1]).read_text(encoding="utf-8")
    found = re.search(r"^retention.check.interval: (\d)s$", text, re.MULTILINE)
    behaviour = found[1] if found else "1"
    print(f"Started pid={os.getpid()} env={sorted(k for k in os.environ if 'DLOG' in k)}")
    sys.stdout.flush()
    if behaviour == "2":
        print("Start failed error='the disk is gone'")
        return 78
    received = []
    signal.signal(signal.SIGTERM, lambda number, _frame: received.append(number))
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    address = os.environ["NOTIFY_SOCKET"]
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notify:
        for message in ("STATUS=recovering", "READY=1\nX_DLOG_HTTP=127.0.0.1:7"):
            notify.sendto(message.encode(), "\0" + address[1:])
    signal.sigwait({signal.SIGTERM})
    print("Stopped")
    return 3 if behaviour == "3" else 0


if __name__ == "__main__":
    sys.exit(main())
