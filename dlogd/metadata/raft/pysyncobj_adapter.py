"""Adapter to pysyncobj: checked version and private names, no pickle, no real time.

The consensus core drives pysyncobj through private names, so exactly one release will do. `check`
is called at start and refuses any other with what to do about it. Importing this module replaces,
in pysyncobj's own modules, the journal factory, the clock and everything of pickle.
"""

from typing import Any

import pysyncobj.config
import pysyncobj.journal
import pysyncobj.node
import pysyncobj.pickle
import pysyncobj.syncobj
import pysyncobj.transport
import pysyncobj.version

from dlog.errors import StartRefusedError
from dlogd.runtime.clock import Clock

VERSION = "0.3.17"

# Nothing of pysyncobj has types.
SyncObj: Any = pysyncobj.syncobj.SyncObj
SyncObjConf: Any = pysyncobj.config.SyncObjConf
Node: Any = pysyncobj.node.Node
Transport: Any = pysyncobj.transport.Transport

_METHODS = (
    *("_onTick", "_isLeader", "_getLeader", "_checkCommandsToApply", "transferLeadership"),
    *("_SyncObj__onMessageReceived", "_SyncObj__applyLogEntries", "_SyncObj__doApplyCommand"),
    *("_SyncObj__sendAppendEntries", "_SyncObj__sendNextNodeIdx", "_SyncObj__tryLogCompaction"),
    *("_SyncObj__connectedToAnyone", "_SyncObj__generateRaftTimeout", "_SyncObj__setCurrentTerm"),
    *("_SyncObj__setState", "_SyncObj__onBecomeLeader", "_SyncObj__onNodeConnected"),
    *("_SyncObj__onNodeDisconnected", "_SyncObj__onReadonlyNodeConnected"),
    *("_SyncObj__onReadonlyNodeDisconnected", "_SyncObj__loadDumpFile"),
)
_ATTRIBUTES = (
    *("raftLog", "raftState", "raftLeader", "raftCurrentTerm", "votedForNodeId", "otherNodes"),
    *("readonlyNodes", "connectedNodes", "raftNextIndex", "raftMatchIndex", "raftCommitIndex"),
    *("raftLastApplied", "lastResponseTime", "raftElectionDeadline", "transferInProgress"),
    *("noopIDx", "newAppendEntriesTime", "startTime", "needLoadDumpFile", "votesCount"),
)


class PysyncobjError(StartRefusedError):
    """The installed pysyncobj is not the one that this software was built and tested with."""


class _Time:
    """The clock of the node whose core runs now: pysyncobj asks a global function."""

    def __init__(self) -> None:
        self.clock: Clock | None = None

    def monotonic(self) -> float:
        """Return seconds."""
        if self.clock is None:
            raise RuntimeError("pysyncobj was entered without a clock")
        return self.clock.now_us() / 1e6


_time = _Time()


def enter(clock: Clock) -> None:
    """Let pysyncobj see this clock until the next call; one thread at a time."""
    _time.clock = clock


def _no_pickle(*_: Any, **__: Any) -> Any:
    raise RuntimeError("pickle is switched off: nothing of this may cross the wire or the disk")


def _given_journal(journal: Any) -> Any:
    return journal


pysyncobj.syncobj.monotonicTime = _time.monotonic
pysyncobj.syncobj.createJournal = _given_journal
for _name in ("loads", "load", "dumps", "dump"):
    setattr(pysyncobj.pickle, _name, _no_pickle)


def check(core: Any = None) -> None:
    """Raise PysyncobjError unless pysyncobj is the known one; also look at a made `core`."""
    found = pysyncobj.version.VERSION
    if found != VERSION:
        raise PysyncobjError(
            f"pysyncobj {found} is installed, but the metadata layer knows only {VERSION}: "
            f"install pysyncobj=={VERSION}"
        )
    missing = [name for name in _METHODS if not hasattr(pysyncobj.syncobj.SyncObj, name)]
    if core is not None:
        missing += [n for n in _ATTRIBUTES if not hasattr(core, f"_SyncObj__{n}")]
    if missing:
        raise PysyncobjError(
            f"pysyncobj {found} lacks {', '.join(missing)}: its files were changed; "
            f"install pysyncobj=={VERSION} anew"
        )
