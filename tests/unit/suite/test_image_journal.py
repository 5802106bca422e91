"""The journal of images beside a real cluster: it notes what each command changes."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dlogd.metadata.commands.codec import encode
from dlogd.metadata.raft import entries as wire
from dlogd.metadata.raft import machine_state
from dlogd.metadata.raft.entries import Item, What
from dlogd.metadata.raft.machine_state import MachineState
from tests.cluster.image_journal import read_images, write_images
from tests.fakes.metadata_host import create, register


def test_what_a_command_changes_is_noted_as_it_is_applied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("__init__", "_apply_items", "install"):
        monkeypatch.setattr(MachineState, name, getattr(MachineState, name))
    monkeypatch.setattr(machine_state, "apply", machine_state.apply)
    write_images(tmp_path / "images")
    log: Any = SimpleNamespace(node_id=7, entries=[(b"", 1, 0)])
    nothing: Any = None
    state = MachineState(log, nothing, None, settle=nothing, log_bytes_max=1 << 20, entries_kept=1)
    for index, command in enumerate((register(), create(3)), 2):
        item = Item(What.COMMAND, encode(command))
        state.apply(index, 1, wire.encode_items([item]))
    (seen,) = read_images(tmp_path / "images")
    assert (seen.node_id, seen.topic, seen.partition, seen.leader) == (7, "t3", 0, 1)
    assert seen.version == state.image.version == 2
