"""The table of error codes: complete, unique, in agreement with kio's copy of Kafka's table."""

import pytest
from kio.schema.errors import ErrorCode

from dlog import errors
from dlog.errors import ERRORS, WireError, error_for


@pytest.mark.parametrize("code", sorted(ERRORS))
def test_agrees_with_kio(code: int) -> None:
    theirs = ErrorCode(code)
    ours = ERRORS[code]
    assert ours.name == theirs.name.upper()
    assert ours.retriable == theirs.retriable
    assert ours.code == code
    assert ours.__name__.endswith("Error")


def test_metadata_errors_are_retriable() -> None:
    assert all(e.retriable for e in ERRORS.values() if e.refresh_metadata)


def test_error_for_keeps_the_message_and_falls_back_to_the_name() -> None:
    error = error_for(6, "try node 2")
    assert type(error) is errors.NotLeaderOrFollowerError
    assert str(error) == "try node 2"
    assert str(error_for(6)) == "NOT_LEADER_OR_FOLLOWER"


def test_error_for_an_unknown_code_is_an_unknown_server_error() -> None:
    error = error_for(31_000)
    assert type(error) is errors.UnknownServerError
    assert "31000" in str(error)


def test_a_code_cannot_be_taken_twice() -> None:
    with pytest.raises(TypeError, match="is taken by"):
        type("AgainError", (WireError,), {}, code=6)


def test_a_time_out_is_both_a_transport_and_a_wire_error() -> None:
    error = error_for(7)
    assert isinstance(error, errors.TransportError)
    assert isinstance(error, WireError)


def test_config_error_lists_every_problem() -> None:
    error = errors.ConfigError(["a is wrong", "b is missing"])
    assert error.problems == ("a is wrong", "b is missing")
    assert str(error) == "a is wrong; b is missing"
