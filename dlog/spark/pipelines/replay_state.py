"""State of a replay: files next to the archive. Pure but for `Progress`.

`start.json` says where each partition of the target ended when the replay began; one file for each
batch that is done says where they ended then. Nobody else may write to the target meanwhile. So
between two files the end of a partition tells how many records of the present batch it has.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dlog.spark.errors import OptionError, SparkSourceError
from dlog.spark.pipelines.archives.folders import Folder
from dlog.spark.pipelines.archives.manifest import DamagedArchiveError, batch_of, folder_of

FOLDER = "_replays"
START = "start.json"
KEEP, BY_KEY = "keep", "key"


class DisturbedReplayError(SparkSourceError):
    """The target has records that the replay did not write."""

    def __init__(self, message: str) -> None:
        super().__init__(
            "DLOG_REPLAY_DISTURBED",
            message,
            "Somebody else writes to the target, or wrote to it between two runs: begin again with "
            "a new topic, or give this replay another --name to append everything once more.",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayStart:
    """What a replay must not change its mind about, and where its target was at the beginning."""

    source_topic: str
    target_topic: str
    target_id: str
    cluster_id: str
    placing: str
    """`KEEP` or `BY_KEY`."""
    ends: Mapping[int, int]
    """Where each partition of the target ended."""

    def document(self) -> dict[str, Any]:
        """Return it as JSON has it."""
        return {
            "source_topic": self.source_topic,
            "target_topic": self.target_topic,
            "target_id": self.target_id,
            "cluster_id": self.cluster_id,
            "placing": self.placing,
            "ends": _texts(self.ends),
        }


def _texts(ends: Mapping[int, int]) -> dict[str, int]:
    return {str(partition): end for partition, end in sorted(ends.items())}


def _numbers(ends: Mapping[str, int]) -> dict[int, int]:
    return {int(partition): int(end) for partition, end in ends.items()}


def check_continues(begun: ReplayStart, now: ReplayStart) -> None:
    """Raise when a run is not the replay that has begun under this name."""
    for name in ("source_topic", "target_topic", "target_id", "cluster_id", "placing"):
        then, wanted = getattr(begun, name), getattr(now, name)
        if then != wanted:
            raise SparkSourceError(
                "DLOG_REPLAY_OF_OTHER",
                f"The replay of this name has begun with {name} {then}; now it is {wanted}.",
                "Give it another --name.",
            )
    if set(begun.ends) != set(now.ends):
        raise SparkSourceError(
            "DLOG_REPLAY_OF_OTHER",
            f"The target had {len(begun.ends)} partitions when this replay began, now it has "
            f"{len(now.ends)}.",
            "Keys would go to other partitions: start again with a new topic.",
        )


class Progress:
    """The files of one replay. Owner: the driver's thread."""

    def __init__(self, folder: Folder, name: str) -> None:
        """Raise OptionError for a name that is none of one folder."""
        if "/" in name or "\0" in name or name in (".", ".."):
            raise OptionError(
                "DLOG_OPTION_VALUE",
                f"The replay's name is {name!r}.",
                "It names one folder: no slash, and neither . nor ..",
            )
        self._folder = folder
        self._path = f"{FOLDER}/{name}"

    def _load(self, name: str) -> Any:
        data = self._folder.read(f"{self._path}/{name}")
        try:
            return None if data is None else json.loads(data)
        except ValueError:
            raise self._damaged(name) from None

    def _damaged(self, name: str) -> DamagedArchiveError:
        return DamagedArchiveError(
            f"{self._folder.uri}/{self._path}/{name} does not say how far a replay has come.",
            "Restore that file from a copy, or begin again: a new topic, another --name.",
        )

    def has_begun(self) -> bool:
        """Return whether the start is noted; raises DamagedArchiveError."""
        return self._load(START) is not None

    def begin(self, wanted: ReplayStart) -> ReplayStart:
        """Note the start, or return the one that was noted before; raises where they differ."""
        document = self._load(START)
        if document is None:
            data = json.dumps(wanted.document()).encode()
            if self._folder.write_new(f"{self._path}/{START}", data):
                return wanted
            document = self._load(START)
        try:
            begun = ReplayStart(**{**document, "ends": _numbers(document["ends"])})
        except (ValueError, KeyError, TypeError, AttributeError):
            raise self._damaged(START) from None
        check_continues(begun, wanted)
        return begun

    def done(self) -> tuple[int, dict[int, int]] | None:
        """Return the last batch that is done and where the target's partitions ended then."""
        names = self._folder.names(self._path)
        numbers = [batch_of(name.removesuffix(".json")) for name in names]
        found = [each for each in numbers if each is not None]
        if not found:
            return None
        name = f"{folder_of(max(found))}.json"
        document = self._load(name)
        try:
            return max(found), _numbers(document["ends"])
        except (ValueError, KeyError, TypeError, AttributeError):
            raise self._damaged(name) from None

    def finish(self, batch: int, ends: Mapping[int, int]) -> None:
        """Note that a batch is done."""
        data = json.dumps({"ends": _texts(ends)}).encode()
        if not self._folder.write_new(f"{self._path}/{folder_of(batch)}.json", data):
            raise DisturbedReplayError(f"Another run has finished batch {batch} meanwhile.")
