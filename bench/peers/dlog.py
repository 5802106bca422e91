"""dlogd itself: one node at its defaults, but for addresses and folders."""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from bench.peers.server import Server

DLOGD = Path(sys.executable).with_name("dlogd")


class DlogServer(Server):
    """One dlogd; `overrides` are configuration keys, `daemon` is another version's program."""

    name = "dlog"

    def __init__(
        self,
        folder: Path,
        port: int | None = None,
        overrides: dict[str, str] | None = None,
        daemon: Path = DLOGD,
    ) -> None:
        super().__init__(folder, port)
        self._overrides, self._daemon = overrides or {}, daemon

    def prepare(self) -> None:
        """Write the configuration."""
        keys = {
            "listeners": f'["{self.bootstrap}"]',
            "http.address": "127.0.0.1:0",
            "data.directories": f'["{self.folder / "data"}"]',
            "log.format": "text",
            # All clients share one address.
            "connections.per_ip.max": "10000",
            **self._overrides,
        }
        text = "".join(f"{key}: {value}\n" for key, value in keys.items())
        (self.folder / "dlog.yaml").write_text(text)
        (self.folder / "data").mkdir(exist_ok=True)

    def command(self) -> Sequence[str]:
        """Return the command line."""
        return [str(self._daemon), "--config", str(self.folder / "dlog.yaml")]


class CheckingDlogServer(DlogServer):
    """One dlogd whose topics have compressed records checked before the append."""

    topic_configs_alone: Mapping[str, str] = {"compressed.records.validate": "true"}
