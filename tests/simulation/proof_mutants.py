"""Holes in what peers prove to each other and in nonces and ids, each with the tests that see it.

Opened as the others of `TESTED` (test_mutants.py). That a part is given `Entropy` and not `Rng` is
also a matter of types, which mypy and tests/tidy/test_randomness.py check.
"""

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any
from uuid import UUID

from dlogd.internal import messages as heartbeats
from dlogd.internal import node_channel
from dlogd.internal.node_channel import Dialler, Seals, StreamIntroduction
from dlogd.internal.node_listener import Door
from dlogd.metadata.raft import boot, connection, handshake, messages
from dlogd.metadata.raft.connection import Connection
from dlogd.metadata.raft.durable_log import RaftLog
from dlogd.metadata.raft.handshake import NONCE_BYTES, PROOF_BYTES, PROTOCOL_VERSION, Proofs
from dlogd.metadata.raft.messages import MESSAGE_BYTES_MAX
from dlogd.metadata.raft.transport import RaftTransport
from dlogd.node import secret_files
from dlogd.runtime import randomness
from dlogd.storage.directory.directory_lock import DirectoryLock
from tests.simulation.patches import Patch

UNIT = "tests/unit"
HANDSHAKE = f"{UNIT}/dlogd/metadata/raft/test_raft_handshake.py"
CHANNEL = f"{UNIT}/dlogd/internal/test_channel.py"
VALUES = f"{UNIT}/dlogd/metadata/test_values_peers_see.py"


def _do_nothing(_: Any) -> Any:
    return lambda *_: None


# -- the handshake of Raft


def _prove_before_the_check(_: Any) -> Any:
    def take_proof(self: Any, proofs: Proofs, frame: bytes) -> None:
        if self.dialled:
            handshake.expect_no_refusal(frame)
        else:
            self._write(proofs.proof(of_dialler=False))
        proofs.check(frame, of_dialler=not self.dialled)
        self._begin(proofs)

    return take_proof


def _take_any_proof(_: Any) -> Any:
    def check(self: Proofs, proof: bytes, *, of_dialler: bool) -> None:
        """Believe it."""

    return check


def _prove_alike(_: Any) -> Any:
    """What one side has proven is a proof of the other side, too."""

    def proof(self: Any, *, of_dialler: bool) -> bytes:
        derived: bytes = self._derive(b"proof")
        return derived

    return proof


def _meet_anybody(_: Any) -> Any:
    """A dialler proves the secret to whoever answers."""

    def meet(self: Any, frame: bytes) -> None:
        other = handshake.decode_hello(frame)
        self.peer_id = other.node_id
        if not self.dialled:
            handshake.expect(self._hello, other)
        self.peer_directory = other.directory_id

    return meet


def _prove_to_older_listeners(original: Any) -> Any:
    def take_answer(self: Any, frame: bytes) -> None:
        older = self._hello.version == handshake.OLDER_VERSION
        if not older:
            original(self, frame)
            return
        self._meet(frame[:-PROOF_BYTES])
        self._proofs = Proofs(self._secret, self._own_bytes, frame[:-PROOF_BYTES])
        self._write(self._proofs.proof(of_dialler=True))
        self._begin(self._proofs)

    return take_answer


def _take_unchecked(_: Any) -> Any:
    def take_message(self: Any, frame: bytes) -> None:
        body = frame[: -handshake.MAC_BYTES]
        self._receive_seal.mac(body)
        if body:
            self._owner.on_message(self, messages.decode(body))

    return take_message


def _forget_the_number(original: Any) -> Any:
    def mac(self: Any, body: bytes | memoryview) -> bytes:
        self._number = 0
        code: bytes = original(self, body)
        return code

    return mac


# -- the internal listener


def _greet_any_cluster(original: Any) -> Any:
    def meet(self: Door, header: Any, payload: memoryview) -> Any:
        told = heartbeats.decode_hello(payload, header.body_position, len(payload))
        return original(replace(self, cluster_id=told), header, payload)

    return meet


def _open_any_seal(_: Any) -> Any:
    def unseal(self: Seals, payload: memoryview) -> memoryview:
        return payload[: -node_channel.MAC_BYTES]

    return unseal


# -- randomness


def _bytes_of(rng: Any, count: int) -> bytes:
    return bytes(int(rng.random() * 256) for _ in range(count))


def _nonces_of_jitter(_: Any) -> Any:
    def new_hello(self: Any, wanted_id: int, version: int = PROTOCOL_VERSION) -> Any:
        nonce = _bytes_of(self._rng, NONCE_BYTES)
        return replace(self._hello, wanted_id=wanted_id, nonce=nonce, version=version)

    return new_hello


def _one_nonce_for_all(original: Any) -> Any:
    kept: list[bytes] = []

    def new_hello(self: Any, wanted_id: int, version: int = PROTOCOL_VERSION) -> Any:
        hello = original(self, wanted_id, version)
        kept.append(hello.nonce)
        return replace(hello, nonce=kept[0])

    return new_hello


class _Predictable:
    """A generator in the place of the source that is given."""

    def __init__(self) -> None:
        self._rng = random.Random(1)

    def token(self, count: int) -> bytes:
        return self._rng.randbytes(count)

    def uuid(self) -> UUID:
        return UUID(int=self._rng.getrandbits(128), version=4)


def _greet_predictably(original: Any) -> Any:
    async def meet(self: Dialler, met: Any, secret: bytes, _: Any) -> Any:
        return await original(self, met, secret, _Predictable())

    return meet


def _introduce_predictably(original: Any) -> Any:
    def init(self: StreamIntroduction, secret: bytes, request: Any, _: Any) -> None:
        original(self, secret, request, _Predictable())

    return init


def _draw_of_the_common_generator(_: Any) -> Any:
    return lambda _self, count: random.randbytes(count)


def _id_of_the_common_generator(_: Any) -> Any:
    return lambda _self: UUID(int=random.getrandbits(128), version=4)


def _name_directories_predictably(original: Any) -> Any:
    def open_log(directory: Any, node_id: int, bootstrap: Any, _: Any, taken: Any) -> RaftLog:
        raft_log: RaftLog = original(directory, node_id, bootstrap, _Predictable(), taken)
        return raft_log

    return open_log


def _name_homes_predictably(_: Any) -> Any:
    return lambda _self: _Predictable().uuid()


# -- secrets


def _look_at_the_owner_only(original: Any) -> Any:
    def access_problem(path: str, key: str, mode: int, owner: int, users: frozenset[int]) -> Any:
        return original(path, key, 0o600, owner, users)

    return access_problem


def _look_at_the_mode_only(original: Any) -> Any:
    def access_problem(path: str, key: str, mode: int, owner: int, users: frozenset[int]) -> Any:
        return original(path, key, mode, owner, users | {owner})

    return access_problem


def _count_bytes_only(_: Any) -> Any:
    return lambda secret: len(secret) >= secret_files.RANDOM_BYTES_MIN


# Patches, and the tests of which one at least must fail.
TESTED: dict[str, tuple[Sequence[Patch], Sequence[str]]] = {
    "proofs: who listens proves before it has checked": (
        ((Connection, "_take_proof", _prove_before_the_check),),
        (f"{HANDSHAKE}::test_a_wrong_proof_is_told_so_and_answered_with_no_proof",),
    ),
    "proofs: any proof will do": (
        ((Proofs, "check", _take_any_proof),),
        (f"{HANDSHAKE}::test_a_wrong_proof_is_told_so_and_answered_with_no_proof",),
    ),
    "proofs: a proof can be sent back": (
        ((Proofs, "proof", _prove_alike),),
        (
            f"{UNIT}/dlogd/metadata/raft/test_raft_wire.py"
            "::test_a_proof_holds_for_one_secret_one_side_and_one_conversation",
        ),
    ),
    "proofs: who dials proves to another cluster": (
        ((Connection, "_meet", _meet_anybody),),
        (f"{HANDSHAKE}::test_nothing_is_proved_to_a_listener_that_is_not_the_one_wanted",),
    ),
    "proofs: who dials proves to an older listener first": (
        ((Connection, "_take_answer", _prove_to_older_listeners),),
        (f"{HANDSHAKE}::test_nothing_is_proved_to_an_older_listener_without_the_secret",),
    ),
    "proofs: frames are not checked": (
        ((Connection, "_take_message", _take_unchecked),),
        (f"{HANDSHAKE}::test_a_frame_that_was_altered_or_repeated_ends_the_connection",),
    ),
    "proofs: a frame can be repeated": (
        ((handshake.Seal, "mac", _forget_the_number),),
        (f"{HANDSHAKE}::test_a_frame_that_was_altered_or_repeated_ends_the_connection",),
    ),
    "proofs: strangers send frames of any size": (
        ((connection, "_FIRST_FRAME_BYTES_MAX", lambda _: MESSAGE_BYTES_MAX),),
        (f"{HANDSHAKE}::test_a_stranger_cannot_announce_more_than_a_hello",),
    ),
    "proofs: silence is waited for": (
        ((RaftTransport, "_end_unproven", _do_nothing),),
        (f"{HANDSHAKE}::test_a_stranger_with_the_public_cluster_id_gets_no_proof",),
    ),
    "proofs: the internal listener greets another cluster": (
        ((Door, "meet", _greet_any_cluster),),
        (f"{CHANNEL}::test_another_cluster_gets_no_nonce_and_is_told_of_once",),
    ),
    "proofs: the internal listener serves whoever asks": (
        ((Seals, "unseal", _open_any_seal),),
        (f"{CHANNEL}::test_what_was_altered_or_repeated_ends_the_connection",),
    ),
    "randomness: nonces of Raft are of the jitter": (
        ((RaftTransport, "_new_hello", _nonces_of_jitter),),
        (f"{VALUES}::test_each_nonce_of_raft_is_given_by_entropy",),
    ),
    "randomness: a nonce of Raft serves twice": (
        ((RaftTransport, "_new_hello", _one_nonce_for_all),),
        (f"{VALUES}::test_each_nonce_of_raft_is_given_by_entropy",),
    ),
    "randomness: nonces of internal connections are predictable": (
        ((Dialler, "_meet", _greet_predictably),),
        (f"{VALUES}::test_each_nonce_of_an_internal_connection_is_given_by_entropy",),
    ),
    "randomness: nonces of streams are predictable": (
        ((StreamIntroduction, "__init__", _introduce_predictably),),
        (f"{VALUES}::test_each_nonce_of_a_stream_is_given_by_entropy",),
    ),
    "randomness: bytes come from the common generator": (
        ((randomness.SystemEntropy, "token", _draw_of_the_common_generator),),
        (f"{VALUES}::test_the_system_s_entropy_follows_no_seed",),
    ),
    "randomness: ids come from the common generator": (
        ((randomness.SystemEntropy, "uuid", _id_of_the_common_generator),),
        (f"{VALUES}::test_the_system_s_entropy_follows_no_seed",),
    ),
    "randomness: ids of Raft's directories are predictable": (
        ((boot, "_open_log", _name_directories_predictably),),
        (f"{VALUES}::test_ids_of_directories_are_given_by_entropy",),
    ),
    "randomness: ids of data directories are predictable": (
        ((DirectoryLock, "_new_uuid", _name_homes_predictably),),
        (f"{VALUES}::test_ids_of_directories_are_given_by_entropy",),
    ),
    "secrets: any 16 bytes are a secret": (
        ((secret_files, "is_strong", _count_bytes_only),),
        (f"{UNIT}/dlogd/node/test_secret_files.py::test_what_can_be_guessed_is_refused",),
    ),
    "secrets: files that others read will do": (
        ((secret_files, "_access_problem", _look_at_the_owner_only),),
        (
            f"{UNIT}/dlogd/node/test_secret_files.py::test_a_file_that_others_may_read_or_change_is_refused",
        ),
    ),
    "secrets: files of other users will do": (
        ((secret_files, "_access_problem", _look_at_the_mode_only),),
        (f"{UNIT}/dlogd/node/test_secret_files.py::test_a_file_of_another_user_is_refused",),
    ),
}
