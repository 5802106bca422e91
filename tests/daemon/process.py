"""`dlogd` as a process, with a service manager that listens: for tests of the daemon."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

PATIENCE_S = 30.0


def environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return our environment without what configures dlogd or dlogctl."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("DLOG_")}
    return {**kept, "XDG_CONFIG_HOME": "/no/contexts/here", **(extra or {})}


def heed_interrupts() -> None:
    """Let SIGINT have its effect in a child (`preexec_fn`).

    Whoever starts the tests may have it ignored, as a script does for what it runs with `&`.
    """
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def wait_until(condition: Callable[[], bool]) -> None:
    """Return when a condition holds; fail when it does not in PATIENCE_S."""
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def run_to_end(*arguments: str, env: Mapping[str, str] | None = None) -> tuple[int, str, str]:
    """Run `dlogd` until it ends by itself; return exit code, standard output and error."""
    done = subprocess.run(
        [sys.executable, "-m", "dlogd", *arguments],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
        env=environment(env),
    )
    return done.returncode, done.stdout, done.stderr


class DaemonProcess:
    """One node in `folder`; its processes come and go, data and log stay."""

    def __init__(self, folder: Path, config: str = "") -> None:
        self.folder = folder
        self.config_path = folder / "dlog.yaml"
        self.log_path = folder / "dlogd.log"
        self.module = "dlogd"
        self.program: Path | None = None
        """Started instead of the module, when it is set."""
        self.messages: list[str] = []
        self.address = f"\0dlog-test-{os.getpid()}-{folder.name}-{id(self)}"
        self._manager = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._manager.bind(self.address)
        self.process: subprocess.Popen[bytes] | None = None
        (folder / "data").mkdir(parents=True, exist_ok=True)
        self.write_config(config)

    def write_config(self, config: str) -> None:
        """Write the configuration: free ports, a folder of its own, and `config`."""
        self.config_path.write_text(
            'listeners: ["127.0.0.1:0"]\nhttp.address: 127.0.0.1:0\n'
            f"data.directories: [{json.dumps(str(self.folder / 'data'))}]\n{config}"
        )

    def use_directories(self, *directories: Path, config: str = "") -> None:
        """Write the configuration with these data directories, the metadata not in one of them."""
        self.config_path.write_text(
            'listeners: ["127.0.0.1:0"]\nhttp.address: 127.0.0.1:0\n'
            f"data.directories: [{', '.join(map(str, directories))}]\n"
            f"metadata.directory: {self.folder / 'meta'}\n{config}"
        )

    def start(self, *, wait: bool = True, env: Mapping[str, str] | None = None) -> None:
        """Start the process and, unless told otherwise, wait until it is ready."""
        self.messages.clear()
        notify = {"NOTIFY_SOCKET": "@" + self.address[1:], **(env or {})}
        named = [sys.executable, "-m", self.module] if self.program is None else [str(self.program)]
        with self.log_path.open("ab") as log:
            self.process = subprocess.Popen(
                [*named, "--config", str(self.config_path)],
                stdout=log,
                stderr=log,
                env=environment(notify),
                preexec_fn=heed_interrupts,
            )
        if wait:
            self.wait_message("READY=1")

    @property
    def log(self) -> str:
        """Everything that all processes have said."""
        return self.log_path.read_text()

    def wait_message(self, start: str) -> str:
        """Return the first message to the service manager that begins so, from now on or before."""
        deadline = time.monotonic() + PATIENCE_S
        while True:
            for message in self.messages:
                if message.startswith(start):
                    return message
            ended = self.process is not None and self.process.poll() is not None
            if not self.read_message():
                in_time = time.monotonic() < deadline
                assert in_time and not ended, f"no {start}:\n{self.log[-3000:]}"

    def read_message(self) -> bool:
        """Take the next message to the service manager; False when none comes soon."""
        self._manager.settimeout(0.2)
        try:
            self.messages.append(self._manager.recv(4096).decode())
        except TimeoutError:
            return False
        return True

    def field(self, name: str) -> str:
        """Return a field of the READY message."""
        lines = self.wait_message("READY=1").splitlines()
        return dict(line.split("=", 1) for line in lines)[name]

    def get(self, path: str) -> tuple[int, str]:
        """Return status and body of a page."""
        url = f"http://{self.field('X_DLOG_HTTP')}{path}"
        try:
            with urllib.request.urlopen(url, timeout=PATIENCE_S) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def metrics(self) -> str:
        """Return /metrics as computed since the call began: a page lasts a second."""
        kept = found = self.get("/metrics")[1]
        while found == kept:  # the process's own times differ from page to page
            time.sleep(0.02)
            found = self.get("/metrics")[1]
        return found

    def status(self) -> Any:
        """Return /status."""
        return json.loads(self.get("/status")[1])

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the process."""
        assert self.process is not None
        self.process.send_signal(number)

    def wait(self) -> int:
        """Return the exit code when the process has ended."""
        assert self.process is not None
        return self.process.wait(PATIENCE_S)

    def stop(self) -> int:
        """Stop cleanly; return the exit code."""
        self.signal(signal.SIGTERM)
        return self.wait()

    def close(self) -> None:
        """End whatever runs."""
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        self._manager.close()


@contextlib.contextmanager
def daemon(folder: Path, config: str = "") -> Iterator[DaemonProcess]:
    """Give a node whose process has not been started."""
    process = DaemonProcess(folder, config)
    try:
        yield process
    finally:
        process.close()


@contextlib.contextmanager
def running_daemon(folder: Path, config: str = "") -> Iterator[DaemonProcess]:
    """Give a started one."""
    with daemon(folder, config) as process:
        process.start()
        yield process
