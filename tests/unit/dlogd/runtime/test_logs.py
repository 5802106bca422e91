"""Log lines: shape, fields, failures without traceback, slow readers, the journal's protocol."""

import json
import logging
import os
import socket
import struct
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dlogd.runtime import logging_setup
from dlogd.runtime.journald import LibsystemdJournal, NativeJournal, encode_fields, open_journal
from dlogd.runtime.log_events import Event

log = logging.getLogger("dlogd.storage.log.partition_log")


@pytest.fixture(autouse=True)
def restored_logging() -> Iterator[None]:
    root = logging.getLogger()
    before = (root.handlers[:], root.level, logging.logThreads, logging.logProcesses)
    # What earlier tests left in threads goes on to talk: py4j tells of every object it frees.
    others = [
        each
        for name, each in logging.Logger.manager.loggerDict.items()
        if isinstance(each, logging.Logger)
        and not each.disabled
        and name.partition(".")[0] != "dlogd"
    ]
    for each in others:
        each.disabled = True
    yield
    for each in others:
        each.disabled = False
    root.handlers[:], level, logging.logThreads, logging.logProcesses = before
    root.setLevel(level)
    logging.logMultiprocessing = True


class Pipe:
    """Standard error's stand-in."""

    def __init__(self) -> None:
        self.reader, self.writer = os.pipe()
        os.set_blocking(self.reader, False)

    def lines(self) -> list[str]:
        data = b""
        while True:
            try:
                data += os.read(self.reader, 1 << 20)
            except BlockingIOError:
                return data.decode().splitlines()


@pytest.fixture
def pipe() -> Iterator[Pipe]:
    pipe = Pipe()
    yield pipe
    os.close(pipe.reader)
    os.close(pipe.writer)


def fail() -> None:
    try:
        raise ValueError("two\nlines")
    except ValueError:
        log.exception("Closed connection peer=%s", "127.0.0.1:5")


def test_text_is_one_line_per_event(pipe: Pipe) -> None:
    logging_setup.configure("text", "info", descriptor=pipe.writer)
    log.debug("unseen")
    log.info("Truncated log partition=%s from=%d", "t-3", 812)
    log.info("Odd name=%s", "a\nb")
    fail()
    lines = pipe.lines()
    assert len(lines) == 3
    assert lines[0].endswith(
        "Z INFO dlogd.storage.log.partition_log: Truncated log partition=t-3 from=812"
    )
    assert lines[1].endswith(r"Odd name='a\nb'")
    assert "Closed connection peer=127.0.0.1:5 error='ValueError: two\\nlines'" in lines[2]
    assert "at=test_logs.py:" in lines[2]


def test_what_peers_send_is_neither_a_line_nor_a_command(pipe: Pipe) -> None:
    logging_setup.configure("text", "info", descriptor=pipe.writer)
    log.info("Closed connection client_id=%s", "a\x1b[31m\x85\u2028\x0b\0 größe")
    (line,) = pipe.lines()
    assert line.endswith(r"client_id='a\x1b[31m\x85\u2028\x0b\x00 größe'")


class Odd:
    """A value whose text has control characters, and which is not quoted for that."""

    def __str__(self) -> str:
        return "\x1b]0;x\x07\nERROR"


def test_no_way_of_saying_a_text_lets_control_characters_out(pipe: Pipe) -> None:
    said = [
        ("Refused %s", "a\x1b[2J\nb"),  # not a field
        ("Refused reason=%s", Odd()),
        ("Refused count=%d", "a\x1b[2J\nb"),  # a wrong call
        ("Refused\x1b[2J\n %s", "b"),
    ]
    for form in ("text", "json"):
        logging_setup.configure(form, "info", descriptor=pipe.writer)
        for message, value in said:
            log.warning(message, value)
        lines = pipe.lines()
        assert len(lines) == len(said)
        assert all(line.isprintable() for line in lines)
        if form == "json":
            parsed = [json.loads(line) for line in lines]
            texts = [text for each in parsed for text in each.get("fields", {}).values()]
            texts += [each["message"] for each in parsed]
            assert all(text.isprintable() for text in texts), texts
            assert any("x1b]0;x" in text for text in texts)


def test_json_has_fields_and_a_traceback_only_when_debugging(pipe: Pipe) -> None:
    control = logging_setup.configure("json", "info", descriptor=pipe.writer)
    log.info("Truncated log partition=%s-%d from=%d to=%d reason=%r", "t", 3, 812, 790, "a b=c")
    fail()
    control.set_level("debug")
    fail()
    truncated, failed, debugged = map(json.loads, pipe.lines())
    assert truncated["level"] == "info"
    assert truncated["fields"] == {
        "partition": "t-3",
        "from": "812",
        "to": "790",
        "reason": "a b=c",
    }
    assert failed["fields"]["peer"] == "127.0.0.1:5"
    assert "traceback" not in failed
    assert debugged["traceback"].startswith("Traceback")


def test_a_field_is_the_whole_text_of_an_error(pipe: Pipe) -> None:
    logging_setup.configure("json", "info", descriptor=pipe.writer)
    error = OSError(5, "Input/output error", "/data/t-1/0.log")
    log.error("Log failed partition=%s error=%s peer=%s", "t-1", error, "127.0.0.1:5")
    log.error("Refused message=%s", "'x' is not one of 'a', 'b'")
    failed, refused = map(json.loads, pipe.lines())
    assert failed["fields"] == {
        "partition": "t-1",
        "error": "[Errno 5] Input/output error: '/data/t-1/0.log'",
        "peer": "127.0.0.1:5",
    }
    assert refused["fields"] == {"message": "'x' is not one of 'a', 'b'"}


def test_a_wrong_call_still_gives_a_line(pipe: Pipe) -> None:
    logging_setup.configure("text", "info", descriptor=pipe.writer)
    log.info("Got %d", "text")
    assert "Got %d format_error=" in pipe.lines()[0]


def test_a_reader_that_sleeps_costs_lines_not_time(pipe: Pipe) -> None:
    control = logging_setup.configure("text", "info", descriptor=pipe.writer)
    for number in range(2000):
        log.info(f"Event number={number} {'x' * 200}")
    dropped = control.dropped_count
    assert dropped > 1000
    before = pipe.lines()
    log.info("Back again")
    after = pipe.lines()
    assert after[-2].endswith(f"Dropped log lines count={dropped}")
    assert after[-1].endswith("Back again")
    assert len(before) + dropped == 2000


def test_a_message_that_comes_too_often_is_left_out_and_counted(pipe: Pipe) -> None:
    logging_setup.configure("text", "info", descriptor=pipe.writer)
    seen = 0

    def tell(second: float, text: str, number: int) -> None:
        record = logging.LogRecord("n", logging.INFO, __file__, 1, text, (number,), None)
        record.created = second
        logging.getLogger().handle(record)

    for number in range(logging_setup.REPETITIONS_MAX + 7):
        tell(1000.0, "Closed connection number=%d", number)
        seen += len(pipe.lines())
    assert seen == logging_setup.REPETITIONS_MAX
    tell(1001.0, "Something else number=%d", 1)
    assert len(pipe.lines()) == 1
    tell(1010.0, "Closed connection number=%d", 1)
    left_out, closed = pipe.lines()
    assert "Left out repeated log lines count=7 text='Closed connection number=%d'" in left_out
    assert closed.endswith("Closed connection number=1")


def test_a_line_longer_than_the_pipe_does_not_run_into_the_next(pipe: Pipe) -> None:
    control = logging_setup.configure("text", "info", descriptor=pipe.writer)
    log.info("x" * 200_000)
    assert control.dropped_count == 1
    assert len(pipe.lines()) == 1
    log.info("next")
    assert pipe.lines()[-1].endswith("next")


def test_a_closed_reader_is_no_error(pipe: Pipe) -> None:
    control = logging_setup.configure("text", "info", descriptor=pipe.writer)
    os.close(pipe.reader)
    log.info("nobody listens")
    assert control.dropped_count == 1
    pipe.reader = os.open(os.devnull, os.O_RDONLY)


def test_without_a_journal_text_goes_to_standard_error(pipe: Pipe, tmp_path: Path) -> None:
    logging_setup.configure(
        "journal", "info", descriptor=pipe.writer, journal_address=str(tmp_path / "none")
    )
    log.info("Started")
    lines = pipe.lines()
    assert "No journal here" in lines[0]
    assert lines[1].endswith("Started")


class Journald:
    """The receiving end of the journal's socket."""

    def __init__(self, address: str) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(address)
        self.socket.setblocking(False)

    def entry(self) -> dict[str, str]:
        data = self.socket.recv(1 << 20)
        fields: dict[str, str] = {}
        while data:
            head, _, rest = data.partition(b"\n")
            name, separator, value = head.partition(b"=")
            if not separator:
                (length,) = struct.unpack_from("<Q", rest)
                value, rest = rest[8 : 8 + length], rest[8 + length + 1 :]
            fields[name.decode()] = value.decode()
            data = rest
        return fields


@pytest.fixture
def journald(tmp_path: Path) -> Iterator[Journald]:
    journald = Journald(str(tmp_path / "journal"))
    yield journald
    journald.socket.close()


def test_the_journal_gets_fields(journald: Journald, tmp_path: Path) -> None:
    logging_setup.configure("journal", "debug", journal_address=str(tmp_path / "journal"))
    log.warning("Truncated log partition=%s leader.epoch=%d", "t-3", 7)
    fields = journald.entry()
    assert fields["MESSAGE"] == "Truncated log partition=t-3 leader.epoch=7"
    assert (fields["PRIORITY"], fields["SYSLOG_IDENTIFIER"]) == ("4", "dlogd")
    assert (fields["DLOG_PARTITION"], fields["DLOG_LEADER_EPOCH"]) == ("t-3", "7")
    assert fields["CODE_FILE"] == __file__
    fail()
    assert journald.entry()["TRACEBACK"].startswith("Traceback")


def test_a_journal_that_sleeps_never_blocks_and_one_that_restarts_is_found(
    journald: Journald, tmp_path: Path
) -> None:
    control = logging_setup.configure("journal", "info", journal_address=str(tmp_path / "journal"))
    for number in range(1000):
        log.info("Event number=%d", number)
    assert control.dropped_count > 0
    journald.socket.close()
    log.info("nobody listens")
    (tmp_path / "journal").unlink()
    again = Journald(str(tmp_path / "journal"))
    log.info("Back again")
    assert again.entry()["MESSAGE"].startswith("Dropped log lines count=")
    assert again.entry()["MESSAGE"] == "Back again"
    again.socket.close()


def test_an_entry_too_large_for_a_datagram_is_cut(journald: Journald, tmp_path: Path) -> None:
    send = open_journal(str(tmp_path / "journal"))
    assert send([("MESSAGE", "x" * 10_000_000)])
    assert 0 < len(journald.entry()["MESSAGE"]) < 100_000


def test_libsystemd_is_called_only_while_journald_reads(journald: Journald, tmp_path: Path) -> None:
    sent: list[tuple[str, ...]] = []
    guard = NativeJournal(str(tmp_path / "journal"))
    journal = LibsystemdJournal(lambda *fields: sent.append(fields), guard)
    send: Callable[[list[tuple[str, str]]], bool] = journal.send
    assert send([("MESSAGE", "a"), ("PRIORITY", "6")])
    assert sent == [("MESSAGE=a", "PRIORITY=6")]
    while guard.send([("MESSAGE", "fill")]):
        pass
    assert not send([("MESSAGE", "lost")])
    assert len(sent) == 1


def test_the_native_encoding() -> None:
    encoded = encode_fields([("MESSAGE", "a=b"), ("TRACEBACK", "x\ny")])
    assert encoded == b"MESSAGE=a=b\nTRACEBACK\n\x03\0\0\0\0\0\0\0x\ny\n"


EVIL = "x peer=10.9.8.7 client_id=admin error=none severity=info"


def tell_of(client_id: str) -> None:
    """Log as the server does, of a client with a name of its own choice."""
    reason = Event("Closed connection of a client", error=f"bad {client_id}")
    log.warning("%s peer=%s client_id=%s", reason, "127.0.0.1:5", client_id)
    log.warning("Refused request api=%s client_id=%s peer=%s", "FETCH", client_id, "127.0.0.1:5")


@pytest.mark.parametrize("name", [EVIL, f"x' {EVIL}", f'x" {EVIL}', f"x\\' {EVIL}", "%s peer=%s"])
def test_a_client_cannot_make_or_change_a_field(pipe: Pipe, name: str) -> None:
    logging_setup.configure("json", "info", descriptor=pipe.writer)
    tell_of(name)
    closed, refused = [json.loads(line)["fields"] for line in pipe.lines()]
    assert closed == {"error": f"bad {name}", "peer": "127.0.0.1:5", "client_id": name}
    assert refused == {"api": "FETCH", "client_id": name, "peer": "127.0.0.1:5"}


def test_nor_one_of_the_journal(journald: Journald, tmp_path: Path) -> None:
    logging_setup.configure("journal", "info", journal_address=str(tmp_path / "journal"))
    tell_of(EVIL)
    for _ in range(2):
        fields = journald.entry()
        assert fields["DLOG_PEER"] == "127.0.0.1:5"
        assert fields["DLOG_CLIENT_ID"] == EVIL
        assert "DLOG_SEVERITY" not in fields
        assert fields["PRIORITY"] == "4"


def test_in_text_a_client_is_quoted_and_cut(pipe: Pipe) -> None:
    logging_setup.configure("text", "info", descriptor=pipe.writer)
    tell_of(EVIL)
    tell_of("y" * 32_000)
    closed, refused, long_closed, long_refused = pipe.lines()
    assert closed.endswith(f"of a client error='bad {EVIL}' peer=127.0.0.1:5 client_id='{EVIL}'")
    assert refused.endswith(f"api=FETCH client_id='{EVIL}' peer=127.0.0.1:5")
    assert long_refused.endswith(f"client_id={'y' * 100}... peer=127.0.0.1:5")
    assert long_closed.endswith(f"client_id={'y' * 100}...")
    assert len(long_closed) < 2400


def test_a_failure_does_not_replace_a_field(pipe: Pipe) -> None:
    logging_setup.configure("json", "info", descriptor=pipe.writer)
    try:
        raise ValueError(EVIL)
    except ValueError:
        log.exception("Closed connection peer=%s", "127.0.0.1:5")
    (line,) = pipe.lines()
    fields = json.loads(line)["fields"]
    at = fields.pop("at")
    assert at.startswith("test_logs.py:")
    assert fields == {"peer": "127.0.0.1:5", "error": f"ValueError: {EVIL}"}


def test_fields_of_several_arguments_and_wrong_calls(pipe: Pipe) -> None:
    logging_setup.configure("json", "info", descriptor=pipe.writer)
    log.info(
        "Truncated log partition=%s had=%d..%d of=%d%%; see path=%s/topics",
        "t",
        1,
        2,
        9,
        "/d",
    )
    log.info("Got count=%d name=%s", "text", EVIL)
    log.info("No arguments peer=10.9.8.7")
    began, wrong, none = map(json.loads, pipe.lines())
    assert began["fields"] == {"partition": "t", "had": "1..2", "of": "9%", "path": "/d/topics"}
    assert wrong["fields"] == {"name": EVIL}
    assert "fields" not in none
