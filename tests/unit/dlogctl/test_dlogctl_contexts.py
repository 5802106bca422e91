"""Contexts: what is kept, and which of option, environment, context and default counts."""

import json
import os
import stat
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from dlogctl import contexts
from dlogctl.__main__ import main
from dlogctl.contexts import Contexts, changing, contexts_path, load_contexts
from dlogctl.settings import parse_addresses

Ctl = Callable[..., tuple[int, str, str]]


@pytest.fixture
def ctl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Ctl:
    for name in list(os.environ):
        if name.startswith("DLOG_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setattr(contexts, "HOST_PATH", tmp_path / "host.yaml")

    def run(line: str) -> tuple[int, str, str]:
        code = main(line.split())
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


def shown(ctl: Ctl, line: str = "context show") -> dict[str, tuple[str | None, str]]:
    code, out, _ = ctl(f"{line} -o json")
    assert code == 0
    return {each["setting"]: (each["value"], each["origin"]) for each in json.loads(out)}


def test_option_environment_context_default(
    ctl: Ctl, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert shown(ctl)["bootstrap"] == ("127.0.0.1:9092", "default")
    assert ctl("context set a --bootstrap a:1 --timeout 9s")[1] == "context a made, in use\n"
    assert ctl("context set b --bootstrap b:1,b:2")[1] == "context b made\n"
    found = shown(ctl)
    assert found["context"] == ("a", str(tmp_path / "dlog" / "contexts.yaml"))
    assert found["bootstrap"] == ("a:1", "context a")
    assert found["timeout"] == ("9s", "context a")
    assert found["http"] == (None, "default")
    monkeypatch.setenv("DLOG_CONTEXT", "b")
    found = shown(ctl)
    assert found["context"] == ("b", "DLOG_CONTEXT")
    assert found["bootstrap"] == ("b:1,b:2", "context b")
    assert found["timeout"] == ("5s", "default")
    assert shown(ctl, "context show --context a")["bootstrap"] == ("a:1", "context a")
    assert shown(ctl, "--context a context show")["context"] == ("a", "--context")
    assert shown(ctl, "context show a")["bootstrap"] == ("a:1", "context a")
    monkeypatch.setenv("DLOG_BOOTSTRAP", "e:1")
    assert shown(ctl)["bootstrap"] == ("e:1", "DLOG_BOOTSTRAP")
    assert shown(ctl, "context show --bootstrap f:1")["bootstrap"] == ("f:1", "--bootstrap")


def test_a_node_of_the_context_is_not_asked_about_another_cluster(
    ctl: Ctl, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`status` would show what it says of itself as the state of the cluster that was named."""
    assert ctl("context set prod --bootstrap p:1 --http p:9644")[0] == 0
    assert shown(ctl)["http"] == ("p:9644", "context prod")
    assert shown(ctl, "--bootstrap t:1 context show")["http"] == (None, "default")
    assert shown(ctl, "--bootstrap t:1 --http t:2 context show")["http"] == ("t:2", "--http")
    monkeypatch.setenv("DLOG_BOOTSTRAP", "t:1")
    assert shown(ctl)["http"] == (None, "default")
    monkeypatch.setenv("DLOG_HTTP", "t:2")
    assert shown(ctl)["http"] == ("t:2", "DLOG_HTTP")


def test_contexts_come_and_go(ctl: Ctl, tmp_path: Path) -> None:
    assert "make one: dlogctl context set" in ctl("context list")[2]
    ctl("context set a --bootstrap a:1")
    ctl("context set b --bootstrap b:1 --use")
    path = tmp_path / "dlog" / "contexts.yaml"
    assert yaml.safe_load(path.read_text()) == {
        "current": "b",
        "contexts": {"a": {"bootstrap": "a:1"}, "b": {"bootstrap": "b:1"}},
    }
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [each.name for each in path.parent.iterdir()] == ["contexts.yaml"]
    assert [line.split()[:3] for line in ctl("context list")[1].splitlines()] == [
        ["CURRENT", "CONTEXT", "BOOTSTRAP"],
        ["-", "a", "a:1"],
        ["*", "b", "b:1"],
    ]
    assert ctl("context use a") == (0, "context a is in use\n", "")
    assert ctl("context set a --timeout 1s --http h:2")[1] == "context a changed, in use\n"
    assert ctl("context set a --unset timeout")[0] == 0
    assert load_contexts(path).contexts["a"] == {"bootstrap": "a:1", "http": "h:2"}
    assert ctl("context remove a")[1] == "context a removed; none is in use now\n"
    assert json.loads(ctl("context list -o json")[1])[0]["current"] is False


def test_a_context_chooses_the_output(ctl: Ctl) -> None:
    ctl("context set a --bootstrap a:1 -o json")
    assert json.loads(ctl("context list")[1])[0]["context"] == "a"
    assert ctl("context list -o table")[1].startswith("CURRENT")


@pytest.mark.parametrize(
    ("line", "code", "message"),
    [
        ("context use x", 1, "there is no context x (asked for); there are: none. Make it: "),
        ("--context x topic list", 1, "there is no context x (--context); "),
        ("context remove x", 1, "there is no context x"),
        ("context show x", 1, "there is no context x"),
        ("context set x", 64, "--bootstrap is missing: where cluster x is; see dlogctl context"),
        ("context set a/b --bootstrap h:1", 64, "'a/b' is not a name of a context"),
        ("context set x --bootstrap h", 64, "'h' is not host:port"),
        ("context set x --bootstrap h:1 --unset nonsense", 64, "'nonsense' is not one of"),
        ("--context ../x status", 64, "'../x' is not a name of a context"),
    ],
)
def test_mistakes(ctl: Ctl, line: str, code: int, message: str) -> None:
    found, out, err = ctl(line)
    assert (found, out) == (code, "")
    assert message in err
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[", "line 1: is no YAML"),
        ("contexts: {a: {bootstrap: 2026-13-01}}", "contexts.yaml: is no YAML"),
        pytest.param(
            f"contexts: {{a: {{timeout: {'9' * 5000}}}}}", "contexts.yaml: is no YAML", id="digits"
        ),
        ("current: &a x", "line 1: &a: anchors and aliases are not read"),
        ("contexts: {a: {}, a: {}}", "line 1: a: given twice, first at line 1"),
        ("contexts: 5", "it must have"),
        ("5", "it must have"),
        ("contexts: {a: 5}", "context a must have keys: bootstrap"),
        ("contexts: {a: {bootstrp: h:1}}", "unknown key bootstrp; known are bootstrap"),
        ("contexts: {a: {bootstrap: [h:1]}}", "context a: bootstrap must be a text"),
        ("{current: gone, contexts: {}}", "there is no context gone"),
        ("{current: a, contexts: {a: {bootstrap: h}}}", "context a: 'h' is not host:port"),
        ("{current: a, contexts: {a: {timeout: soon}}}", "context a: 'soon' is not a duration"),
    ],
)
def test_a_damaged_file_is_named(ctl: Ctl, tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "dlog").mkdir()
    (tmp_path / "dlog" / "contexts.yaml").write_text(text)
    code, _, err = ctl("topic list")
    assert code in (1, 64)
    assert message in err
    assert err.count("\n") == 1
    # What does not need the file does not fail on it.
    assert ctl("--help")[0] == 0
    assert ctl("completion bash")[0] == 0


def test_a_file_that_cannot_be_read(ctl: Ctl, tmp_path: Path) -> None:
    path = tmp_path / "dlog" / "contexts.yaml"
    path.mkdir(parents=True)
    code, _, err = ctl("context list")
    assert (code, err) == (1, f"dlogctl: {path}: cannot be read: Is a directory\n")
    path.rmdir()
    path.write_bytes(b"\xff")
    assert "cannot be read: it is not UTF-8" in ctl("context list")[2]


def test_a_relative_configuration_home_is_ignored(tmp_path: Path) -> None:
    home = Path.home() / ".config" / "dlog" / "contexts.yaml"
    assert contexts_path({}) == home
    assert contexts_path({"XDG_CONFIG_HOME": "relative"}) == home
    assert contexts_path({"XDG_CONFIG_HOME": "/x"}) == Path("/x/dlog/contexts.yaml")


def test_saving_through_a_link_keeps_the_link(tmp_path: Path) -> None:
    real, link = tmp_path / "real.yaml", tmp_path / "contexts.yaml"
    real.write_text("")
    link.symlink_to(real)
    Contexts(link, current="a", contexts={"a": {"bootstrap": "h:1"}}).save()
    assert link.is_symlink()
    assert load_contexts(real).current == "a"


def test_an_empty_file_has_no_contexts(tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text("")
    assert load_contexts(tmp_path / "c.yaml").contexts == {}


def test_addresses() -> None:
    assert [str(each) for each in parse_addresses("a:1, [::1]:2,")] == ["a:1", "[::1]:2"]
    for wrong in ("", ",", "a", "a:0", "::1:9092", "a:" + "9" * 5000):
        with pytest.raises(ValueError, match=r"no address|is not host:port|in brackets"):
            parse_addresses(wrong)


def test_changes_at_the_same_time_lose_nothing(tmp_path: Path) -> None:
    path = tmp_path / "dlog" / "contexts.yaml"

    def change(name: str) -> None:
        with changing(path) as contexts:
            time.sleep(0.01)
            contexts.contexts[name] = {"bootstrap": "a:1"}

    threads = [threading.Thread(target=change, args=(f"c{n}",)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(load_contexts(path).contexts) == [f"c{n}" for n in range(8)]


HOST = 'current: here\ncontexts:\n  here: {bootstrap: "h1:1,h2:1"}\n  there: {bootstrap: "t:1"}\n'


def test_a_host_has_contexts_for_all_its_users(ctl: Ctl, tmp_path: Path) -> None:
    (tmp_path / "host.yaml").write_text(HOST)
    found = shown(ctl)
    assert found["context"] == ("here", str(tmp_path / "host.yaml"))
    assert found["bootstrap"] == ("h1:1,h2:1", "context here")
    assert ctl("context use there")[0] == 0
    found = shown(ctl)
    assert found["context"] == ("there", str(tmp_path / "dlog" / "contexts.yaml"))
    assert found["bootstrap"] == ("t:1", "context there")
    assert (tmp_path / "host.yaml").read_text() == HOST


def test_what_a_user_has_himself_wins(ctl: Ctl, tmp_path: Path) -> None:
    (tmp_path / "host.yaml").write_text(HOST)
    assert ctl("context set here --timeout 9s")[1] == "context here changed\n"
    assert shown(ctl)["timeout"] == ("9s", "context here")
    assert shown(ctl)["bootstrap"] == ("h1:1,h2:1", "context here")
    assert ctl("context set here --bootstrap own:1")[0] == 0
    assert shown(ctl)["bootstrap"] == ("own:1", "context here")
    assert ctl("context set mine --bootstrap m:1")[1] == "context mine made\n"
    assert shown(ctl)["context"][0] == "here"  # not the first one that there is
    rows = json.loads(ctl("context list -o json")[1])
    assert [row["context"] for row in rows] == ["here", "there", "mine"]
    assert ctl("context remove here")[0] == 0
    assert shown(ctl)["bootstrap"] == ("h1:1,h2:1", "context here")


def test_a_context_of_the_host_is_not_the_users_to_remove(ctl: Ctl, tmp_path: Path) -> None:
    (tmp_path / "host.yaml").write_text(HOST)
    code, _, error = ctl("context remove there")
    assert code == 1 and "context there is the host's: edit" in error
    (tmp_path / "host.yaml").write_text("contexts: [a]\n")
    code, _, error = ctl("status")
    assert code == 1 and "host.yaml: it must have" in error
