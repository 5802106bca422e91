"""`dlogctl produce`, `consume` and `perf` with a real node: pipes, a terminal, a node that dies."""

import base64
import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.daemon.commands import CTL, OnTerminal, bootstrap_of, run
from tests.daemon.process import (
    PATIENCE_S,
    DaemonProcess,
    daemon,
    environment,
    heed_interrupts,
    wait_until,
)


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaemonProcess]:
    with daemon(tmp_path_factory.mktemp("node")) as process:
        process.start()
        yield process


@pytest.fixture
def topic(node: DaemonProcess, request: pytest.FixtureRequest) -> str:
    name = re.sub(r"\W", "-", request.node.name)[:60]
    assert run(node, "topic", "create", name)[0] == 0
    return name


def shell(node: DaemonProcess, line: str) -> subprocess.CompletedProcess[str]:
    """Run a line of bash in which `dlogctl` is a command."""
    function = f'dlogctl() {{ {sys.executable} -m dlogctl "$@"; }}\n'
    return subprocess.run(
        ["bash", "-c", function + line],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
        env=environment({"DLOG_BOOTSTRAP": bootstrap_of(node)}),
    )


def test_lines_come_back(node: DaemonProcess, topic: str) -> None:
    text = "one\ntwo\n\nthree with blanks \nünï\nno newline at the end"
    code, out, err = run(node, "produce", topic, stdin=text)
    assert (code, out) == (0, "")
    assert re.fullmatch(rf"6 records written to {topic} \(\d+ B in .*\)\n", err)
    code, out, err = run(node, "consume", topic)
    assert (code, out, err) == (0, text + "\n", "")


def test_keys_headers_tombstones_and_bytes_come_back(
    node: DaemonProcess, topic: str, tmp_path: Path
) -> None:
    options = ["-K", r"\t", "--header-delimiter", "|", "--null", "NULL"]
    text = "a=1,b|k1\tv1\n|k2\tNULL\nc=%2C%0A|NULL\t\n"
    assert run(node, "produce", topic, *options, stdin=text)[0] == 0
    assert run(node, "consume", topic, *options)[1] == text
    copy = shell(
        node,
        f"dlogctl consume {topic} --format json"
        f" | dlogctl produce {topic} --format json -q && dlogctl consume {topic} --from 3"
        f" -K '\\t' --header-delimiter '|' --null NULL",
    )
    assert (copy.stdout, copy.stderr) == (text, "")
    for cell in ("hex", "base64"):
        data = os.urandom(1000)
        line = data.hex() if cell == "hex" else base64.b64encode(data).decode()
        assert run(node, "produce", topic, "--value-format", cell, stdin=line)[0] == 0
        found = run(node, "consume", topic, "--from", "-1", "--value-format", cell)[1]
        assert found == line + "\n"
    documents = run(node, "consume", topic, "-n", "1", "-o", "json")[1]
    assert json.loads(documents) == {
        **json.loads(documents),
        "topic": topic,
        "partition": 0,
        "offset": 0,
        "key": "k1",
        "value": "v1",
        "headers": [["a", "1"], ["b", None]],
    }


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
def test_compressed(node: DaemonProcess, topic: str, codec: str) -> None:
    text = "".join(f"record {number}\n" for number in range(1000))
    assert run(node, "produce", topic, "-z", codec, "--acks", "leader", stdin=text)[0] == 0
    assert run(node, "consume", topic)[1] == text


def test_places_counts_and_partitions(node: DaemonProcess, topic: str) -> None:
    assert run(node, "topic", "alter", topic, "-p", "2")[0] == 0
    for partition in "01":
        lines = "".join(f"{partition}{number}\n" for number in range(5))
        options = ("-p", partition, "-k", "key", "-H", "h=1")
        assert run(node, "produce", topic, *options, stdin=lines)[0] == 0

    def read(*options: str) -> list[str]:
        code, out, _ = run(node, "consume", topic, *options)
        assert code == 0
        return sorted(out.split())

    assert read("--from", "3") == ["03", "04", "13", "14"]
    assert read("--from", "-1") == ["04", "14"]
    assert read("--until", "1") == ["00", "10"]
    assert read("--from", "end") == []
    assert read("--from", "-1h", "-p", "1", "-n", "2") == ["10", "11"]
    assert read("--from", "@99999999999999") == []
    beyond = run(node, "consume", topic, "-p", "1", "--from", "7")
    assert beyond == (0, "", f"note: {topic}-1 ends at 5, before 7\n")
    assert run(node, "consume", topic, "--from", "4", "--until", "2") == (0, "", "")
    placed = run(node, "consume", topic, "-p", "0", "-n", "1", "--place", "-K", "=")[1]
    assert re.fullmatch(r"0\t0\t\d{13}\tkey=00\n", placed)
    counts = json.loads(run(node, "consume", topic, "--counts", "-o", "json")[1])
    assert [(row["partition"], row["records"], row["last_offset"]) for row in counts] == [
        (0, 5, 4),
        (1, 5, 4),
    ]


@pytest.mark.parametrize(
    ("line", "stdin", "code", "message"),
    [
        ("produce gone --timeout 500ms", "x\n", 1, "there is no topic gone; see: dlogctl topic"),
        ("consume gone --timeout 500ms", "", 1, "there is no topic gone; see: dlogctl topic list"),
        ("consume TOPIC -p 7 --timeout 500ms", "", 1, "or no partition 7 in it; see: dlogctl to"),
        ("produce TOPIC -p 7", "x\n", 1, "line 1: "),
        ("produce TOPIC --value-format hex", "00\nxyz\n", 1, "line 2: 'xyz' is not hex digits"),
        ("produce TOPIC --format json", "{}\n", 1, 'line 1: there is no "value"'),
        ("produce TOPIC -k a -K :", "", 64, "--key, or keys in the lines, not both; see dlogctl"),
        ("produce TOPIC --format json --null x", "", 64, "JSON has names for keys"),
        (r"produce TOPIC -D \q", "", 64, "is not an escape"),
        ("produce TOPIC --header-delimiter ,", "", 64, "has a character that headers are"),
        ("produce TOPIC -H a=%", "", 64, "a % stands before two hex digits"),
        (
            "consume TOPIC --from soon",
            "",
            64,
            "'soon' is not a place in a log; valid forms: start, end",
        ),
        ("consume TOPIC --follow --until end", "", 64, "--follow or --until, not both"),
        ("perf produce gone --timeout 500ms -q", "", 1, "there is no topic gone"),
        ("perf end-to-end -s 3", "", 64, "--size is at least 16"),
        ("perf produce TOPIC --plot /no/where/x.png", "", 64, "there is no directory /no/where"),
        ("perf produce TOPIC -n 1 --plot x.txt", "", 64, "'x.txt' does not end in .png, .svg"),
    ],
)
def test_mistakes_get_one_line(
    node: DaemonProcess, topic: str, line: str, stdin: str, code: int, message: str
) -> None:
    found, out, err = run(node, *line.replace("TOPIC", topic).split(), stdin=stdin)
    assert (found, out) == (code, "")
    told = [each for each in err.splitlines() if each.startswith("dlogctl: ")]
    assert len(told) == 1, err
    assert message in told[0]


def test_what_is_before_a_wrong_line_is_written(node: DaemonProcess, topic: str) -> None:
    code, _, err = run(node, "produce", topic, "--value-format", "hex", stdin="00\n01\nno\n02\n")
    assert code == 1
    assert "line 3: 'no' is not hex digits in pairs; nothing behind it was sent" in err
    assert f"2 records written to {topic}" in err
    assert run(node, "consume", topic, "--value-format", "hex")[1] == "00\n01\n"
    options = ("--value-format", "hex", "--skip-invalid", "-o", "json")
    code, out, err = run(node, "produce", topic, *options, stdin="no\n03\n")
    assert (code, json.loads(out)[0]["written"], json.loads(out)[0]["skipped"]) == (1, 1, 1)
    assert err.startswith("dlogctl: line 1 skipped: 'no' is not hex")


def test_a_record_that_is_too_large_is_named(node: DaemonProcess, topic: str) -> None:
    text = "small\n" + "x" * 2_000_000 + "\nbehind\n"
    code, _, err = run(node, "produce", topic, stdin=text)
    assert code == 1
    assert re.search(r"lines? 2: ", err), err
    assert run(node, "consume", topic)[1].startswith("small\n")


def test_text_that_is_no_json_is_named_with_its_place(node: DaemonProcess, topic: str) -> None:
    run(node, "produce", topic, stdin='{"a":1}\n{\n')
    code, out, err = run(node, "consume", topic, "--value-format", "json")
    assert (code, out) == (1, '{"a":1}\n')
    assert err == (
        f"dlogctl: {topic}-0 at offset 1: '{{' is not JSON; text, hex and base64 show it\n"
    )


def test_a_reader_that_goes_away(node: DaemonProcess, topic: str) -> None:
    run(node, "produce", topic, stdin="x\n" * 100_000)
    done = shell(node, f"dlogctl consume {topic} | head -2")
    assert (done.stdout, done.stderr) == ("x\nx\n", "")


@pytest.mark.parametrize(("command", "closing"), [("produce", "<&-"), ("consume", ">&-")])
def test_closed_descriptors(node: DaemonProcess, topic: str, command: str, closing: str) -> None:
    done = shell(node, f"dlogctl {command} {topic} {closing}")
    assert (done.returncode, done.stdout) == (1, "")
    assert re.fullmatch(r"dlogctl: standard (in|out)put is closed: .*\n", done.stderr)


@pytest.mark.parametrize("closing", [">&-", "2>&-"])
def test_other_commands_do_without(node: DaemonProcess, topic: str, closing: str) -> None:
    done = shell(node, f"dlogctl topic list {closing}")
    assert (done.returncode, done.stderr) == (0, "")


def test_following_until_ctrl_c(node: DaemonProcess, topic: str) -> None:
    with subprocess.Popen(
        [*CTL, "consume", topic, "--from", "start", "--follow"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment({"DLOG_BOOTSTRAP": bootstrap_of(node)}),
        preexec_fn=heed_interrupts,
    ) as reader:
        assert reader.stdout is not None
        assert reader.stderr is not None
        for text in ("one\n", "two\n"):
            assert run(node, "produce", topic, stdin=text)[0] == 0
            assert reader.stdout.readline() == text
        reader.send_signal(signal.SIGINT)
        assert reader.wait(PATIENCE_S) == 0
        assert reader.stderr.read() == ""


def test_typing_records_and_ending_with_ctrl_c(node: DaemonProcess, topic: str) -> None:
    terminal = OnTerminal(["produce", topic], {"DLOG_BOOTSTRAP": bootstrap_of(node)})
    terminal.read_until("Ctrl-D ends")
    terminal.type("typed\n")
    wait_until(lambda: run(node, "consume", topic)[1] == "typed\n")
    terminal.type("lost with its end")
    terminal.type("\x03")
    code, shown = terminal.end()
    assert code == 0
    assert f"1 record written to {topic}" in shown
    assert "Traceback" not in shown


def test_typing_records_and_ending_with_ctrl_d(node: DaemonProcess, topic: str) -> None:
    terminal = OnTerminal(["produce", topic], {"DLOG_BOOTSTRAP": bootstrap_of(node)})
    terminal.read_until("Ctrl-D ends")
    terminal.type("typed\n\x04")
    code, shown = terminal.end()
    assert (code, "1 record written" in shown) == (0, True)


def test_a_node_that_dies_leaves_lines_unknown(tmp_path: Path) -> None:
    with daemon(tmp_path) as process:
        process.start()
        assert run(process, "topic", "create", "t")[0] == 0
        address = bootstrap_of(process)
        with subprocess.Popen(
            [*CTL, "produce", "t", "--delivery-timeout", "2s"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment({"DLOG_BOOTSTRAP": address}),
            preexec_fn=heed_interrupts,
        ) as writer:
            assert writer.stdin is not None
            assert writer.stderr is not None
            writer.stdin.write("first\n")
            writer.stdin.flush()
            wait_until(lambda: run(process, "consume", "t")[1] == "first\n")
            # It answers nothing any more, and keeps its connections open.
            process.signal(signal.SIGSTOP)
            writer.stdin.write("second\nthird\n")
            writer.stdin.close()
            assert writer.wait(PATIENCE_S) in (1, 2)
            told = writer.stderr.read()
            process.signal(signal.SIGCONT)
    assert "Traceback" not in told
    assert re.search(r"^dlogctl: lines 2-3: it is not known whether written: t-0: ", told, re.M)
    assert "1 record written to t" in told
    assert ", 2 unknown" in told


@pytest.mark.parametrize("line", ["produce t", "consume t", "perf produce t", "perf end-to-end"])
def test_nobody_there_and_somebody_mute(line: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as mute:
        for address in ("127.0.0.1:1", f"127.0.0.1:{mute.getsockname()[1]}"):
            env = {"DLOG_BOOTSTRAP": address}
            code, out, err = run(None, *line.split(), "--timeout", "300ms", stdin="x\n", **env)
            assert (code, out) == (2, ""), (address, err)
            assert address in err
            assert err.count("\n") == 1


def test_measuring_writes_and_reads(node: DaemonProcess, topic: str, tmp_path: Path) -> None:
    code, out, _ = run(node, "perf", "produce", topic, "-n", "5000", "-q", "--keys", "3")
    assert code == 0
    assert re.search(r"^records: +5000 \(", out, re.M)
    for name in ("p50", "p99.99", "max"):
        assert re.search(rf"^{name}: +[\d.]+ (us|ms|s)$", out, re.M)
    assert "█" in out
    document = json.loads(run(node, "perf", "consume", topic, "-o", "json", "-q")[1])
    assert (document["records"], document["errors"]) == (5000, 0)
    assert document["latency_ms"]["p99"] > 0
    as_arrow = json.loads(run(node, "perf", "consume", topic, "--arrow", "-o", "json", "-q")[1])
    assert (as_arrow["records"], as_arrow["bytes"]) == (5000, document["bytes"])
    assert as_arrow["latency_ms"]["p99"] > 0
    options = ("--rate", "500", "--duration", "1s", "-s", "20")
    code, out, _ = run(node, "perf", "end-to-end", *options, "-o", "json", NO_COLOR="1")
    document = json.loads(out)
    assert code == 0
    assert 400 <= document["records"] <= 500
    assert document["latency_ms"]["p50"] > 0
    left = run(node, "topic", "list", "-o", "tsv", "--no-headers")[1]
    assert "dlogctl-perf" not in left
    picture = tmp_path / "p.png"
    pytest.importorskip("matplotlib")
    drawn = ("-n", "1000", "--plot", str(picture), "-q")
    assert run(node, "perf", "produce", topic, *drawn)[0] == 0
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_a_picture_without_matplotlib(node: DaemonProcess, topic: str, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(
        "import importlib.util as u\n"
        "there = u.find_spec\n"
        "u.find_spec = lambda name, *rest: None if name == 'matplotlib' else there(name, *rest)\n"
    )
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    options = ("-n", "10", "--plot", "p.png")
    code, out, err = run(node, "perf", "produce", topic, *options, PYTHONPATH=path)
    assert (code, out) == (1, "")
    assert err.startswith("dlogctl: --plot needs matplotlib, which is not installed; install it:")


def test_measuring_on_a_terminal_until_ctrl_c(node: DaemonProcess, topic: str) -> None:
    env = {"DLOG_BOOTSTRAP": bootstrap_of(node), "TERM": "xterm", "COLUMNS": "100"}
    arguments = ["perf", "produce", topic, "--rate", "200", "--duration", "10min"]
    terminal = OnTerminal(arguments, env)
    terminal.read_until(r"\d+ records, \d+ records/s, .*p99 .*\r")
    terminal.type("\x03")
    code, shown = terminal.end()
    assert code == 0
    assert "Traceback" not in shown
    assert re.search(r"throughput: +\d+ records/s", shown)
    with contextlib.suppress(ProcessLookupError):
        os.kill(terminal.pid, 0)


def test_a_terminal_gets_no_control_characters_of_records(node: DaemonProcess, topic: str) -> None:
    record = "\x1b]0;PWNED\x07 \x1b[2Jcaf\xe9\x9b31m\u202e\r\t."
    assert run(node, "produce", topic, stdin=record)[0] == 0
    # In a pipe as it is; Python reads \r as a line feed.
    assert run(node, "consume", topic)[1] == record.replace("\r", "\n") + "\n"
    env = {"DLOG_BOOTSTRAP": bootstrap_of(node), "TERM": "xterm"}
    shown = OnTerminal(["consume", topic, "-q"], env).end()[1]
    # A terminal's driver turns tabs into blanks in some systems.
    assert re.sub(r"\s+", " ", shown) == r"\x1b]0;PWNED\x07 \x1b[2Jcafé\x9b31m\u202e\r . "
    shown = OnTerminal(["consume", topic, "-q", "--format", "json"], env).end()[1]
    assert json.loads(shown)["value"] == record
    assert shown.replace("\r\n", "").isprintable()
    assert "\x1b]0;PWNED\x07" in OnTerminal(["consume", topic, "-q", "--raw"], env).end()[1]
