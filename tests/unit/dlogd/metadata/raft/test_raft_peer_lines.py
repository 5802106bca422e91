"""What is said of peers that come and go: news at once, the same only once in a while."""

import logging

import pytest

from dlogd.metadata.raft.peer_log import AGAIN_S, BRIEF_S, LOST, PEERS_MAX, SENT_AWAY, PeerLog

LOGGER = "dlogd.metadata.raft.peer_log"


def said(caplog: pytest.LogCaptureFixture) -> list[str]:
    found = [
        each.getMessage()
        for each in caplog.records
        if each.name == LOGGER and each.levelno > logging.DEBUG
    ]
    caplog.clear()
    return found


def test_a_refusal_is_told_once_in_a_while(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, LOGGER)
    lines = PeerLog()
    for step in range(100):
        lines.on_refused(2, "h", "secret", step / 100)
    assert said(caplog) == ["Closed Raft connection peer=2 host=h reason=secret"]
    lines.on_refused(2, "h", "cluster", 1)
    lines.on_refused(3, "h", "secret", 1)
    assert len(said(caplog)) == 2
    lines.on_refused(2, "h", "secret", AGAIN_S)
    assert len(said(caplog)) == 1


def test_a_peer_that_comes_and_goes_is_told_of_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, LOGGER)
    lines = PeerLog()
    for step in range(100):
        lines.on_connected(2, step / 10)
        assert lines.on_disconnected(2, step / 10 + 0.01) == SENT_AWAY
    assert said(caplog) == ["Raft peer connected peer=2", "Raft peer disconnected at once peer=2"]
    lines.on_connected(2, 20)
    assert lines.on_disconnected(2, 20 + BRIEF_S) == LOST
    lines.on_connected(2, 30)
    assert said(caplog) == ["Raft peer disconnected peer=2", "Raft peer connected peer=2"]


def test_strangers_with_any_id_take_no_memory_and_fill_no_disk(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG, LOGGER)
    lines = PeerLog()
    for peer in range(10 * PEERS_MAX):
        lines.on_refused(peer, "h", f"it is of cluster {peer}", peer / 1000)
    assert len(lines._refused) <= PEERS_MAX
    assert len(said(caplog)) == PEERS_MAX
    lines.on_refused(2, "h", "secret", AGAIN_S + 1)
    assert len(said(caplog)) == 1
