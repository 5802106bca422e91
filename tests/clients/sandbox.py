"""`dlogctl sandbox` as a test's server."""

import contextlib
import re
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

DLOGCTL = Path(sys.executable).with_name("dlogctl")
READY = re.compile(r"ready bootstrap=(\S+) pids=(\S+)")
START_S = 60


@dataclass(frozen=True, slots=True)
class Sandbox:
    """A running sandbox: `pids` by node."""

    bootstrap: str
    pids: Mapping[int, int]


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _wait_ready(process: "subprocess.Popen[str]", folder: Path) -> Sandbox:
    assert process.stdout is not None
    end = time.monotonic() + START_S
    while time.monotonic() < end:
        if not select.select([process.stdout], [], [], 0.5)[0]:
            continue
        line = process.stdout.readline()
        found = READY.search(line)
        if found:
            pids = (pair.split(":") for pair in found[2].split(","))
            return Sandbox(found[1], {int(node): int(pid) for node, pid in pids})
        if not line:
            break
    logs = "\n".join(path.read_text(errors="replace")[-3000:] for path in folder.rglob("*.log"))
    raise AssertionError(f"the sandbox did not become ready: {process.poll()}\n{logs[-6000:]}")


@contextlib.contextmanager
def running_sandbox(
    folder: Path, nodes: int = 1, overrides: Mapping[str, str] | None = None
) -> Iterator[Sandbox]:
    """Run a sandbox in `folder` and stop it at the end; a stop that fails fails the test."""
    arguments = ["--nodes", str(nodes), "--dir", str(folder), "--port", str(_free_port())]
    for key, value in (overrides or {}).items():
        arguments += ["--config-override", f"{key}={value}"]
    with subprocess.Popen(
        [str(DLOGCTL), "sandbox", *arguments], stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            yield _wait_ready(process, folder)
        finally:
            process.send_signal(signal.SIGINT)
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                raise
