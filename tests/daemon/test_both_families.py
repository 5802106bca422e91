"""A real `dlogd` at `[::]`, reached by IPv4, IPv6 and a name with a final dot."""

import contextlib
import json
import socket
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from dlog.client.blocking import BlockingClient
from dlog.client.cluster.bootstrap import parse_bootstrap
from tests.daemon.process import PATIENCE_S, DaemonProcess, run_to_end

CONFIG = 'listeners: ["[::]:0"]\nhttp.address: "[::]:0"\nadvertised.address: localhost.\n'


class AnyDaemon(DaemonProcess):
    """A node that listens on every interface."""

    def write_config(self, config: str) -> None:
        """Write the configuration without the addresses of other tests."""
        directory = json.dumps(str(self.folder / "data"))
        self.config_path.write_text(f"data.directories: [{directory}]\n{config}")


@pytest.fixture
def dotted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let `localhost.` be found, as a name server does: /etc/hosts has no final dots."""
    find = socket.getaddrinfo

    def found(host: str, *arguments: Any, **named: Any) -> Any:
        return find("localhost" if host == "localhost." else host, *arguments, **named)

    monkeypatch.setattr(socket, "getaddrinfo", found)


@pytest.mark.usefixtures("dotted")
def test_clients_and_operators_reach_every_address(tmp_path: Path) -> None:
    with contextlib.closing(AnyDaemon(tmp_path, CONFIG)) as node:
        node.start()
        (told,) = node.status()["listeners"]
        port = told.rpartition(":")[2]
        for host in ("127.0.0.1", "[::1]", "localhost."):
            bootstrap = parse_bootstrap(f"PLAINTEXT://{host}:{port}")
            with BlockingClient(bootstrap) as client:
                (view,) = client.run(client.admin.describe_cluster).nodes.values()
                assert str(view.address) == f"localhost.:{port}"
        http_port = node.field("X_DLOG_HTTP").rpartition(":")[2]
        for host in ("127.0.0.1", "[::1]"):
            with urllib.request.urlopen(
                f"http://{host}:{http_port}/livez", timeout=PATIENCE_S
            ) as answer:
                assert answer.status == 200


def test_ipv4_and_ipv6_wildcards_of_one_port_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "dlog.yaml"
    path.write_text('listeners: ["[::]:9092", "0.0.0.0:9092"]\nadvertised.address: localhost.\n')
    code, told, error = run_to_end("--config", str(path))
    assert code != 0
    assert "[::] takes IPv4, too. Remove 0.0.0.0:9092" in told + error
