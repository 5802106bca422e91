"""A server under test as one process: start until it answers, stop, kill, what it costs.

Knows nothing of any one server; `kafka`, `nats` and `dlog` beside it say how theirs is started.
"""

import os
import signal
import socket
import struct
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CACHE = ROOT / ".cache"
HOST = "127.0.0.1"
TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
# ApiVersions v0, correlation id 1, client id "ready".
API_VERSIONS = struct.pack(">ihhih5s", 15, 18, 0, 1, 5, b"ready")


class StartError(Exception):
    """The server cannot be installed here or did not come up; the message says what to do."""


@dataclass(frozen=True, slots=True)
class Usage:
    """What a process has used so far."""

    cpu_seconds: float
    rss_bytes: int
    rss_bytes_max: int


def free_port() -> int:
    """Return a loopback port that nothing listens on now."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port: int = probe.getsockname()[1]
        return port


def usage_of(pid: int) -> Usage:
    """Read CPU time and memory of `pid` from /proc."""
    stat = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    status = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    sizes = dict(
        line.split(":", 1) for line in status.splitlines() if line.startswith(("VmRSS", "VmHWM"))
    )
    kilobytes = {name: int(text.split()[0]) for name, text in sizes.items()}
    return Usage(
        cpu_seconds=(int(stat[11]) + int(stat[12])) / TICKS_PER_SECOND,
        rss_bytes=kilobytes["VmRSS"] * 1024,
        rss_bytes_max=kilobytes["VmHWM"] * 1024,
    )


def answers_kafka(port: int, host: str = HOST) -> bool:
    """Say whether something at `port` answers ApiVersions."""
    try:
        with socket.create_connection((host, port), timeout=1) as connection:
            connection.settimeout(5)
            connection.sendall(API_VERSIONS)
            return len(connection.recv(8)) > 0
    except OSError:
        return False


class Server:
    """One process, its folder and its port. Life: `start`, then `stop` or `kill`, then again."""

    name = "server"
    # Where it is: its address, and what its command line begins with to be there.
    host = HOST
    inside: Sequence[str] = ()
    # How topics are made for load programs.
    replicas = 1
    topic_configs: Mapping[str, str] = {}
    topic_configs_alone: Mapping[str, str] = {}

    def __init__(self, folder: Path, port: int | None = None) -> None:
        self.folder = folder
        self.port = port or free_port()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def bootstrap(self) -> str:
        """The address that clients are given."""
        return f"{self.host}:{self.port}"

    @property
    def pid(self) -> int:
        """The running process."""
        assert self._process is not None, f"{self.name} is not running"
        return self._process.pid

    def install(self) -> None:
        """Fetch what is needed; raise StartError with what to do when that is impossible."""

    def prepare(self) -> None:
        """Write the configuration and whatever the first start needs."""

    def command(self) -> Sequence[str]:
        """Return the command line."""
        raise NotImplementedError

    def environment(self) -> dict[str, str]:
        """Return additional variables."""
        return {}

    def ready(self) -> bool:
        """Say whether the server answers."""
        return answers_kafka(self.port, self.host)

    def launch(self) -> None:
        """Start the process and return at once; its output goes to `output.log`."""
        output = (self.folder / "output.log").open("ab")
        self._process = subprocess.Popen(
            [*self.inside, *self.command()],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd=self.folder,
            env={**os.environ, **self.environment()},
            start_new_session=True,
        )
        output.close()

    def start(self, timeout_s: float = 60) -> None:
        """Install, prepare, start, and wait until it answers."""
        self.install()
        if not self.folder.exists():
            self.folder.mkdir(parents=True)
        self.prepare()
        self.launch()
        self.wait(self.ready, timeout_s)

    def wait(
        self, condition: Callable[[], bool], timeout_s: float, *, every_s: float = 0.002
    ) -> None:
        """Wait until `condition`; raise StartError when the process ends or time is up."""
        assert self._process is not None
        end = time.monotonic() + timeout_s
        while not condition():
            if self._process.poll() is not None or time.monotonic() > end:
                tail = (self.folder / "output.log").read_text(errors="replace")[-2000:]
                self.kill()
                raise StartError(f"{self.name} did not come up in {self.folder}: {tail}")
            time.sleep(every_s)

    def usage(self) -> Usage:
        """Return what the process has used since it started."""
        return usage_of(self.pid)

    def kill(self) -> None:
        """End the process with SIGKILL."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """End the process as an operator would; SIGKILL after 60 s."""
        self._end(signal.SIGTERM)

    def _end(self, number: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.send_signal(number)
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
