"""Names, racks and errors with control characters: none of them reaches a terminal."""

import json
import re
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from dlog.wire.apis import ApiKey
from dlog.wire.frame import RequestHeader
from dlogctl.output import escaping
from dlogctl.output.documents import Output
from dlogctl.settings import Settings
from tests.daemon.commands import OnTerminal
from tests.fakes.command_line import Ctl, World, ctl, world
from tests.fakes.peer import error, zero_time

__all__ = ["ctl", "world"]

TEXTS = st.text(alphabet=st.characters() | st.sampled_from("\x1b\x07\x9b\u202e\n\r\t\\"))
EVIL = "\x1b]0;PWNED\x07\x1b[2J\x9b31m\u202e\nnode 7: healthy\r\\x"
SHOWN = r"\x1b]0;PWNED\x07\x1b[2J\x9b31m\u202e\nnode 7: healthy\r\x"
IN_TSV = SHOWN[:-2] + r"\\x"
COMMANDS = (
    ("topic", "list"),
    ("topic", "describe"),
    ("node", "list"),
    ("status",),
    ("partition", "list"),
    ("config", "show", "--topic", "t"),
    ("topic", "create", "fresh"),
    ("topic", "delete", "t", "--yes"),
)


def make_evil(world: World) -> None:
    """Let the fake node put control characters everywhere."""
    plain = world.nodes.metadata

    def metadata(request: Any, module: Any, header: RequestHeader) -> Any:
        answer = plain(request, module, header)
        for broker in answer.brokers:
            object.__setattr__(broker, "rack", EVIL)
        for topic in answer.topics:
            if request.topics is None:
                object.__setattr__(topic, "name", EVIL)
        return answer

    def create(request: Any, module: Any, _header: RequestHeader) -> Any:
        result = module.CreatableTopicResult(
            name=request.topics[0].name,
            topic_id=None,
            error_code=error(42),
            error_message=EVIL,
            configs=None,
        )
        return module.CreateTopicsResponse(throttle_time=zero_time(), topics=(result,))

    world.nodes.cluster_id = EVIL
    for peer in world.nodes.peers.values():
        peer.answers |= {ApiKey.METADATA: metadata, ApiKey.CREATE_TOPICS: create}
    world.configs = {"retention.ms": (EVIL, 1)}
    world.status = {"state": EVIL, "version": EVIL, "problems": [EVIL]}


def harmless(text: str) -> bool:
    return all(each.isprintable() or each in "\n\t" for each in text)


@pytest.mark.parametrize("form", ["table", "wide", "tsv", "json", "yaml"])
@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_no_control_character_gets_out(
    world: World, ctl: Ctl, command: tuple[str, ...], form: str
) -> None:
    make_evil(world)
    result = ctl("--explain", *command, "-o", form)
    assert harmless(result.out), result.out
    assert harmless(result.err), result.err
    assert not re.search(r"^node 7", result.out + result.err, re.MULTILINE)


def test_cells_in_each_format(world: World, ctl: Ctl) -> None:
    make_evil(world)
    assert SHOWN in ctl("topic", "list").out
    assert SHOWN in ctl("node", "list", "-o", "wide").out
    rows = ctl("topic", "list", "-o", "tsv").out.splitlines()
    assert [row.split("\t")[0] for row in rows[1:]] == [IN_TSV]
    as_json = ctl("topic", "list", "-o", "json").out
    assert r"\u001b]0;PWNED\u0007\u001b[2J\u009b31m\u202e\nnode 7" in as_json
    assert json.loads(as_json)[0]["topic"] == EVIL
    assert yaml.safe_load(ctl("topic", "list", "-o", "yaml").out)[0]["topic"] == EVIL
    assert SHOWN in ctl("topic", "create", "fresh").err


@pytest.mark.parametrize("command", [*COMMANDS, ("topic", "list", "-o", "json")], ids=" ".join)
def test_no_sequence_of_others_reaches_a_terminal(world: World, command: tuple[str, ...]) -> None:
    make_evil(world)
    env = {"DLOG_BOOTSTRAP": str(world.peer.address), "TERM": "xterm", "COLUMNS": "300"}
    _, shown = OnTerminal(list(command), {**env, "XDG_CONFIG_HOME": "/no/contexts/here"}).end()
    left = re.sub(r"\x1b\[[0-9;]*m", "", shown.replace("\r\n", "\n"))  # rich's and our colours
    assert harmless(left), shown
    assert "\x1b[2J" not in shown
    assert "PWNED" in shown or command[:2] in (("topic", "describe"), ("topic", "delete"))


def test_the_shell_is_offered_no_control_characters(
    world: World, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    make_evil(world)
    env = {
        "DLOG_BOOTSTRAP": str(world.peer.address),
        "XDG_CONFIG_HOME": "/no/contexts/here",
        "_DLOGCTL_COMPLETE": "zsh_complete",
        "COMP_WORDS": "dlogctl topic describe ",
        "COMP_CWORD": "3",
    }
    _, shown = OnTerminal([], env).end()
    assert harmless(shown.replace("\r\n", "\n"))
    assert "PWNED" not in shown


@given(TEXTS)
def test_escaped_texts_are_one_printable_line(text: str) -> None:
    assert escaping.escaped(text).isprintable()
    assert len(escaping.escaped_lines(text).split("\n")) == len(text.split("\n"))
    assert escaping.escaped(escaping.escaped(text)) == escaping.escaped(text)


@given(TEXTS)
def test_cells_of_tsv_can_be_read_back(text: str) -> None:
    cell = escaping.tsv_cell(text)
    assert cell.isprintable()
    back = re.sub(
        r"\\(\\|[tnr]|x[0-9a-f]{2}|u[0-9a-f]{4}|U[0-9a-f]{8})",
        lambda found: found[0].encode("ascii").decode("unicode_escape"),
        cell,
    )
    assert back == text


@given(st.recursive(TEXTS, lambda inner: st.lists(inner) | st.dictionaries(TEXTS, inner)))
def test_escaped_json_is_the_same_document(document: Any) -> None:
    for indent in (None, 2):
        text = escaping.escaped_json(json.dumps(document, indent=indent, ensure_ascii=False))
        assert json.loads(text) == document
        assert text.replace("\n", "").isprintable()


@given(st.binary())
def test_records_are_shown_on_one_line(record: bytes) -> None:
    shown = escaping.escaped_record(record, is_json=False).decode()
    assert shown.replace("\t", "").isprintable()


def test_records_as_people_see_them() -> None:
    record = b"3\t7\t\x1b[2J\xff caf\xc3\xa9 \xc2\x9b\nx"
    assert escaping.escaped_record(record, is_json=False) == (
        b"3\t7\t\\x1b[2J\\xff caf\xc3\xa9 \\x9b\\nx"
    )
    line = json.dumps({"value": EVIL}, ensure_ascii=False).encode()
    shown = escaping.escaped_record(line, is_json=True)
    assert json.loads(shown) == {"value": EVIL}
    assert shown.decode().isprintable()


def test_yaml_can_be_read_back(capsys: pytest.CaptureFixture[str]) -> None:
    document = [{"plain": "a\u202eb", "quoted": EVIL, "letters": "café"}]
    Output(Settings(given={"output": "yaml"})).document(document)
    shown = capsys.readouterr().out
    assert harmless(shown)
    assert yaml.safe_load(shown) == document
