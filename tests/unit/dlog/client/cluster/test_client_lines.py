"""The client's log lines and counters."""

import logging
from dataclasses import fields

import pytest

from dlog.client.cluster.counters import ClientCounters
from dlog.client.cluster.log_lines import LOGGER, error_name, format_event, format_value, log_event
from dlog.errors import DisconnectedError, NotLeaderOrFollowerError


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (7, "7"),
        (0.12345, "0.123"),
        ("t-3", "t-3"),
        ("two words", "'two words'"),
        ("a=b", "'a=b'"),
        ("", "''"),
        ("line\nbreak", r"'line\nbreak'"),
        ("it's", '"it\'s"'),
        (True, "True"),
    ],
)
def test_values_are_quoted_where_they_must_be(value: object, text: str) -> None:
    assert format_value(value) == text


def test_long_values_are_cut() -> None:
    assert len(format_value("x" * 1000)) == 300


def test_lines_have_their_values_behind_the_event() -> None:
    line = format_event("Repeated a call", node="h:1", reason="no answer, twice", nothing=None)
    assert line == "Repeated a call node=h:1 reason='no answer, twice'"


def test_errors_have_short_names() -> None:
    assert error_name(NotLeaderOrFollowerError()) == "NOT_LEADER_OR_FOLLOWER"
    assert error_name(DisconnectedError("x")) == "DisconnectedError"


def test_nothing_is_formatted_that_nobody_reads(caplog: pytest.LogCaptureFixture) -> None:
    class Costly:
        def __str__(self) -> str:
            raise AssertionError("formatted")

    caplog.set_level(logging.WARNING, LOGGER.name)
    log_event(logging.INFO, "Event", value=Costly())
    log_event(logging.WARNING, "Event", value="100%s")
    assert caplog.messages == ["Event value=100%s"]


def test_counters_are_read_by_name() -> None:
    counters = ClientCounters()
    counters.retries += 2
    counters.transport.bytes_sent += 5
    values = counters.as_dict()
    assert (values["retries"], values["bytes_sent"]) == (2, 5)
    assert all(type(value) is int for value in values.values())
    own = {each.name for each in fields(ClientCounters)} - {"transport"}
    assert own | {each.name for each in fields(counters.transport)} == set(values)
