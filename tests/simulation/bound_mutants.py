"""Holes in the bounds that hold against strangers, and the tests of which one at least sees each.

Opened as the others of `TESTED` (test_mutants.py). More of them are in `proof_mutants.py`
(handshakes, nonces and ids), `account_mutants.py` (what is counted) and `content_mutants.py` (texts
and batches).
"""

from collections.abc import Callable, Sequence
from typing import Any

from dlog import compression
from dlogctl.output import escaping
from dlogd.metadata.raft.connection import Connection as RaftConnection
from dlogd.metadata.raft.handshake import Proofs
from dlogd.net import connection_admission
from dlogd.net.connection_admission import ConnectionAdmission, Place
from dlogd.net.frame_memory import FrameMemory, Holder
from dlogd.net.unread_answers import UnreadAnswers
from dlogd.node import secret_files
from dlogd.replication.partition.fetch_waiters import FetchWaiters, Wakes
from dlogd.server import batch_unpacker, router
from dlogd.server.connection import Connection
from dlogd.server.entry_budget import EntryBudget, Lane
from dlogd.server.handlers.fetch import FetchWork
from dlogd.server.handlers.produce import ProduceWork
from dlogd.status import scrapes
from dlogd.status.http_hosts import HostCheck
from dlogd.status.http_room import Room
from dlogd.status.http_server import HttpServer
from tests.simulation.patches import Patch

UNIT = "tests/unit"
NET = f"{UNIT}/dlogd/net"
STATUS = f"{UNIT}/dlogd/status"
SERVER = f"{UNIT}/dlogd/server"
PARTITION, RAFT = f"{UNIT}/dlogd/replication/partition", f"{UNIT}/dlogd/metadata/raft"


def _do_nothing(_: Any) -> Any:
    return lambda *_: None


def _believe(_: Any) -> Any:
    return lambda *_: True


def _prove_to_anybody(_: Any) -> Any:
    def take_hello(self: Any, frame: bytes) -> None:
        self._meet(frame)
        self._proofs = Proofs(self._secret, frame, self._own_bytes)
        self._write(self._own_bytes + self._proofs.proof(of_dialler=False))

    return take_hello


def _greet_before_looking(original: Any) -> Any:
    def take_hello(self: Any, frame: bytes) -> None:
        self._write(self._own_bytes)
        original(self, frame)

    return take_hello


def _take_reserved(original: Any) -> Any:
    def admit(self: Any, host: str, now_us: int) -> Any:
        place = self._reserved.enter(
            connection_admission.address_of(host), self._bounds.reserved_count
        )
        return original(self, host, now_us) if place is None else place

    return admit


def _refuse_when_full(original: Any) -> Any:
    def enter(self: Any, address: str, count_max: int) -> Any:
        return None if self.count >= count_max else original(self, address, count_max)

    return enter


def _charge_nobody_who_has_ended(original: Any) -> Any:
    """Memory that is given back stays charged."""

    def charge(self: FrameMemory, holder: Holder, size: int) -> None:
        if size >= holder.kept_bytes:
            original(self, holder, size)

    return charge


def _charge_what_is_announced(_: Any) -> Any:
    return staticmethod(lambda _holder, size, _came: size)


def _wait_for_any_byte(original: Any) -> Any:
    def add(self: Any, waiter: Any, number: int, mark: Any = None, bytes_more: int = 1) -> None:
        original(self, waiter, number)

    return add


def _wake_all_at_once(_: Any) -> Any:
    def wake(self: Any, due: list[Any]) -> None:
        for waiter, number in due:
            waiter.on_data(number)

    return wake


def _hold_up_no_fetch(original: Any) -> Any:
    """A Fetch that waits does not keep the next one of its connection from waiting, too."""

    def start(self: Any, request_bytes: int) -> None:
        original(self, request_bytes)
        self._connection.is_fetching = False

    return start


def _take_without_count(_: Any) -> Any:
    def take(self: EntryBudget, entries: int) -> bool:
        if entries:
            self._lane(entries)._count(entries)
        return True

    return take


def _in_order_of_arrival(_: Any) -> Any:
    """Rooms wait in one line, whichever address they are of."""

    def wait(self: Any, room: Any) -> None:
        room.address = ""
        self._metrics.entries_waits_total += 1
        self._metrics.entries_waiting += 1
        self._waiting.setdefault("", {})[room] = None
        self._grant()

    return wait


def _check_on_the_loop(_: Any) -> Any:
    def check_now(self: Any) -> bool:
        self._outcome = batch_unpacker.outcome_of(self._packed())
        return True

    return check_now


def _as_it_is(_: Any) -> Any:
    return lambda text: text


def _inflate_any_number(_: Any) -> Any:
    def decompress(data: Any, size_max: int) -> bytearray:
        view, output, position = memoryview(data).cast("B"), bytearray(), 0
        while True:
            position = compression._inflate_member(view, position, output, size_max)
            if position >= len(view):
                return output

    return decompress


def _give_way_whatever_is_done(_: Any) -> Any:
    def make_room(self: Any, candidates: Any) -> bool:
        first = min(candidates, key=lambda each: each.since_s)
        self._metrics.connections_displaced_total += 1
        self.leave(first)
        first.give_way()
        return True

    return make_room


def _in_order_of_partitions(_: Any) -> Any:
    """A crowd of one partition is woken before all others."""

    def work(self: Any) -> None:
        while self._left > 0 and self._rounds:
            for waiter, number in self._rounds[0]:
                self._left -= 1
                waiter.on_data(number)
                if self._left <= 0:
                    return
            self._rounds.popleft()

    return work


def _end_whoever_came_first(_: Any) -> Any:
    """Answers of the slowest client are ended, of whichever address it is."""

    def note(self: Any, reader: Any) -> None:
        self._readers[reader] = None
        while len(self._readers) > 1:
            if sum(each.kept_bytes for each in self._readers) <= self._bytes_max:
                return
            slowest = next(iter(self._readers))
            self.forget(slowest)
            self._on_given_up(slowest.address)
            slowest.give_up()

    return note


def _take_any_number(_: Any) -> Any:
    return lambda *_: 0


def _count_the_host(original: Any) -> Any:
    """A host counts for itself, also within a network of IPv6."""

    def connection_made(self: Any, transport: Any) -> None:
        original(self, transport)
        self.address = self.replies.address = str(transport.get_extra_info("peername")[0])

    return connection_made


def _share_by_host(original: Any) -> Any:
    def add(self: Any, connection: Any) -> Any:
        connection.peer = str(connection.transport.get_extra_info("peername")[0])
        return original(self, connection)

    return add


def _count_one(_: Any) -> Callable[[int], int]:
    return lambda _size: 1


# Patches, and the tests of which one at least must fail.
TESTED: dict[str, tuple[Sequence[Patch], Sequence[str]]] = {
    "strangers: who listens proves first": (
        ((RaftConnection, "_take_hello", _prove_to_anybody),),
        (
            f"{RAFT}/test_raft_handshake.py::test_a_stranger_with_the_public_cluster_id_gets_no_proof",
        ),
    ),
    "strangers: another cluster gets a nonce": (
        ((RaftConnection, "_take_hello", _greet_before_looking),),
        (f"{RAFT}/test_raft_handshake.py::test_a_refused_hello_gets_a_reason_and_no_nonce",),
    ),
    "strangers: places of nodes are anybody's": (
        ((ConnectionAdmission, "admit", _take_reserved),),
        (f"{NET}/test_admission.py::test_strangers_never_take_reserved_places",),
    ),
    "strangers: a crowd keeps all others out": (
        ((connection_admission._Room, "enter", _refuse_when_full),),
        (
            f"{NET}/test_admission.py"
            "::test_an_address_within_its_share_is_never_refused_because_of_another",
            f"{NET}/test_admission.py"
            "::test_the_newest_of_the_most_crowded_address_is_ended_and_the_oldest_stays",
        ),
    ),
    "strangers: addresses are never forgotten": (
        ((connection_admission._Rates, "_forget", _do_nothing),),
        (f"{NET}/test_admission.py::test_many_addresses_take_bounded_memory_and_give_it_back",),
    ),
    "strangers: a secret that can be guessed will do": (
        ((secret_files, "is_strong", _believe),),
        (f"{UNIT}/dlogd/node/test_secret_files.py::test_what_can_be_guessed_is_refused",),
    ),
    "strangers: a secret that others read will do": (
        ((secret_files, "_access_problem", _do_nothing),),
        (
            f"{UNIT}/dlogd/node/test_secret_files.py::test_a_file_that_others_may_read_or_change_is_refused",
        ),
    ),
    "strangers: memory is charged for good": (
        ((FrameMemory, "charge", _charge_nobody_who_has_ended),),
        (f"{NET}/test_server_intake.py::test_each_byte_that_is_kept_is_charged_and_given_back",),
    ),
    "strangers: memory follows what a frame announces": (
        ((FrameMemory, "charge_of", _charge_what_is_announced),),
        (f"{NET}/test_server_intake.py::test_memory_follows_what_arrived_not_what_was_promised",),
    ),
    "strangers: an append wakes all who wait": (
        ((FetchWaiters, "add", _wait_for_any_byte),),
        (
            f"{PARTITION}/test_fetch_waiters.py"
            "::test_a_waiter_is_told_of_the_append_that_brings_its_bytes_and_of_no_other",
        ),
    ),
    "strangers: a crowd is woken at once": (
        ((Wakes, "wake", _wake_all_at_once),),
        (f"{PARTITION}/test_fetch_waiters.py::test_a_crowd_is_woken_in_turns",),
    ),
    "strangers: Fetches of a connection wait side by side": (
        ((FetchWork, "start", _hold_up_no_fetch),),
        (
            f"{SERVER}/handlers/test_fetch_pipelines.py::test_one_fetch_of_a_connection_waits_at_a_time",
        ),
    ),
    "strangers: entries are counted and bound nothing": (
        ((EntryBudget, "take", _take_without_count),),
        (f"{SERVER}/test_entries_wait.py::test_large_requests_are_answered_one_after_the_other",),
    ),
    "strangers: entries are kept for good": (
        ((Lane, "give_back", _do_nothing),),
        (f"{SERVER}/test_entries_wait.py::test_nonsense_gives_its_entries_back",),
    ),
    "strangers: requests have few entries, whatever they say": (
        ((router, "entries_of", _count_one),),
        (f"{SERVER}/test_entries_wait.py::test_large_requests_are_answered_one_after_the_other",),
    ),
    "strangers: addresses wait in one line": (
        ((Lane, "wait", _in_order_of_arrival),),
        (f"{SERVER}/test_entry_budget.py::test_addresses_take_turns",),
    ),
    "strangers: answers that nobody reads are kept": (
        ((UnreadAnswers, "note", _do_nothing),),
        (f"{NET}/test_unread_answers.py::test_they_keep_no_more_than_the_bound",),
    ),
    "strangers: large batches are unpacked on the loop": (
        ((ProduceWork, "_check_now", _check_on_the_loop),),
        (
            f"{SERVER}/test_checks_under_way.py"
            "::test_the_append_follows_the_leader_epoch_of_its_own_time",
        ),
    ),
    "strangers: silent connections keep probes out": (
        ((Room, "_make_room", lambda _: lambda *_: False),),
        (
            f"{STATUS}/test_status_http_shares.py"
            "::test_silent_connections_of_many_addresses_keep_no_probe_out",
        ),
    ),
    "strangers: their HTTP connections end requests under way": (
        ((Room, "_make_room", _give_way_whatever_is_done),),
        (f"{STATUS}/test_status_http_shares.py::test_a_request_under_way_never_gives_way",),
    ),
    "strangers: a crowd of one partition is woken before all others": (
        ((Wakes, "_work", _in_order_of_partitions),),
        (
            f"{PARTITION}/test_fetch_waiters.py::test_a_crowd_of_one_partition_does_not_hold_up_another",
        ),
    ),
    "strangers: a modest client is ended for a crowd that reads nothing": (
        ((UnreadAnswers, "note", _end_whoever_came_first),),
        (f"{NET}/test_unread_answers.py::test_the_slowest_of_the_address_with_most_is_ended",),
    ),
    "strangers: places of connections that ended are kept": (
        ((Place, "leave", _do_nothing),),
        (
            f"{NET}/test_admission.py::test_a_place_is_given_back_once",
            f"{NET}/test_raft_strangers.py::test_a_place_is_given_back_by_a_proof_and_by_the_end",
        ),
    ),
    "strangers: nodes that have proven themselves keep their places": (
        ((ConnectionAdmission, "prove", _do_nothing),),
        (f"{NET}/test_raft_strangers.py::test_a_place_is_given_back_by_a_proof_and_by_the_end",),
    ),
    "strangers: a network of IPv6 has addresses without end": (
        ((connection_admission, "address_of", _as_it_is),),
        (f"{NET}/test_admission.py::test_a_network_of_ipv6_is_one_address",),
    ),
    "strangers: an address has as many places as it wants": (
        ((connection_admission._Room, "count_of", _take_any_number),),
        (
            f"{NET}/test_raft_strangers.py::test_the_newest_of_an_address_gives_way_and_the_first_can_still_prove",
        ),
    ),
    "strangers: an address comes as fast as it likes": (
        ((connection_admission._Bucket, "wait_us", _take_any_number),),
        (f"{NET}/test_admission.py::test_a_burst_of_one_address_gets_in_and_then_its_rate_holds",),
    ),
    "strangers: each host of a network waits and reads for itself": (
        ((Connection, "connection_made", _count_the_host),),
        (f"{SERVER}/test_entries_wait.py::test_hosts_that_count_as_one_address_take_turns_as_one",),
    ),
    "strangers: each host of a network has a share of HTTP": (
        ((HttpServer, "add", _share_by_host),),
        (
            f"{STATUS}/test_status_http_shares.py::test_hosts_that_count_as_one_address_have_one_share",
        ),
    ),
    "strangers: any name of a host will do": (
        ((HostCheck, "check", _do_nothing),),
        (f"{STATUS}/test_status_http_hosts.py::test_only_addresses_and_own_names_are_served",),
    ),
    "strangers: each scrape is computed": (
        ((scrapes, "KEPT_S", lambda _: 0.0),),
        (f"{STATUS}/test_status_scrapes.py::test_scrapes_at_the_same_time_share_one_computation",),
    ),
    "strangers: their texts reach a terminal": (
        ((escaping, "escaped", _as_it_is),),
        (f"{UNIT}/dlogctl/output/test_dlogctl_saying.py::test_no_control_character_gets_out",),
    ),
    "strangers: members of gzip have no bound": (
        ((compression, "_decompress_gzip", _inflate_any_number),),
        (f"{UNIT}/dlog/test_compression.py::test_an_input_of_many_tiny_parts_is_refused",),
    ),
    "strangers: blocks of snappy have no bound": (
        ((compression, "_SMALL_BLOCK_BYTES", lambda _: 0),),
        (f"{UNIT}/dlog/test_compression.py::test_an_input_of_many_tiny_parts_is_refused",),
    ),
}
