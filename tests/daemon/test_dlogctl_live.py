"""`dlogctl` as a user runs it: on a terminal, in pipes; with a real node, none, a mute one."""

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from dlogctl.shell.shells import script
from tests.daemon.commands import CTL, OnTerminal, bootstrap_of, run
from tests.daemon.process import PATIENCE_S, DaemonProcess, daemon, environment, heed_interrupts


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaemonProcess]:
    with daemon(tmp_path_factory.mktemp("node")) as process:
        process.start()
        for name in ("events", "errors"):
            assert run(process, "topic", "create", name, "-p", "2")[0] == 0
        yield process


@pytest.fixture
def mute() -> Iterator[str]:
    """Give the address of something that accepts connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


def test_configs_of_a_topic_are_changed_and_explained(node: DaemonProcess) -> None:
    code, out, _ = run(node, "config", "set", "retention.ms=3d", "--topic", "events")
    assert code == 0
    change = "retention.ms: 604800000 (7d) [default] -> 259200000 (3d) [topic]"
    assert out == f"topic events now: {change}\n"
    assert run(node, "config", "get", "retention.ms", "--topic", "events")[1] == "259200000\n"
    explained = run(node, "config", "explain", "retention.ms", "--topic", "events")[1]
    assert "  bounds:           at least -1\n" in explained
    assert "  topic events:     259200000 (3d) (set for this topic)\n" in explained
    described = run(node, "topic", "describe", "events", "--explain")
    assert (
        "retention.ms = 259200000 (3d)  (topic; default 604800000; long; at least -1)\n    Segm"
        in described[1]
    )
    assert "Segments whose newest record is older are dropped" in described[1]
    assert "LEADER: the node that takes writes" in described[2]
    code, out, _ = run(node, "config", "unset", "retention.ms", "--topic", "events", "-o", "json")
    assert json.loads(out) == [
        {
            "config": "retention.ms",
            "from": "259200000",
            "from_source": "topic",
            "to": "604800000",
            "to_source": "default",
            "dry_run": False,
        }
    ]


def test_configs_of_the_cluster_are_changed(node: DaemonProcess) -> None:
    tried = run(node, "config", "set", "log.retention.bytes=1GiB", "--dry-run")
    assert (tried[0], tried[1]) == (
        0,
        "the cluster would become: log.retention.bytes: default -> 1073741824 (1GiB) [cluster]\n",
    )
    assert run(node, "config", "show", "-o", "tsv", "--no-headers")[1] == ""
    assert run(node, "config", "set", "log.retention.bytes=1GiB")[0] == 0
    of_topic = run(node, "config", "show", "--topic", "errors", "--no-headers")[1]
    assert of_topic.split() == ["retention.bytes", "1073741824", "(1GiB)", "cluster"]
    assert run(node, "config", "get", "log.retention.bytes")[1] == "1073741824\n"
    assert run(node, "config", "unset", "log.retention.bytes")[0] == 0
    assert run(node, "config", "get", "log.retention.bytes")[1] == "-1\n"


@pytest.mark.parametrize(
    ("line", "code", "message"),
    [
        ("config set retention.ms=soon --topic events", 1, "Not a number; see: dlogctl config exp"),
        ("config set retention.ms=3x --topic events", 64, "retention.ms: '3x' is not a duration"),
        ("config set retenton.ms=1 --topic events", 1, "did you mean retention.ms? see all: dlog"),
        ("config set retention.ms=1", 1, "here it is log.retention.ms; see: dlogctl config expl"),
        ("config set node.id=5", 1, "node.id belongs into the file of each node"),
        ("config set retention.ms 5 --topic t", 64, "one word: dlogctl config set retention.ms=5"),
        ("config set =5", 64, "'=5' is not key=value"),
        ("config set retention.ms=1 --topic gone --timeout 500ms", 1, "there is no topic gone"),
        ("config get retention.ms", 1, "no config retention.ms; there it is log.retention.ms;"),
        ("config get nonsense --topic events", 1, "topic events has no config nonsense; see:"),
        ("config get node.id", 1, "it belongs into each node's file"),
        ("config explain retentionms", 1, "did you mean retention.ms? see all"),
        ("config get x --topic t --node 1", 64, "--topic or --node, not both"),
        ("config show --node 9 --timeout 500ms", 2, "the cluster has no node 9"),
        ("topic create events", 1, "there is a topic events; see: dlogctl topic describe events"),
        ("topic create x -s retenton.ms=1", 1, "did you mean retention.ms? see all: dlogctl con"),
        ("topic create x -s retention.ms=-7", 1, "; see: dlogctl config explain retention.ms"),
        ("topic create x -r 3", 1, "; see them: dlogctl status"),
        ("topic alter events -p 1", 1, "see how many there are: dlogctl topic describe events"),
        ("log-dirs --node 9", 2, "the cluster has no node 9; its nodes: "),
        ("log-dirs --topic gone", 1, "there is no topic gone; see: dlogctl topic list"),
        ("topic describe events --watch=0", 64, "is below 0.1 s"),
        ("topic describe a/b", 1, "topic name 'a/b' is not allowed; a name has 1 to 249 ASCII"),
    ],
)
def test_refusals_say_what_to_do(node: DaemonProcess, line: str, code: int, message: str) -> None:
    found, out, err = run(node, *line.split())
    assert (found, out) == (code, "")
    assert message in err
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("line", "meaning", "suggested"),
    [
        ("status", "leaderless: ", "dlogctl topic list, dlogctl log-dirs"),
        ("log-dirs", "LOGS: ", "dlogctl log-dirs --logs"),
        ("log-dirs --logs", "SIZE: ", "dlogctl topic describe NAME"),
        ("topic list", "", "dlogctl topic describe NAME"),
        ("topic describe events", "ISR: ", "dlogctl topic alter events --help"),
        ("topic delete events --dry-run", "", "dlogctl topic list"),
        ("consume events", "", "dlogctl topic describe events"),
        ("perf end-to-end -n 1 -q", "", "dlogctl perf end-to-end --rate 10000"),
    ],
)
def test_explaining(node: DaemonProcess, line: str, meaning: str, suggested: str) -> None:
    code, _, err = run(node, *line.split(), "--explain")
    assert code == 0
    assert meaning in err
    assert err.endswith(f"next: {suggested}\n")
    assert "next" not in run(node, *line.split())[2]


def test_data_directories(node: DaemonProcess) -> None:
    code, out, err = run(node, "log-dirs", "--explain")
    assert code == 0
    row = out.splitlines()[1].split()
    assert row[1:3] == [str(node.folder / "data"), "4"]
    assert "LOGS: partitions whose data" in err
    logs = run(node, "log-dirs", "--logs", "--topic", "events", "-o", "tsv", "--no-headers")[1]
    assert [line.split("\t")[:2] for line in logs.splitlines()] == [
        ["events", "0"],
        ["events", "1"],
    ]
    document = json.loads(run(node, "log-dirs", "-o", "json")[1])
    assert [each["topic"] for each in document[0]["logs"]] == ["errors"] * 2 + ["events"] * 2


def test_watching_on_a_terminal_redraws_until_ctrl_c(node: DaemonProcess) -> None:
    env = {"DLOG_BOOTSTRAP": bootstrap_of(node), "TERM": "xterm-256color", "COLUMNS": "90"}
    terminal = OnTerminal(["topic", "describe", "--watch", "200ms", "events"], env)
    terminal.read_until(r"\x1b\[H.*every 0\.2 s: dlogctl topic describe.*events.*\x1b\[H")
    terminal.type("\x03")
    code, shown = terminal.end()
    assert code == 0
    assert "Traceback" not in shown
    assert "interrupted" not in shown


@pytest.mark.parametrize("variables", [{"TERM": "dumb"}, {"TERM": ""}, {"NO_COLOR": "1"}])
def test_terminals_without_colour(node: DaemonProcess, variables: dict[str, str]) -> None:
    env = {"DLOG_BOOTSTRAP": bootstrap_of(node), "TERM": "xterm", "COLUMNS": "90", **variables}
    code, shown = OnTerminal(["status"], env).end()
    assert code == 0
    assert "healthy" in shown
    colours = re.findall(r"\x1b\[[0-9;]*m", shown)
    assert not [each for each in colours if re.search(r"3\d|9\d|38;", each)], colours
    if "NO_COLOR" not in variables:
        assert "\x1b" not in shown
        terminal = OnTerminal(["log-dirs", "--watch", "200ms"], env)
        terminal.read_until(r"DIRECTORY.*DIRECTORY")
        terminal.type("\x03")
        assert "\x1b" not in terminal.end()[1]


def test_watching_in_a_pipe_writes_one_document_a_line(node: DaemonProcess) -> None:
    with subprocess.Popen(
        [*CTL, "status", "--watch", "200ms", "-o", "json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment({"DLOG_BOOTSTRAP": bootstrap_of(node)}),
        preexec_fn=heed_interrupts,
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        looks = [json.loads(process.stdout.readline()) for _ in range(3)]
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE_S) == 0
        assert process.stderr.read() == ""
    assert [each["healthy"] for each in looks] == [True] * 3


def test_a_reader_that_goes_away(node: DaemonProcess) -> None:
    command = f"{sys.executable} -m dlogctl status --watch 200ms | head -1"
    done = subprocess.run(
        ["bash", "-c", command],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
        env=environment({"DLOG_BOOTSTRAP": bootstrap_of(node)}),
    )
    assert (done.stdout, done.stderr) == ("healthy\n", "")


def test_a_full_disk_behind_standard_output(node: DaemonProcess) -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [*CTL, "topic", "list"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=PATIENCE_S,
            check=False,
            env=environment({"DLOG_BOOTSTRAP": bootstrap_of(node)}),
        )
    assert (done.returncode, done.stderr) == (1, "dlogctl: No space left on device\n")


COMMANDS_OF_A_CLUSTER = (
    "status",
    "topic list",
    "topic describe t",
    "topic create t",
    "config show",
    "config set a=b",
    "log-dirs",
)


@pytest.mark.parametrize("line", COMMANDS_OF_A_CLUSTER)
def test_a_cluster_that_is_down(line: str) -> None:
    code, out, err = run(None, *line.split(), "--timeout", "300ms", DLOG_BOOTSTRAP="127.0.0.1:1")
    assert (code, out) == (2, "")
    assert err.startswith("dlogctl: cannot connect to 127.0.0.1:1: Connection refused; is dlogd")
    assert "from DLOG_BOOTSTRAP; see: dlogctl context show" in err
    assert err.count("\n") == 1


@pytest.mark.parametrize("line", COMMANDS_OF_A_CLUSTER)
def test_a_half_open_connection(mute: str, line: str) -> None:
    code, out, err = run(None, *line.split(), "--timeout", "300ms", DLOG_BOOTSTRAP=mute)
    assert (code, out) == (2, "")
    assert mute in err
    assert err.count("\n") == 1


def test_ctrl_c_while_nobody_answers(mute: str) -> None:
    terminal = OnTerminal(["topic", "list", "--timeout", "60s"], {"DLOG_BOOTSTRAP": mute})
    # It says nothing before it is interrupted: wait until it has connected and blocks in its loop.
    deadline = time.monotonic() + PATIENCE_S
    while "poll" not in Path(f"/proc/{terminal.pid}/wchan").read_text() and (
        time.monotonic() < deadline
    ):
        time.sleep(0.05)
    terminal.type("\x03")
    code, shown = terminal.end()
    assert code == 1
    assert "Traceback" not in shown
    assert "dlogctl: interrupted" in shown


def test_a_bug_shows_no_traceback_without_debug(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(
        "import sys, types\n"
        "broken = types.ModuleType('dlogctl.commands.status')\n"
        "sys.modules['dlogctl.commands.status'] = broken\n"
    )
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    code, _, err = run(None, "status", PYTHONPATH=path)
    assert code == 1
    assert "an error in dlogctl itself, AttributeError:" in err
    assert err.count("\n") == 1
    done = subprocess.run(
        [*CTL, "status", "--debug"],
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_S,
        env=environment({"PYTHONPATH": path}),
    )
    assert "Traceback" in done.stderr


def test_errors_show_tracebacks_with_debug() -> None:
    done = subprocess.run(
        [*CTL, "topic", "list", "--bootstrap", "127.0.0.1:1", "--timeout", "200ms", "--debug"],
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_S,
        env=environment(),
    )
    assert done.returncode != 0
    assert "Traceback" in done.stderr
    assert "ConnectFailedError" in done.stderr


def complete_in_bash(line: str, folder: Path, **env: str) -> list[str]:
    """Return what bash offers for a line when TAB is pressed at its end."""
    folder.mkdir(exist_ok=True)
    program = folder / "dlogctl"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m dlogctl "$@"\n')
    program.chmod(0o755)
    (folder / "completion").write_text(script("bash"))
    # What readline does before it calls the function: words apart at COMP_WORDBREAKS.
    driver = r"""
        source "$1/completion"
        COMP_LINE=$2 COMP_POINT=${#2} COMP_WORDBREAKS=$' \t\n"'"'"'><=;|&(:'
        compopt() { :; }
        _dlogctl_completion dlogctl
        printf '%s\n' "${COMPREPLY[@]}"
    """
    done = subprocess.run(
        ["bash", "-c", driver, "bash", str(folder), line],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
        env={**environment(env), "PATH": f"{folder}{os.pathsep}{os.environ['PATH']}"},
    )
    assert done.stderr == ""
    return done.stdout.split()


def test_bash_completes(node: DaemonProcess, tmp_path: Path) -> None:
    address = bootstrap_of(node)

    def offered(line: str, **env: str) -> list[str]:
        return complete_in_bash(line, tmp_path, **{"DLOG_BOOTSTRAP": address, **env})

    assert offered("dlogctl to") == ["topic"]
    assert offered("dlogctl topic de") == ["describe", "delete"]
    assert offered("dlogctl topic describe e") == ["errors", "events"]
    assert offered("dlogctl topic describe events e") == ["errors"]
    assert offered("dlogctl config show --topic ev") == ["events"]
    assert offered("dlogctl config show --node ") == [str(node.status()["node_id"])]
    assert offered("dlogctl topic alter events --set retention.m") == ["retention.ms="]
    # Behind `=` bash replaces only what follows it.
    assert offered("dlogctl topic alter events --set flush.policy=a") == ["always"]
    assert offered("dlogctl config set --topic events flush.pol") == ["flush.policy="]
    assert offered("dlogctl config unset log.retention.m") == ["log.retention.ms"]
    # The address of the line counts, though bash takes it apart at its colon.
    line = f"dlogctl --bootstrap {address} topic describe ev"
    assert offered(line, DLOG_BOOTSTRAP="127.0.0.1:1") == ["events"]
    assert offered("dlogctl topic describe ev", DLOG_BOOTSTRAP="127.0.0.1:1") == []
    assert offered("dlogctl -o js") == ["json"]


def test_completion_of_a_mute_cluster_is_empty(mute: str, tmp_path: Path) -> None:
    line = "dlogctl topic describe "
    assert complete_in_bash(line, tmp_path, DLOG_BOOTSTRAP=mute) == []
    assert complete_in_bash(line, tmp_path, DLOG_BOOTSTRAP="nonsense") == []


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells_are_answered(node: DaemonProcess, shell: str) -> None:
    words = "dlogctl topic describe ev"
    env = {
        "_DLOGCTL_COMPLETE": f"{shell}_complete",
        "COMP_WORDS": words,
        "COMP_CWORD": "3" if shell == "zsh" else "ev",
    }
    code, out, err = run(node, **env)
    assert (code, err) == (0, "")
    assert out.split() == (["plain", "events", "_"] if shell == "zsh" else ["plain,events"])


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_shell_takes_the_script(shell: str, tmp_path: Path) -> None:
    code, out, _ = run(None, "completion", shell)
    assert code == 0
    assert "_DLOGCTL_COMPLETE" in out
    program = shutil.which(shell)
    if program is None:
        assert shell != "bash"
        return  # the script is click's own; nothing here can read it
    (tmp_path / "script").write_text(out)
    subprocess.run([program, "-n", str(tmp_path / "script")], check=True, timeout=PATIENCE_S)
