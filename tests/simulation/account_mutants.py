"""Holes in what is counted for strangers: connections, memory, entries, log lines.

Opened as the others of `TESTED` (test_mutants.py), each with the tests of which one at least sees
it. A constant is not replaced where its test takes the constant as its measure.
"""

from collections.abc import Sequence
from typing import Any

from dlogd.metadata.raft.peer_log import PeerLog
from dlogd.net import connection_admission, frame_memory
from dlogd.net.connection_admission import ConnectionAdmission, Place, RefusalLines
from dlogd.net.frame_memory import FrameMemory, Share
from dlogd.net.frame_reader import FrameReader
from dlogd.replication.partition.fetch_waiters import FetchWaiters
from dlogd.server.entry_budget import EntryBudget, Lane, Room
from dlogd.server.request_budget import RequestBudget
from dlogd.server.router import RequestRouter
from dlogd.server.slow_senders import SlowSenders
from dlogd.status import http_room
from dlogd.status.http_hosts import HostCheck
from tests.simulation.patches import Patch

UNIT = "tests/unit"
ADMISSION = f"{UNIT}/dlogd/net/test_admission.py"
INTAKE = f"{UNIT}/dlogd/net/test_server_intake.py"


def _do_nothing(_: Any) -> Any:
    return lambda *_: None


def _allow(_: Any) -> Any:
    return lambda *_: True


# -- admission


def _enter(*, newest: bool = True, ahead: int = 2) -> Any:
    """Return how places are taken, with another one ended, or for another lead than two places."""

    def enter(self: Any, address: str, count_max: int) -> Any:
        displaced = None
        if self.count >= count_max:
            if self.count_of(address) + ahead > self._most:
                return None
            held = self._by_address[next(reversed(self._by_count[self._most]))]
            displaced = next(reversed(held) if newest else iter(held))
            holder = displaced.holder
            displaced.leave()
            displaced.holder = holder
        place: Place[Any] = Place(address, self)
        place.displaced = displaced
        places = self._by_address.setdefault(address, {})
        self._move(address, len(places), len(places) + 1)
        places[place] = None
        self.count += 1
        return place

    return lambda _: enter


def _count_all_attempts(original: Any) -> Any:
    """Attempts that an address may not make use up the rate of all."""

    def admit(self: Any, host: str, now_us: int) -> Any:
        self._rates.take_of_all(now_us)
        return original(self, host, now_us)

    return admit


def _know_who_came(original: Any) -> Any:
    """An address is known before anybody has proven itself from there."""

    def admit(self: Any, host: str, now_us: int) -> Any:
        found = original(self, host, now_us)
        if isinstance(found, Place):
            self._learned[found.address] = None
        return found

    return admit


def _learn_for_good(_: Any) -> Any:
    def prove(self: Any, place: Place[Any]) -> None:
        place.leave()
        self._learned[place.address] = None

    return prove


def _forget_the_first_to_come(_: Any) -> Any:
    """Beyond the bound a flood is forgotten for addresses that come once."""

    def take_own(self: Any, address: str, now_us: int) -> tuple[bool, bool]:
        full_us = self._full_us.get(address, 0)
        may = not self._each.wait_us(full_us, now_us)
        is_within_share = self._each.used(full_us, now_us) < self._share
        self._full_us[address] = self._each.after(full_us, now_us) if may else full_us
        self._forget(now_us)
        return may, is_within_share

    return take_own


def _say_each(_: Any) -> Any:
    return lambda _self, host, _now_us: (host, 1)


def _say_each_address(original: Any) -> Any:
    def count(self: Any, host: str, now_us: int) -> tuple[str, int]:
        said: tuple[str, int] = original(self, host, now_us)
        self._said.setdefault(host, (now_us, 0))
        return said

    return count


# -- memory of frames


def _keep_at_the_end(_: Any) -> Any:
    """A connection that ends in the middle of a frame keeps what it was charged."""

    def close(self: Any) -> None:
        self._frame, self._rest = None, b""
        if self.share is not self._memory.whole:
            self._memory.leave(self.share)

    return close


def _keep_when_dropped(_: Any) -> Any:
    """A large frame that was consumed stays charged until the next one."""

    def drop_frame(self: Any, frame: bytearray) -> None:
        self._frame = None
        self._source = self._shared
        self._next = self._end = 0
        self._memory.put_by(self, frame)

    return drop_frame


def _lend_to_whoever_asks(_: Any) -> Any:
    def buffer_of(self: Any, holder: Any, charge: int, came: int) -> bytearray:
        if frame_memory.LENT_AFTER_BYTES <= came < frame_memory.LENT_BYTES:
            holder.share.lent_count += 1
            self._lent_count += 1
            return bytearray(frame_memory.LENT_BYTES)
        return bytearray(charge)

    return buffer_of


def _share(*, of_all: bool = False, new_of_all: bool = False) -> Any:
    """Return how addresses get their shares: with all of the pool, or all of the share for new."""

    def join(self: FrameMemory, address: str) -> Share:
        if not self._has_shares:
            return self.whole
        size = self.bytes_max if of_all else self.bytes_max // frame_memory.SHARE
        new_size = size if new_of_all else self.bytes_max // frame_memory.SHARE
        if not new_of_all:
            new_size //= frame_memory.NEW_SHARE
        fresh = Share(address, size, new_size, frame_memory.LENT_COUNT_MAX // 2)
        share = self._shares.setdefault(address, fresh)
        share.holders += 1
        return share

    return lambda _: join


# -- requests


def _keep_the_room(_: Any) -> Any:
    """A request that was counted at once keeps its entries when its client leaves."""

    def cancel(self: Any) -> None:
        if not self._is_over:
            self._end()
            if not self._is_held:
                self._lane.leave(self)

    return cancel


def _stay_in_line(_: Any) -> Any:
    """A request whose client has left still waits for its room."""

    def cancel(self: Any) -> None:
        if not self._is_over and self._is_held:
            self._end()
            self._lane.give_back(self.entries)

    return cancel


def _one_lane(_: Any) -> Any:
    return lambda self, _entries: self._large


def _answer_for_good(original: Any) -> Any:
    """The entries of an answered request are kept."""

    def answer(
        self: Any, connection: Any, header: Any, buffer: bytearray, end: int, entries: int
    ) -> None:
        original(self, connection, header, buffer, end, 0)

    return answer


def _fetch_in_the_next_turn(original: Any) -> Any:
    """A Fetch behind one that waits is worked on in its turn, not after the answer."""

    def fetch_after_answer(
        self: Any, connection: Any, version: int, correlation_id: int, position: int, end: int
    ) -> None:
        original(self, connection, version, correlation_id, position, end)
        connection.on_fetched = None
        self._turns.ask(connection.unstall)

    return fetch_after_answer


# -- HTTP


def _serve_all_of_one_address(original: Any) -> Any:
    def take(self: Any, connection: Any, *, max_count: int, per_ip_max: int) -> Any:
        return original(self, connection, max_count=max_count, per_ip_max=max_count)

    return take


def _note_each_client(original: Any) -> Any:
    def log(self: Any, host: str, peer: str, now_s: float) -> None:
        kept = dict(self._logged)
        original(self, host, peer, now_s)
        self._logged = kept | self._logged

    return log


# Patches, and the tests of which one at least must fail.
TESTED: dict[str, tuple[Sequence[Patch], Sequence[str]]] = {
    "accounts: the oldest of a crowd gives way": (
        ((connection_admission._Room, "enter", _enter(newest=False)),),
        (
            f"{ADMISSION}::test_the_newest_of_the_most_crowded_address_is_ended_and_the_oldest_stays",
        ),
    ),
    "accounts: addresses end each other for ever": (
        ((connection_admission._Room, "enter", _enter(ahead=1)),),
        (f"{ADMISSION}::test_it_decides_as_the_plain_model_does",),
    ),
    "accounts: a flood uses up the rate of all": (
        ((ConnectionAdmission, "admit", _count_all_attempts),),
        (
            f"{ADMISSION}"
            "::test_attempts_of_one_address_over_its_rate_leave_the_rate_over_all_to_the_others",
        ),
    ),
    "accounts: an address is known without a proof": (
        ((ConnectionAdmission, "admit", _know_who_came),),
        (f"{ADMISSION}::test_who_has_proven_itself_is_known_and_takes_no_place",),
    ),
    "accounts: learned addresses are never forgotten": (
        ((ConnectionAdmission, "prove", _learn_for_good),),
        (f"{ADMISSION}::test_learned_addresses_are_bounded_and_the_configured_ones_stay",),
    ),
    "accounts: a flood is forgotten for others that come once": (
        ((connection_admission._Rates, "take_own", _forget_the_first_to_come),),
        (f"{ADMISSION}::test_who_floods_is_not_forgotten_for_others_that_come_once",),
    ),
    "accounts: each refusal is a line": (
        ((RefusalLines, "count", _say_each),),
        (f"{ADMISSION}::test_one_line_a_minute_for_each_address_says_how_many",),
    ),
    "accounts: addresses of lines are never forgotten": (
        ((RefusalLines, "count", _say_each_address),),
        (f"{ADMISSION}::test_lines_about_many_addresses_are_bounded",),
    ),
    "accounts: each refused Raft peer is a line": (
        ((PeerLog, "_is_news", _allow),),
        (
            f"{UNIT}/dlogd/metadata/raft/test_raft_peer_lines.py"
            "::test_strangers_with_any_id_take_no_memory_and_fill_no_disk",
        ),
    ),
    "accounts: connections that end keep their memory": (
        ((FrameReader, "close", _keep_at_the_end),),
        (f"{INTAKE}::test_a_crowd_that_ends_no_first_frame_keeps_little_for_each_connection",),
    ),
    "accounts: frames that were consumed keep their memory": (
        ((FrameReader, "_drop_frame", _keep_when_dropped),),
        (f"{INTAKE}::test_a_large_frame_that_was_consumed_keeps_no_memory_while_its_answer_waits",),
    ),
    "accounts: addresses of senders are never forgotten": (
        ((FrameMemory, "leave", _do_nothing),),
        (f"{INTAKE}::test_a_crowd_that_ends_no_first_frame_keeps_little_for_each_connection",),
    ),
    "accounts: an address takes all memory": (
        ((FrameMemory, "join", _share(of_all=True)),),
        (f"{INTAKE}::test_a_crowd_of_one_address_leaves_memory_to_the_others",),
    ),
    "accounts: first frames take the whole share of their address": (
        ((FrameMemory, "join", _share(new_of_all=True)),),
        (f"{INTAKE}::test_a_crowd_that_ends_no_first_frame_keeps_little_for_each_connection",),
    ),
    "accounts: all go beyond the bound of memory": (
        ((FrameMemory, "may", _allow),),
        (f"{INTAKE}::test_a_large_frame_waits_for_memory_and_goes_on",),
    ),
    "accounts: waiting for memory has no end": (
        ((FrameMemory, "_wake", _do_nothing),),
        (f"{INTAKE}::test_a_large_frame_waits_for_memory_and_goes_on",),
    ),
    "accounts: large buffers are lent without a bound": (
        ((FrameMemory, "buffer_of", _lend_to_whoever_asks),),
        (f"{INTAKE}::test_lent_buffers_are_bounded_and_an_address_has_half_of_them",),
    ),
    "accounts: a first frame waits for memory for ever": (
        ((SlowSenders, "_waits_in_vain", lambda _: staticmethod(lambda *_: False)),),
        (
            f"{UNIT}/dlogd/server/test_lateness.py::test_first_frames_do_not_wait_for_one_that_goes_on",
        ),
    ),
    "accounts: a frame may drip": (
        ((SlowSenders, "is_late", lambda _: lambda *_: False),),
        (
            f"{UNIT}/dlogd/server/test_lateness.py"
            "::test_a_frame_that_drips_is_given_up_whatever_the_pause_between_its_bytes",
        ),
    ),
    "accounts: requests that wait for answers count for nothing": (
        ((RequestBudget, "charge", _do_nothing),),
        (
            f"{UNIT}/dlogd/server/test_answering.py::test_requests_that_wait_for_answers_count_against_the_bound",
        ),
    ),
    "accounts: waiters that have left are kept": (
        ((FetchWaiters, "_clean", _do_nothing),),
        (
            f"{UNIT}/dlogd/replication/partition/test_fetch_waiters.py::test_waiters_that_have_left_are_not_kept",
        ),
    ),
    "accounts: a Fetch waits for its turn and for no answer": (
        ((RequestRouter, "_fetch_after_answer", _fetch_in_the_next_turn),),
        (
            f"{UNIT}/dlogd/server/handlers/test_fetch_pipelines.py::test_one_fetch_of_a_connection_waits_at_a_time",
        ),
    ),
    "accounts: large Fetches keep their entries": (
        ((Room, "cancel", _keep_the_room),),
        (f"{UNIT}/dlogd/server/test_entries_wait.py::test_large_fetches_wait_with_the_others",),
    ),
    "accounts: requests of clients that left wait on": (
        ((Room, "cancel", _stay_in_line),),
        (
            f"{UNIT}/dlogd/server/test_entry_budget.py::test_who_leaves_the_line_lets_the_next_one_in",
        ),
    ),
    "accounts: answered requests keep their entries": (
        ((RequestRouter, "_answer", _answer_for_good),),
        (
            f"{UNIT}/dlogd/server/test_entries_wait.py::test_large_requests_are_answered_one_after_the_other",
        ),
    ),
    "accounts: small requests wait for large ones": (
        ((EntryBudget, "_lane", _one_lane),),
        (
            f"{UNIT}/dlogd/server/test_entry_budget.py::test_a_small_request_never_waits_for_large_ones",
        ),
    ),
    "accounts: entries that are given back let nobody in": (
        ((Lane, "_grant", _do_nothing),),
        (f"{UNIT}/dlogd/server/test_entry_budget.py::test_addresses_take_turns",),
    ),
    "accounts: an address takes all HTTP connections": (
        ((http_room.Room, "take", _serve_all_of_one_address),),
        (
            f"{UNIT}/dlogd/status/test_status_http_shares.py"
            "::test_silent_connections_of_one_address_keep_no_probe_out",
        ),
    ),
    "accounts: clients that name other hosts are never forgotten": (
        ((HostCheck, "_log", _note_each_client),),
        (
            f"{UNIT}/dlogd/status/test_status_http_hosts.py::test_each_client_is_logged_once_a_minute",
        ),
    ),
}
