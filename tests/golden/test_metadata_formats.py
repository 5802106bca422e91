"""Golden bytes of commands, metadata journal and metadata snapshot (docs/formats)."""

from uuid import UUID

import pytest

from dlog.types import NodeId
from dlogd.metadata import journal_format
from dlogd.metadata.commands.codec import (
    AllocateProducerIds,
    AlterConfigs,
    Command,
    ConfigChange,
    CreatePartitions,
    CreateTopic,
    DeleteTopic,
    RegisterNode,
    decode,
    encode,
)
from dlogd.metadata.machine import apply
from dlogd.metadata.state import snapshot
from dlogd.metadata.state.image import EMPTY_IMAGE, NodeAddress

ONE = NodeId(7)
TOPIC_ID = UUID(int=0xAA)

COMMANDS: list[tuple[Command, str]] = [
    (
        RegisterNode(
            command_id=UUID(int=1),
            cluster_id="c1",
            node_id=ONE,
            directory_ids=(UUID(int=0xD1),),
            addresses=(NodeAddress(listener="clients", host="h", port=9092),),
            rack="r",
            version="0.1",
        ),
        "01 01 00000000000000000000000000000001"
        "0002 6331 00000007"
        "00000001 000000000000000000000000000000d1"
        "00000001 0007 636c69656e7473 0001 68 2384"
        "01 0001 72 0003 302e31",
    ),
    (
        CreateTopic(
            command_id=UUID(int=2),
            name="t",
            topic_id=TOPIC_ID,
            assignments=((ONE,), (ONE,)),
            configs={"a": "1"},
        ),
        "02 01 00000000000000000000000000000002"
        "0001 74 000000000000000000000000000000aa"
        "00000002 01 00000007 01 00000007"
        "00000001 0001 61 0001 31",
    ),
    (
        CreatePartitions(
            command_id=UUID(int=3), topic_id=TOPIC_ID, partition_count=2, assignments=((ONE,),)
        ),
        "04 01 00000000000000000000000000000003"
        "000000000000000000000000000000aa 00000002 00000001 01 00000007",
    ),
    (
        AlterConfigs(
            command_id=UUID(int=4),
            topic_id=TOPIC_ID,
            changes=(
                ConfigChange(key="a", value=None),
                ConfigChange(key="b", value="2", compare=True, expected=None),
            ),
        ),
        "05 01 00000000000000000000000000000004"
        "01 000000000000000000000000000000aa 00000002"
        "0001 61 00 00"
        "0001 62 01 0001 32 01 00",
    ),
    (
        AlterConfigs(
            command_id=UUID(int=5), topic_id=None, changes=(ConfigChange(key="k", value="v"),)
        ),
        "05 01 00000000000000000000000000000005 00 00000001 0001 6b 01 0001 76 00",
    ),
    (
        AllocateProducerIds(command_id=UUID(int=6), node_id=ONE, node_epoch=1, count=1000),
        "06 01 00000000000000000000000000000006 00000007 0000000000000001 000003e8",
    ),
    (
        DeleteTopic(command_id=UUID(int=7), topic_id=TOPIC_ID),
        "03 01 00000000000000000000000000000007 000000000000000000000000000000aa",
    ),
]


@pytest.mark.parametrize(("command", "golden"), COMMANDS)
def test_commands(command: Command, golden: str) -> None:
    data = bytes.fromhex(golden)
    assert encode(command) == data
    assert decode(data) == command


def test_journal() -> None:
    head = bytes.fromhex("646c6f676a726e6c 0001 0000000000000000 5b63ee23")
    frame = bytes.fromhex(
        "d146524d 2f6568d7 0000000d 0000000000000001 00000002 00000003 616263 00000002 6465"
    )
    seal = bytes.fromhex("d146524d e9c7f85f 00000000 0000000000000003 00000000")
    assert journal_format.encode_head(0) == head
    assert journal_format.encode_frame(len(head), 1, [b"abc", b"de"]) == frame
    assert journal_format.encode_frame(len(head) + len(frame), 3, []) == seal
    read = journal_format.decode(head + frame + seal)
    assert [(each.first_version, each.commands) for each in read.frames] == [
        (1, (b"abc", b"de")),
        (3, ()),
    ]


def test_snapshot() -> None:
    image = EMPTY_IMAGE
    for command, _ in COMMANDS[:6]:
        image, _ = apply.apply(image, encode(command))
    partition = "01 00000007 01 00000007 00000007 00000000 00000000"
    outcomes = "".join(
        f"{number:032x} 00 {number:016x} {value:016x}"
        for number, value in ((1, 1), (2, 2), (3, 3), (4, 0), (5, 0), (6, 0))
    )
    golden = bytes.fromhex(
        "646c6f67736e6170 0001 0000000000000006 0000000000000187 646cf88c"
        "0002 6331"
        "00000001 0001 6b 0001 76"
        "00000000000003e8"
        "00000001 00000007 0000000000000001"
        "00000001 000000000000000000000000000000d1"
        "00000001 0007 636c69656e7473 0001 68 2384"
        "01 0001 72 0003 302e31 00"
        "00000001 0001 74 000000000000000000000000000000aa"
        "00000001 0001 62 0001 32"
        f"00000003 {partition} {partition} {partition}"
        f"00000006 {outcomes}"
    )
    assert snapshot.encode(image) == golden
    assert snapshot.decode(golden) == image
