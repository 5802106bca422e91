"""`dlogctl sandbox` run by another program: the demo, the tests of the clients."""

import contextlib
import ctypes
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

DLOGCTL = Path(sys.executable).with_name("dlogctl")
READY = re.compile(r"(?:ready|restarted) bootstrap=(\S+) pids=(\S+)")
START_S = 60
STOP_S = 30

_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None, use_errno=True)


class SandboxError(Exception):
    """The sandbox did not start; the message has the end of its logs."""


@dataclass(slots=True)
class Sandbox:
    """A running sandbox: `pids` by node, kept up to date by `restart`."""

    folder: Path
    bootstrap: str
    pids: dict[int, int]

    def restart(self, node: int) -> None:
        """Start `node` again after it was killed; returns when it serves."""
        command = [str(DLOGCTL), "sandbox", "restart", str(node), "--dir", str(self.folder)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=START_S)
        found = READY.search(done.stdout)
        if found is None:
            raise SandboxError(f"{done.stdout}{done.stderr}{log_tails(self.folder)}")
        self.pids = _pids(found[2])


def _end_with_parent() -> None:
    """Run in the child: whoever is killed leaves no sandbox behind."""
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGINT)


def log_tails(folder: Path) -> str:
    """Return the end of every log below `folder`."""
    return "".join(
        f"\n{path}:\n{path.read_text(errors='replace')[-4000:]}"
        for path in sorted(folder.rglob("dlogd.log"))
    )


def _pids(text: str) -> dict[int, int]:
    pairs = (pair.split(":") for pair in text.split(","))
    return {int(node): int(pid) for node, pid in pairs}


def _wait_ready(process: "subprocess.Popen[str]", folder: Path) -> Sandbox:
    assert process.stdout is not None
    end = time.monotonic() + START_S
    while time.monotonic() < end:
        if not select.select([process.stdout], [], [], 0.5)[0]:
            continue
        line = process.stdout.readline()
        found = READY.search(line)
        if found:
            return Sandbox(folder, found[1], _pids(found[2]))
        if not line:
            break
    raise SandboxError(f"the sandbox did not become ready{log_tails(folder)}")


@contextlib.contextmanager
def running_sandbox(
    folder: Path,
    nodes: int = 1,
    overrides: Mapping[str, str] | None = None,
    *,
    is_quiet: bool = False,
) -> Iterator[Sandbox]:
    """Run a sandbox in `folder` on free ports and stop it at the end."""
    arguments = ["--nodes", str(nodes), "--dir", str(folder), "--port", "0"]
    for key, value in (overrides or {}).items():
        arguments += ["--config-override", f"{key}={value}"]
    # A session of its own: Ctrl-C reaches it through us, after we are done with it.
    with subprocess.Popen(
        [str(DLOGCTL), "sandbox", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL if is_quiet else None,
        text=True,
        start_new_session=True,
        preexec_fn=_end_with_parent,
    ) as process:
        try:
            yield _wait_ready(process, folder)
        finally:
            process.send_signal(signal.SIGINT)
            try:
                process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()
                raise
