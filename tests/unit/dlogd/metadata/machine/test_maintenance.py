"""Maintenance lock in the machine: held, renewed, expired, released, and what it holds back."""

from typing import Any
from uuid import UUID

import pytest

from dlog.errors import InvalidRequestError, PolicyViolationError, UnsupportedVersionError
from dlog.types import NO_NODE, NodeId
from dlogd.metadata.commands.codec import (
    DrainNode,
    HoldMaintenance,
    Permit,
    ReleaseMaintenance,
    RemoveNode,
    SetFeatureLevel,
    UnfenceNode,
    encode,
)
from dlogd.metadata.machine import apply
from dlogd.metadata.state import snapshot
from dlogd.metadata.state.delta import between
from dlogd.metadata.state.image import EMPTY_IMAGE, Applied, Drain, MaintenanceLock
from dlogd.metadata.state.limits import (
    LEVEL_MAINTENANCE,
    LEVEL_NEWEST,
    MAINTENANCE_LIFETIME_MS_MAX,
    TIMESTAMP_MS_MAX,
)
from tests.fakes.metadata_cluster import FakeCluster
from tests.golden.cluster_commands import COMMANDS

ANN, BOB = UUID(int=0xA), UUID(int=0xB)
T0 = 1_700_000_000_000  # 2023-11-14T22:13:20Z
MINUTE = 60_000


def hold(cluster: FakeCluster, token: UUID = ANN, at: int = T0, **fields: Any) -> HoldMaintenance:
    values: dict[str, Any] = {
        "owner": "rolling restart by ann@ops1",
        "node_id": NO_NODE,
        "lifetime_ms": 10 * MINUTE,
    }
    values.update(fields)
    return HoldMaintenance(command_id=cluster.new_id(), token=token, now_ms=at, **values)


def drain(
    cluster: FakeCluster, permit: Permit | None, kind: Drain = Drain.LEADERS, node_id: int = 1
) -> DrainNode:
    return DrainNode(
        command_id=cluster.new_id(), node_id=NodeId(node_id), drain=kind, permit=permit
    )


def removal(cluster: FakeCluster, permit: Permit | None) -> RemoveNode:
    return RemoveNode(
        command_id=cluster.new_id(),
        node_id=NodeId(3),
        node_epoch=cluster.epoch(3),
        permit=permit,
    )


def by(token: UUID | None, at: int = T0) -> Permit:
    return Permit(token=token, now_ms=at)


@pytest.fixture
def cluster() -> FakeCluster:
    return FakeCluster(3)


def test_a_second_holder_hears_who_is_at_it(cluster: FakeCluster) -> None:
    assert cluster.apply(hold(cluster, node_id=NodeId(2))) == T0
    said = cluster.refused(hold(cluster, BOB, T0 + MINUTE), PolicyViolationError)
    assert said == (
        "The cluster is held for maintenance by rolling restart by ann@ops1 (node 2) since"
        " 2023-11-14T22:13:20Z, until 2023-11-14T22:23:20Z unless renewed. Wait for that, or end"
        " it: dlogctl maintenance release --force"
    )


def test_the_same_token_renews_and_keeps_since(cluster: FakeCluster) -> None:
    cluster.apply(hold(cluster))
    again = hold(cluster, at=T0 + MINUTE, node_id=NodeId(3), owner="step 2", lifetime_ms=5)
    assert cluster.apply(again) == T0
    assert cluster.image.maintenance == MaintenanceLock(
        owner="step 2",
        token=ANN,
        node_id=NodeId(3),
        since_ms=T0,
        expires_ms=T0 + MINUTE + 5,
    )


def test_it_expires_by_the_time_in_the_command(cluster: FakeCluster) -> None:
    cluster.apply(hold(cluster))
    end = T0 + 10 * MINUTE
    cluster.refused(hold(cluster, BOB, end - 1), PolicyViolationError)
    assert cluster.apply(hold(cluster, BOB, end)) == end
    # Who lost it begins again, and has to wait.
    cluster.refused(hold(cluster, ANN, end + 1), PolicyViolationError)


def test_after_a_gap_since_is_new(cluster: FakeCluster) -> None:
    cluster.apply(hold(cluster))
    assert cluster.apply(hold(cluster, at=T0 + 10 * MINUTE)) == T0 + 10 * MINUTE


def test_release(cluster: FakeCluster) -> None:
    def release(token: UUID | None) -> ReleaseMaintenance:
        return ReleaseMaintenance(command_id=cluster.new_id(), token=token)

    cluster.apply(release(ANN))  # free already
    cluster.apply(hold(cluster))
    said = cluster.refused(release(BOB), PolicyViolationError)
    assert "by rolling restart by ann@ops1 since 2023" in said
    assert "--force" in said
    cluster.apply(release(ANN))
    assert cluster.image.maintenance is None
    cluster.apply(hold(cluster))
    cluster.apply(release(None))
    assert cluster.image.maintenance is None


@pytest.mark.parametrize("kind", [Drain.LEADERS, Drain.REPLICAS])
def test_drains_are_held_back(cluster: FakeCluster, kind: Drain) -> None:
    cluster.apply(drain(cluster, by(None), kind))
    cluster.apply(hold(cluster, node_id=NodeId(1)))
    for permit in (by(None), by(BOB), None, by(ANN, T0)):
        command = drain(cluster, permit, kind, node_id=2)
        if permit == by(ANN, T0):
            cluster.apply(command)
            continue
        said = cluster.refused(command, PolicyViolationError)
        assert "by rolling restart by ann@ops1 (node 1) since 2023-11-14T22:13:20Z, until" in said
        assert "--maintenance-token" in said
        assert "dlogctl maintenance release --force" in said
    # A drain ends whoever says so; after its end the lock holds nothing back.
    cluster.apply(drain(cluster, by(None), Drain.NONE, node_id=2))
    cluster.apply(drain(cluster, None, Drain.NONE))
    cluster.apply(drain(cluster, by(None, T0 + 10 * MINUTE), kind, node_id=2))


def test_removals_are_held_back(cluster: FakeCluster) -> None:
    cluster.fence(3)
    cluster.apply(hold(cluster))
    for permit in (by(None), by(BOB), None):
        cluster.refused(removal(cluster, permit), PolicyViolationError)
    cluster.apply(removal(cluster, by(ANN)))
    assert NodeId(3) not in cluster.image.nodes


def test_a_free_lock_holds_nothing_back(cluster: FakeCluster) -> None:
    for permit in (None, by(None), by(BOB)):
        cluster.apply(drain(cluster, permit))
    cluster.fence(3)
    cluster.apply(removal(cluster, by(None)))


@pytest.mark.parametrize(
    "wrong",
    [
        {"owner": ""},
        {"owner": "x" * 256},
        {"lifetime_ms": 0},
        {"lifetime_ms": MAINTENANCE_LIFETIME_MS_MAX + 1},
        {"node_id": NodeId(-2)},
        {"at": -1},
        {"at": TIMESTAMP_MS_MAX + 1},
    ],
)
def test_what_is_no_lock(cluster: FakeCluster, wrong: dict[str, Any]) -> None:
    cluster.refused(hold(cluster, **wrong), InvalidRequestError)


def test_the_longest_sentence_is_whole(cluster: FakeCluster) -> None:
    owner, node_id = "\N{PILE OF POO}" * 255, NodeId((1 << 31) - 1)
    at = TIMESTAMP_MS_MAX
    longest = hold(cluster, at=at, owner=owner, node_id=node_id, lifetime_ms=3_600_000)
    cluster.apply(longest)
    said = cluster.refused(drain(cluster, by(None, at)), PolicyViolationError)
    assert said.endswith("dlogctl maintenance release --force")


# -- levels


def below(cluster: FakeCluster) -> None:
    cluster.image = cluster.image.having(feature_level=LEVEL_MAINTENANCE - 1)


def test_nothing_of_it_is_at_the_level_before(cluster: FakeCluster) -> None:
    """Older software makes the same image of the same commands, and remembers no refusal."""
    below(cluster)
    release = ReleaseMaintenance(command_id=cluster.new_id(), token=None)
    for command in (hold(cluster), release, drain(cluster, by(None)), removal(cluster, by(None))):
        before = cluster.image.outcomes
        cluster.refused(command, UnsupportedVersionError)
        assert cluster.image.outcomes == before
    cluster.apply(drain(cluster, None))
    data = snapshot.encode(cluster.image)
    assert data[8:10] == b"\0\3"
    assert snapshot.decode(data) == cluster.image


def test_raising_the_level_brings_it(cluster: FakeCluster) -> None:
    below(cluster)
    old = snapshot.decode(snapshot.encode(cluster.image))
    assert old.maintenance is None
    cluster.image = old
    cluster.apply(SetFeatureLevel(command_id=cluster.new_id(), level=LEVEL_NEWEST))
    cluster.apply(hold(cluster))
    cluster.refused(drain(cluster, None), PolicyViolationError)


# -- bytes


def image_of_golden(level: int) -> Any:
    """Return the image of a registration, at a level."""
    image, outcome = apply.apply(EMPTY_IMAGE, encode(COMMANDS[0][0]))
    assert isinstance(outcome, Applied)
    after, _ = apply.apply(
        image, encode(UnfenceNode(command_id=UUID(int=3), node_id=NodeId(1), node_epoch=1))
    )
    return after.having(feature_level=level)


def test_a_snapshot_of_the_level_before_has_the_bytes_that_it_had() -> None:
    """Golden: what the version before wrote for this image."""
    data = snapshot.encode(image_of_golden(LEVEL_MAINTENANCE - 1))
    assert (data[:10], len(data), data[26:30].hex()) == (b"dlogsnap\0\3", 242, "241af6bb")


def test_snapshot_of_level_5() -> None:
    """Golden bytes of what format 4 has in addition (docs/formats/metadata-snapshot.md)."""
    older = snapshot.encode(image_of_golden(LEVEL_MAINTENANCE - 1))
    image = image_of_golden(LEVEL_MAINTENANCE)
    behind = 30 + 4 + 4 + 8 + 2 + 8 + 4 + 8 + 8 + 4  # the floor of the epochs
    lock = MaintenanceLock(
        owner="ann", token=ANN, node_id=NodeId(2), since_ms=T0, expires_ms=T0 + 1
    )
    golden = f"01 0003 616e6e {0xA:032x} 00000002 0000018bcfe56800 0000018bcfe56801"
    for held, text in ((None, "00"), (lock, golden)):
        data = snapshot.encode(image.having(maintenance=held))
        added = bytes.fromhex(text)
        assert data[8:10] == b"\0\4"
        head, level = older[30:38] + older[38:46], b"\0\5"
        assert data[30:] == (head + level + older[48:behind] + added + older[behind:])
        assert snapshot.decode(data) == image.having(maintenance=held)


def test_a_change_of_the_lock_is_seen(cluster: FakeCluster) -> None:
    before = cluster.image
    cluster.apply(hold(cluster))
    delta = between(before, cluster.image)
    assert delta and delta.maintenance_changed
