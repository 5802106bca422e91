"""`dlogd --preflight` as a process: before a start, beside the daemon that runs, and in its way."""

import json
import os
import socket
from pathlib import Path

import pytest

from tests.daemon.process import DaemonProcess, daemon, run_to_end

READY = "dlogd: nothing stands in the way of a start\n"


def preflight(node: DaemonProcess) -> tuple[int, str, str]:
    """Return exit code, output, and the errors but for notes about this machine."""
    code, out, err = run_to_end("--config", str(node.config_path), "--preflight")
    return code, out, "".join(line for line in err.splitlines(True) if ": note: " not in line)


def fixed_ports(node: DaemonProcess) -> int:
    """Write a configuration with ports of its own; return that of clients."""
    with (
        socket.create_server(("127.0.0.1", 0)) as one,
        socket.create_server(("127.0.0.1", 0)) as other,
    ):
        ports = [each.getsockname()[1] for each in (one, other)]
    node.config_path.write_text(
        f'listeners: ["127.0.0.1:{ports[0]}"]\nhttp.address: 127.0.0.1:{ports[1]}\n'
        f"data.directories: [{json.dumps(str(node.folder / 'data'))}]\n"
    )
    return ports[0]


def test_it_says_yes_before_beside_and_after_a_daemon(tmp_path: Path) -> None:
    with daemon(tmp_path) as node:
        fixed_ports(node)
        assert preflight(node) == (os.EX_OK, READY, "")
        assert not any((tmp_path / "data").iterdir())
        node.start()
        assert preflight(node) == (os.EX_OK, READY, "")
        assert node.stop() == 0
        before = sorted(path for path in (tmp_path / "data").rglob("*"))
        assert preflight(node) == (os.EX_OK, READY, "")
        assert sorted(path for path in (tmp_path / "data").rglob("*")) == before


def test_a_port_of_somebody_else_is_for_later(tmp_path: Path) -> None:
    with daemon(tmp_path) as node:
        port = fixed_ports(node)
        with socket.create_server(("127.0.0.1", port)):
            code, out, err = preflight(node)
            assert (code, out) == (os.EX_TEMPFAIL, "")
            assert err.startswith(f"dlogd: later: listeners: port {port} of 127.0.0.1 is in use by")
            node.start(wait=False)
            assert node.wait() == code  # a start ends with the same


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        ("node.id: 2\n", "belongs to node 1, this is node 2"),
        ("listeners: []\n", "listeners"),
        ("flush.polcy: always\n", "flush.policy"),
    ],
)
def test_what_no_start_survives_is_told_with_the_code_of_a_start(
    tmp_path: Path, lines: str, words: str
) -> None:
    with daemon(tmp_path) as node:
        node.start()
        assert node.stop() == 0
        kept = [line for line in node.config_path.read_text().splitlines(True)
                if line.partition(":")[0] != lines.partition(":")[0]]  # fmt: skip
        node.config_path.write_text("".join(kept) + lines)
        code, out, err = preflight(node)
        assert (code, out) == (os.EX_CONFIG, "") and words in err
        node.start(wait=False)
        assert node.wait() == code


def test_wrong_keys_hide_nothing_else(tmp_path: Path) -> None:
    """All wrong keys, and what can be checked without them: here a port that is in use."""
    with daemon(tmp_path) as node:
        port = fixed_ports(node)
        right = node.config_path.read_text()
        wrong = ("flush.polcy: always\n", "log.level: loud\n", "node.rack: [a, b]\n")
        with socket.create_server(("127.0.0.1", port)):
            node.config_path.write_text(right + "".join(wrong))
            code, out, err = preflight(node)
        assert (code, out) == (os.EX_CONFIG, "")
        lines = err.splitlines()
        assert [line.split(": ")[1] for line in lines] == ["never", "never", "never", "later"], err
        for line, key in zip(lines, ("flush.polcy", "log.level", "node.rack"), strict=False):
            assert f": {key}: " in line
        assert f"port {port} of 127.0.0.1 is in use" in lines[3]
        _, _, whole = run_to_end("--config", str(node.config_path), "--preflight")
        assert "note: the checks after this line were made with the default of log.level," in whole
        node.config_path.write_text("listeners: [")
        code, _, err = preflight(node)
        assert code == os.EX_CONFIG and "is no YAML" in err and err.count("\n") == 1
