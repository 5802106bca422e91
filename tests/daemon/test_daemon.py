"""A real `dlogd`: start, serve, reload, stop; what it refuses; what it says."""

import json
import os
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from dlog.version import VERSION
from tests.daemon.one_partition import append, read_all
from tests.daemon.process import DaemonProcess, daemon, run_to_end
from tests.daemon.raw import client_of


@pytest.fixture
def node(tmp_path: Path) -> Iterator[DaemonProcess]:
    with daemon(tmp_path) as process:
        yield process


def test_it_serves_survives_a_kill_and_stops_cleanly(node: DaemonProcess) -> None:
    node.start()
    with client_of(node) as client:
        client.run(lambda: client.admin.create_topic("t", partitions=1))
        assert [append(client, b"one"), append(client, b"two")] == [0, 1]
        assert read_all(client) == [b"one", b"two"]
    node.signal(signal.SIGKILL)
    assert node.wait() == -signal.SIGKILL
    node.start()
    with client_of(node) as client:
        assert append(client, b"three") == 2
        assert read_all(client) == [b"one", b"two", b"three"]
    assert node.stop() == 0
    assert node.wait_message("STOPPING=1")
    node.start()
    with client_of(node) as client:
        assert read_all(client) == [b"one", b"two", b"three"]
    assert node.stop() == 0
    assert "Traceback" not in node.log
    assert " ERROR " not in node.log


def test_its_pages(node: DaemonProcess) -> None:
    node.start()
    assert node.get("/livez") == (200, "live\n")
    assert node.get("/readyz") == (200, "ready\n")
    assert node.get("/nothing")[0] == 404
    status = node.status()
    assert (status["version"], status["node_id"], status["state"]) == (VERSION, 1, "active")
    assert status["healthy"]
    assert abs(status["started_at_ms"] / 1000 - time.time()) < 60
    assert status["config"]["waiting_keys"] == []
    code, metrics = node.get("/metrics")
    assert code == 200
    assert "dlog_node_ready 1.0\n" in metrics
    assert "process_resident_memory_bytes" in metrics
    assert "dlog_loop_delay_seconds_bucket" in metrics


def test_a_reload_takes_effect_and_tells_what_did_not(node: DaemonProcess) -> None:
    node.start()
    node.messages.clear()
    node.write_config("log.level: warning\nack.floor: all\nnode.rack: r9\n")
    node.signal(signal.SIGHUP)
    assert "MONOTONIC_USEC=" in node.wait_message("RELOADING=1")
    node.wait_message("READY=1")
    config = node.status()["config"]
    assert config["waiting_keys"] == ["node.rack"]
    node.write_config("log.level: loud\n")
    node.messages.clear()
    node.signal(signal.SIGHUP)
    node.wait_message("READY=1")
    assert node.stop() == 0
    assert "Key needs a restart key=node.rack running=null file=r9" in node.log
    assert "Configuration refused, nothing changed" in node.log
    # The level is `warning` since the first reload, so its own lines are not there.
    assert "Reloaded key" not in node.log
    assert "Stopped" not in node.log


def test_a_second_signal_changes_nothing(node: DaemonProcess) -> None:
    node.start()
    for _ in range(5):
        node.signal(signal.SIGTERM)
        node.signal(signal.SIGINT)
    assert node.wait() == 0
    node.start()
    assert "scanned_bytes=0" in node.log.rsplit("Opened logs", 1)[1].splitlines()[0]
    assert node.stop() == 0


def test_a_signal_right_after_the_start_ends_cleanly(node: DaemonProcess) -> None:
    for _ in range(3):
        node.start(wait=False)
        node.wait_message("STATUS=")
        assert node.stop() == 0
    node.start()
    assert node.stop() == 0


def test_the_watchdog_is_fed_as_often_as_it_wants(node: DaemonProcess) -> None:
    node.start(env={"WATCHDOG_USEC": "300000"})
    started = time.monotonic()
    for count in range(1, 11):
        while node.messages.count("WATCHDOG=1") < count:
            node.read_message()
    assert 0.7 < time.monotonic() - started < 2
    node.stop()


def test_two_daemons_do_not_share_a_directory(node: DaemonProcess, tmp_path: Path) -> None:
    node.start()
    code, _, error = run_to_end("--config", str(node.config_path))
    assert code == os.EX_TEMPFAIL
    assert "Traceback" not in error
    assert str(tmp_path / "data") in error
    assert node.stop() == 0


def test_a_port_in_use_is_told(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken, daemon(tmp_path) as node:
        port = taken.getsockname()[1]
        for key in (f'listeners: ["127.0.0.1:{port}"]', f"http.address: 127.0.0.1:{port}"):
            name = key.partition(":")[0]
            node.write_config("")
            lines = node.config_path.read_text().splitlines()
            kept = [line for line in lines if not line.startswith(name)]
            node.config_path.write_text("\n".join([*kept, key, ""]))
            code, _, error = run_to_end("--config", str(node.config_path))
            assert code == os.EX_TEMPFAIL, error
            assert "address already in use" in error.lower()
            assert "Traceback" not in error


def test_a_directory_of_another_node_is_refused(node: DaemonProcess) -> None:
    node.start()
    assert node.stop() == 0
    node.write_config("node.id: 2\n")
    code, _, error = run_to_end("--config", str(node.config_path))
    assert code == os.EX_CONFIG, error
    assert "Traceback" not in error
    node.write_config("cluster.id: AAAAAAAAAAAAAAAAAAAAAA\n")
    assert run_to_end("--config", str(node.config_path))[0] == os.EX_CONFIG


def test_json_logs(tmp_path: Path) -> None:
    with daemon(tmp_path, "log.format: json\nlog.level: debug\n") as node:
        node.start()
        assert node.stop() == 0
        entries = [json.loads(line) for line in node.log.splitlines()]
        ready = next(entry for entry in entries if entry["message"].startswith("Ready"))
        assert (ready["level"], ready["fields"]) == ("info", {"node": "1"})


def test_the_command_line(tmp_path: Path) -> None:
    assert run_to_end("--version") == (0, f"dlogd {VERSION}\n", "")
    code, _, error = run_to_end("--nonsense")
    assert (code, "Traceback" in error) == (os.EX_USAGE, False)
    file = tmp_path / "dlog.yaml"
    code, _, error = run_to_end("--config", str(file))
    assert (code, error) == (
        os.EX_CONFIG,
        f"dlogd: {file}: cannot be read: No such file or directory\n",
    )
    file.write_text("node.idd: 1\nflush.policy: sometimes\n")
    code, _, error = run_to_end("--config", str(file), "--check-config")
    assert (code, error.count("\n")) == (os.EX_CONFIG, 2)
    file.write_text("node.id: 7\n")
    assert run_to_end("--config", str(file), "--check-config")[0] == 0
    wrong = {"DLOG_CONFIG": str(file), "DLOG_NODE_ID": "x"}
    assert run_to_end("--check-config", env=wrong)[0] == os.EX_CONFIG


def test_a_disk_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    with daemon(tmp_path) as node:
        (tmp_path / "data").rmdir()
        (tmp_path / "data").write_text("a file, not a directory")
        code, _, error = run_to_end("--config", str(node.config_path))
        assert code != 0
        assert "Traceback" not in error
        assert str(tmp_path / "data") in error
