"""Commands from feature level 2 on, and their golden bytes."""

from typing import Any
from uuid import UUID

from dlog.types import LeaderEpoch, NodeId, PartitionEpoch
from dlogd.metadata.commands.codec import (
    AlterAssignments,
    AlterPartition,
    ClaimController,
    CreateTopics,
    DeleteTopics,
    DrainNode,
    ElectionKind,
    ElectLeaders,
    FenceNodes,
    Guarded,
    HoldMaintenance,
    NewTopic,
    Permit,
    Proof,
    Reassignment,
    RegisterNode,
    ReleaseMaintenance,
    RemoveNode,
    ReportReplicas,
    SetFeatureLevel,
    ShutDownNode,
    UnfenceNode,
)
from dlogd.metadata.state.image import Drain, NodeAddress

ONE, TWO = NodeId(1), NodeId(2)
TOPIC_ID = UUID(int=0xAA)
TOPIC = f"{0xAA:032x}"


def head(kind: int, number: int, version: int = 1) -> str:
    return f"{kind:02x} {version:02x} {number:032x}"


def registration(number: int, node_id: NodeId) -> RegisterNode:
    return RegisterNode(
        command_id=UUID(int=number),
        cluster_id="c1",
        node_id=node_id,
        directory_ids=(UUID(int=0xD0 + node_id),),
        addresses=(NodeAddress(listener="clients", host="h", port=9092),),
        rack=None,
        version="0.2",
        proof=Proof.FLUSHED,
        previous_epoch=5,
        failed_directory_ids=(UUID(int=0xDF),),
        level_min=1,
        level_max=2,
        unproven=((TOPIC_ID, (0, 2)),),
        offline=((TOPIC_ID, (3,)),),
        missing=((TOPIC_ID, (4,)),),
    )


REGISTRATION = (
    "0002 6331 00000001 00000001 000000000000000000000000000000d1"
    "00000001 0007 636c69656e7473 0001 68 2384 00 0003 302e32"
    "02 0000000000000005 00000001 000000000000000000000000000000df 0001 0002"
    f"00000001 {TOPIC} 00000002 00000000 00000002"
    f"00000001 {TOPIC} 00000001 00000003"
    f"00000001 {TOPIC} 00000001 00000004"
)


COMMANDS: list[tuple[Any, str]] = [
    (registration(1, ONE), head(1, 1, version=2) + REGISTRATION),
    (
        CreateTopics(
            command_id=UUID(int=2),
            topics=(
                NewTopic(
                    name="t", topic_id=TOPIC_ID, assignments=((TWO, ONE),), configs={"a": "1"}
                ),
            ),
        ),
        head(7, 2) + f"00000001 0001 74 {TOPIC} 00000001 02 00000002 00000001"
        "00000001 0001 61 0001 31",
    ),
    (
        FenceNodes(command_id=UUID(int=3), nodes=((ONE, 7), (TWO, 8))),
        head(8, 3) + "00000002 00000001 0000000000000007 00000002 0000000000000008",
    ),
    (
        UnfenceNode(command_id=UUID(int=4), node_id=ONE, node_epoch=7),
        head(9, 4) + "00000001 0000000000000007",
    ),
    (
        DrainNode(command_id=UUID(int=5), node_id=ONE, drain=Drain.REPLICAS),
        head(10, 5) + "00000001 02",
    ),
    (
        ShutDownNode(command_id=UUID(int=6), node_id=ONE, node_epoch=7),
        head(11, 6) + "00000001 0000000000000007",
    ),
    (
        RemoveNode(command_id=UUID(int=7), node_id=ONE, node_epoch=7),
        head(12, 7) + "00000001 0000000000000007",
    ),
    (
        ReportReplicas(
            command_id=UUID(int=8),
            node_id=ONE,
            node_epoch=7,
            failed_directory_ids=(UUID(int=0xD1),),
            offline=((TOPIC_ID, (0,)),),
            online=(),
        ),
        head(13, 8) + "00000001 0000000000000007 00000001 000000000000000000000000000000d1"
        f"00000001 {TOPIC} 00000001 00000000 00000000",
    ),
    (
        AlterPartition(
            command_id=UUID(int=9),
            topic_id=TOPIC_ID,
            partition=3,
            node_id=ONE,
            node_epoch=7,
            leader_epoch=LeaderEpoch(4),
            partition_epoch=PartitionEpoch(6),
            isr=((ONE, 7), (TWO, 8)),
        ),
        head(14, 9) + f"{TOPIC} 00000003 00000001 0000000000000007 00000004 00000006"
        "02 00000001 0000000000000007 00000002 0000000000000008",
    ),
    (
        ElectLeaders(
            command_id=UUID(int=10),
            election=ElectionKind.UNCLEAN,
            partitions=((TOPIC_ID, (0, 1)),),
        ),
        head(15, 10) + f"01 00000001 {TOPIC} 00000002 00000000 00000001",
    ),
    (
        AlterAssignments(
            command_id=UUID(int=11),
            reassignments=(
                Reassignment(topic_id=TOPIC_ID, partition=0, replicas=(TWO, ONE)),
                Reassignment(topic_id=TOPIC_ID, partition=1, replicas=None),
            ),
        ),
        head(16, 11) + f"00000002 {TOPIC} 00000000 01 02 00000002 00000001 {TOPIC} 00000001 00",
    ),
    (
        ClaimController(command_id=UUID(int=12), node_id=ONE, node_epoch=7, controller_epoch=2),
        head(17, 12) + "00000001 0000000000000007 0000000000000002",
    ),
    (SetFeatureLevel(command_id=UUID(int=13), level=3), head(18, 13) + "0003"),
    (
        Guarded(
            version_max=300,
            controller_epoch=-1,
            command=UnfenceNode(command_id=UUID(int=14), node_id=ONE, node_epoch=7),
        ),
        head(19, 14) + "000000000000012c ffffffffffffffff 09 01 00000001 0000000000000007",
    ),
    (
        DeleteTopics(command_id=UUID(int=16), topic_ids=(TOPIC_ID, UUID(int=0xBB))),
        head(20, 16) + f"00000002 {TOPIC} {0xBB:032x}",
    ),
    (
        Guarded(version_max=1, controller_epoch=2, command=registration(15, ONE)),
        head(19, 15) + "0000000000000001 0000000000000002 01 02" + REGISTRATION,
    ),
    (
        HoldMaintenance(
            command_id=UUID(int=17),
            owner="ann",
            token=UUID(int=0xE1),
            node_id=TWO,
            now_ms=0x0102030405,
            lifetime_ms=600_000,
        ),
        head(21, 17) + f"0003 616e6e {0xE1:032x} 00000002 0000000102030405 000927c0",
    ),
    (
        ReleaseMaintenance(command_id=UUID(int=18), token=UUID(int=0xE1)),
        head(22, 18) + f"01 {0xE1:032x}",
    ),
    (ReleaseMaintenance(command_id=UUID(int=19), token=None), head(22, 19) + "00"),
    (
        DrainNode(
            command_id=UUID(int=20),
            node_id=ONE,
            drain=Drain.LEADERS,
            permit=Permit(token=UUID(int=0xE1), now_ms=7),
        ),
        head(10, 20, version=2) + f"00000001 01 01 {0xE1:032x} 0000000000000007",
    ),
    (
        Guarded(
            version_max=1,
            controller_epoch=2,
            command=RemoveNode(
                command_id=UUID(int=21),
                node_id=ONE,
                node_epoch=7,
                permit=Permit(token=None, now_ms=7),
            ),
        ),
        head(19, 21) + "0000000000000001 0000000000000002 0c 02"
        "00000001 0000000000000007 00 0000000000000007",
    ),
]
