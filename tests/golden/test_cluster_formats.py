"""Golden bytes of the commands from feature level 2 on, and of its snapshot (docs/formats)."""

from dataclasses import replace
from uuid import UUID

import pytest

from dlogd.metadata.commands.codec import (
    ClaimController,
    Command,
    CommandKind,
    DrainNode,
    FenceNodes,
    UnfenceNode,
    decode,
    encode,
)
from dlogd.metadata.machine import apply
from dlogd.metadata.state import snapshot
from dlogd.metadata.state.image import EMPTY_IMAGE, Applied, Controller, Drain
from tests.golden.cluster_commands import COMMANDS, ONE, TOPIC, TWO, registration


@pytest.mark.parametrize(("command", "golden"), COMMANDS)
def test_commands(command: Command, golden: str) -> None:
    data = bytes.fromhex(golden)
    assert encode(command).hex() == data.hex()
    assert decode(data) == command


def test_every_kind_has_golden_bytes() -> None:
    older = {1, 2, 3, 4, 5, 6}
    assert {command.KIND for command, _ in COMMANDS} | older == set(CommandKind)


def test_snapshot_of_level_2() -> None:
    image = EMPTY_IMAGE
    commands: list[Command] = [
        registration(1, ONE),
        registration(2, TWO),
        UnfenceNode(command_id=UUID(int=3), node_id=ONE, node_epoch=1),
        UnfenceNode(command_id=UUID(int=4), node_id=TWO, node_epoch=2),
        replace(COMMANDS[1][0], command_id=UUID(int=0xC)),
        ClaimController(command_id=UUID(int=5), node_id=TWO, node_epoch=2, controller_epoch=0),
        DrainNode(command_id=UUID(int=6), node_id=ONE, drain=Drain.LEADERS),
        FenceNodes(command_id=UUID(int=7), nodes=((ONE, 1), (TWO, 2))),
    ]
    for command in commands:
        image, outcome = apply.apply(image, encode(command))
        assert isinstance(outcome, Applied), outcome
    assert image.controller == Controller(epoch=1, node_id=TWO, node_epoch=2)

    def node(number: int, drain: int) -> str:
        return (
            f"{number:08x} {number:016x} 00000001 000000000000000000000000000000d{number}"
            "00000001 0007 636c69656e7473 0001 68 2384 00 0003 302e32 01"
            f"00 00 {drain:02x} 00000001 000000000000000000000000000000df 0001 0002"
        )

    values = (1, 2, 0, 0, 1, 1, 0, 1)
    ids = (1, 2, 3, 4, 0xC, 5, 6, 7)
    outcomes = "".join(
        f"{number:032x} 00 {version:016x} {value:016x}"
        for version, (number, value) in enumerate(zip(ids, values, strict=True), 1)
    )
    body = bytes.fromhex(
        "0002 6331 00000000 0000000000000000"
        "0002 0000000000000001 00000002 0000000000000002 0000000000000000"
        f"00000002 {node(1, 1)} {node(2, 0)}"
        f"00000001 0001 74 {TOPIC} 00000001 0001 61 0001 31 00000001"
        "02 00000002 00000001 00 ffffffff 00000001 00000001"
        "02 00000002 00000001 00 00 00 ffffffff"
        f"00000008 {outcomes}"
    )
    data = snapshot.encode(image)
    assert data[:10] == b"dlogsnap\x00\x02"
    assert data[30:].hex() == body.hex()
    assert data[26:30].hex() == "675d8a48"
    assert snapshot.decode(data) == image
