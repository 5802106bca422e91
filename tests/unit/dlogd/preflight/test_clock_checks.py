"""Clock of a host, compared with that of nodes that run: real HTTP servers tell the time."""

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from dlogd.config.load import load_config
from dlogd.config.schema import Config
from dlogd.preflight import clock_checks
from dlogd.preflight.clock_checks import others, problems


@contextmanager
def node(document: object) -> Iterator[int]:
    """A node that answers every request with this; `ahead_s` in it becomes a time."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            told = document
            if isinstance(document, dict) and "ahead_s" in document:
                told = {"time_ms": (time.time() + document["ahead_s"]) * 1000}
            body = json.dumps(told).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def config(port: int) -> Config:
    return load_config(
        f"""
        node.id: 2
        cluster.id: c
        cluster.secret.file: /nowhere/secret
        controllers: ["1@127.0.0.1:1", "2@127.0.0.2:1", "3@127.0.0.1:2"]
        membership.peers: ["1@127.0.0.1:3", "4@127.0.0.1:4"]
        internal.listener: 127.0.0.1:5
        http.address: 127.0.0.1:{port}
        """
    )


def test_every_other_host_is_asked_once() -> None:
    assert [(each.host, each.port) for each in others(config(9644))] == [("127.0.0.1", 9644)]
    assert list(problems(Config())) == []


@pytest.mark.parametrize(
    ("ahead_s", "words"),
    [(9.0, "9.0 s behind that of 127.0.0.1"), (-90.0, "90.0 s ahead of that of 127.0.0.1")],
)
def test_another_time_is_told(ahead_s: float, words: str) -> None:
    with node({"ahead_s": ahead_s}) as port:
        (found,) = problems(config(port))
    assert words in found.text


@pytest.mark.parametrize("document", [{"ahead_s": 0.5}, {}, [], {"time_ms": "noon"}, None])
def test_nodes_in_step_and_nodes_that_do_not_tell_are_no_finding(document: object) -> None:
    with node(document) as port:
        assert list(problems(config(port))) == []


def test_nodes_that_are_down_are_no_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clock_checks, "PATIENCE_S", 0.1)
    with node({}) as port:
        pass
    assert list(problems(config(port))) == []
