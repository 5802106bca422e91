"""NATS with JetStream: one server, file store, flushed always or at its default interval."""

import os
import shutil
import socket
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from bench.peers.server import CACHE, HOST, Server, StartError

PACKAGE = "github.com/nats-io/nats-server/v2@latest"


class NatsRoutes(NamedTuple):
    """A server's place among several: its number, where it meets others, and where all do."""

    number: int
    port: int
    routes: Sequence[str]


class NatsServer(Server):
    """One nats-server; `sync` is its `sync_interval` (None: the default of two minutes)."""

    name = "nats"

    def __init__(
        self,
        folder: Path,
        port: int | None = None,
        sync: str | None = None,
        routes: NatsRoutes | None = None,
    ) -> None:
        super().__init__(folder, port)
        self._sync = sync
        self._routes = routes
        self._program = CACHE / "go" / "bin" / "nats-server"

    def install(self) -> None:
        """Build nats-server through the Go module proxy, once."""
        if self._program.exists():
            return
        if shutil.which("go") is None:
            raise StartError("go is missing, so that NATS cannot be built; its rows are left out")
        environment = {**os.environ, "GOBIN": str(self._program.parent)}
        command = ["go", "install", PACKAGE]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=900)
        if done.returncode:
            raise StartError(f"go install {PACKAGE} failed: {done.stderr[-500:]}")

    def prepare(self) -> None:
        """Write the configuration."""
        sync = f"  sync_interval: {self._sync}\n" if self._sync else ""
        text = (
            f"listen: {self.bootstrap}\n"
            f'jetstream {{\n  store_dir: "{self.folder / "data"}"\n'
            f"  max_file_store: 200GB\n{sync}}}\n"
        )
        if self._routes is not None:
            urls = ", ".join(f'"{route}"' for route in self._routes.routes)
            text += (
                f'server_name: "node-{self._routes.number}"\n'
                f'cluster {{\n  name: "bench"\n  listen: "{HOST}:{self._routes.port}"\n'
                f"  routes: [{urls}]\n}}\n"
            )
        (self.folder / "nats.conf").write_text(text)

    def command(self) -> Sequence[str]:
        """Return the command line."""
        return [str(self._program), "-c", str(self.folder / "nats.conf")]

    def ready(self) -> bool:
        """Say whether the server greets."""
        try:
            with socket.create_connection((HOST, self.port), timeout=1) as connection:
                return connection.recv(4) == b"INFO"
        except OSError:
            return False
