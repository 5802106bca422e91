"""Proof of replicas at a start: which of them hold everything that they promised.

Pure: reads what storage has found. The rules are 0021's: the directories were used last by the very
life that the cluster knows, and it either ended in order or all that it promised was on stable
storage. `dlogd.node.registration` puts it into the command.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from uuid import UUID

from dlog.types import PartitionId, TopicId
from dlogd.metadata.commands.codec import Proof
from dlogd.metadata.state.image import Applied, NodeRegistration, Refused
from dlogd.storage.directory.log_directory import LogDirectory
from dlogd.storage.directory.log_names import LogKey
from dlogd.storage.io.checkpoint_files import Incarnation

Key = tuple[TopicId, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaProof:
    """What the registration carries; the tuples are exceptions from the proof."""

    proof: Proof = Proof.NONE
    previous_epoch: int = -1
    unproven: tuple[Key, ...] = ()
    offline: tuple[Key, ...] = ()
    missing: tuple[Key, ...] = ()


def start_proof(
    known: NodeRegistration | None,
    outcomes: Mapping[UUID, Applied | Refused],
    homes: Sequence[LogDirectory],
    mine: Iterable[Key],
) -> ReplicaProof:
    """Return what holds for `mine`, the replicas that the image places on this node.

    `known` is the registration of the last life, None before the first; `outcomes` are those of
    the image.
    """
    working = [home for home in homes if home.failure is None]
    epochs = {home.directory_id: epoch_of(home.life, outcomes) for home in working}
    trusted = [home for home in working if known is not None and _is_trusted(home, known, epochs)]
    present = {home.directory_id for home in working}
    within_reach = known is None or present.issuperset(known.directory_ids)
    # What is nowhere was never made, unless a directory that may have had it is not the one it was.
    nothing_lost = known is not None and set(known.directory_ids) <= _ids(trusted)
    gone = {key for home in homes for key in home.gone}
    copies = [home for home in working if _is_old_copy(home, known, epochs)]
    unproven, offline, missing = [], [], []
    for key in mine:
        log_key = key[0], PartitionId(key[1])
        home = next((home for home in homes if log_key in home.names), None)
        if home is None:
            proven = nothing_lost and log_key not in gone
            if not within_reach:
                offline.append(key)
            elif log_key in gone or copies:
                missing.append(key)
        else:
            proven = home in trusted and _is_whole(home, log_key)
            if home in copies:
                missing.append(key)  # what is there is not what the last life has left
            if not _is_open(home, log_key):
                offline.append(key)
        if not proven:
            unproven.append(key)
    if known is None or not trusted:
        last = max((epoch for epoch in epochs.values() if epoch is not None), default=-1)
        return ReplicaProof(previous_epoch=last, offline=tuple(offline), missing=tuple(missing))
    return ReplicaProof(
        proof=Proof.CLEAN if all(home.was_clean for home in trusted) else Proof.FLUSHED,
        previous_epoch=known.node_epoch,
        unproven=tuple(unproven),
        offline=tuple(offline),
        missing=tuple(missing),
    )


def epoch_of(life: Incarnation, outcomes: Mapping[UUID, Applied | Refused]) -> int | None:
    """Return the last life that used a directory, also when it ended before it could note that."""
    if life.registering is not None:
        outcome = outcomes.get(life.registering)
        if isinstance(outcome, Applied):
            return outcome.value
    return life.node_epoch


def _ids(homes: Iterable[LogDirectory]) -> set[UUID]:
    return {home.directory_id for home in homes}


def _is_trusted(
    home: LogDirectory, known: NodeRegistration, epochs: Mapping[UUID, int | None]
) -> bool:
    return (
        epochs[home.directory_id] == known.node_epoch
        and home.directory_id in known.directory_ids
        and home.directory_id not in known.failed_directory_ids
    )


def _is_old_copy(
    home: LogDirectory, known: NodeRegistration | None, epochs: Mapping[UUID, int | None]
) -> bool:
    """Whether a directory that the last life used is as some earlier life has left it."""
    if known is None or home.directory_id not in known.directory_ids:
        return False
    if home.directory_id in known.failed_directory_ids:
        return False  # the last life could not use it
    epoch = epochs[home.directory_id]
    return epoch is not None and epoch != known.node_epoch


def _is_open(home: LogDirectory, key: LogKey) -> bool:
    opened = home.logs.get(key)
    return opened is not None and opened.failed is None and home.failure is None


def _is_whole(home: LogDirectory, key: LogKey) -> bool:
    """Whether a log in a directory of the last life has all that it promised."""
    if not _is_open(home, key):
        return False
    if home.was_clean:
        return home.names[key] in home.clean_ends and key not in home.doubtful
    is_strict = home.logs[key].config.durable and key not in home.weak
    return is_strict and home.has_checkpoint
