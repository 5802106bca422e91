"""What clients do with data in a run of a cluster: topics, producers, consumers; drawn by a seed.

Pure. Drawn apart from the rest of the plan, so that a change here leaves nodes and faults of all
seeds as they were.
"""

import random
from dataclasses import dataclass, replace

REPLICAS_MAX = 3
"""Topics have at most so many."""


@dataclass(frozen=True, slots=True)
class DataTopicPlan:
    """One topic; one that churns is deleted and made again and again."""

    name: str
    partitions: int
    replicas: int
    configs: dict[str, str]
    churns: bool = False


@dataclass(frozen=True, slots=True)
class DataProducerPlan:
    """One producer of the real library."""

    name: str
    acks: str
    idempotent: bool
    interval_ms: int
    burst_max: int  # records that are sent without a pause
    value_bytes_max: int
    compression: str
    linger_ms: int
    batch_bytes: int
    request_timeout_ms: int
    delivery_timeout_ms: int


@dataclass(frozen=True, slots=True)
class DataConsumerPlan:
    """One consumer of the real library."""

    name: str
    max_wait_ms: int
    partition_bytes_max: int
    restart_share: float  # how often it begins anew, from the start
    end_share: float  # how often it asks where partitions end
    rack: str = ""  # from whose followers it reads, where there are any


@dataclass(frozen=True, slots=True)
class DataPlan:
    """All of it; without topics nothing is written."""

    topics: tuple[DataTopicPlan, ...] = ()
    producers: tuple[DataProducerPlan, ...] = ()
    consumers: tuple[DataConsumerPlan, ...] = ()
    admin_interval_ms: int = 0
    actions: tuple[str, ...] = ()  # what the administrator does

    def describe(self) -> list[str]:
        """Return the plan as lines for people."""
        lines = [str(each) for each in (*self.topics, *self.producers, *self.consumers)]
        if self.topics:
            lines.append(f"admin every {self.admin_interval_ms} ms: {', '.join(self.actions)}")
        return lines


NO_DATA = DataPlan()

ACTIONS = ("trim", "min-isr", "flush-policy", "unclean", "segments", "move", "churn", "elect")


def draw_data(seed: int, nodes: int, pace: float) -> DataPlan:
    """Return what clients do in the run of a seed."""
    rng = random.Random(f"{seed}/fleet/data")
    if rng.random() < 0.1:
        return NO_DATA
    return DataPlan(
        topics=_topics(rng, min(nodes, REPLICAS_MAX)),
        producers=_producers(rng, pace),
        consumers=_consumers(rng),
        admin_interval_ms=int(rng.choice((150, 400, 1000)) * pace),
        actions=tuple(each for each in ACTIONS if rng.random() < 0.4),
    )


def with_racks(data: DataPlan, seed: int, racks: tuple[str, ...]) -> DataPlan:
    """Let consumers of some runs be in a rack of the nodes."""
    rng = random.Random(f"{seed}/fleet/consumers-racks")
    if not racks:
        return data
    consumers = [
        replace(each, rack=rng.choice(racks)) if rng.random() < 0.8 else each
        for each in data.consumers
    ]
    return replace(data, consumers=tuple(consumers))


def _topics(rng: random.Random, replicas_max: int) -> tuple[DataTopicPlan, ...]:
    topics = []
    for number in range(rng.choice((1, 1, 2))):
        replicas = min(replicas_max, rng.choice((1, 2, 3, 3, 3, 3)))
        configs = {}
        if replicas > 1 and rng.random() < 0.8:
            configs["min.insync.replicas"] = str(rng.choice((1, 2, 2, 2, replicas)))
        if rng.random() < 0.5:
            configs["segment.bytes"] = rng.choice(("1024", "8192"))
        if rng.random() < 0.15:
            configs["retention.bytes"] = rng.choice(("2048", "16384"))
        if rng.random() < 0.15:
            configs["flush.policy"] = rng.choice(("interval", "never"))
        if rng.random() < 0.15:
            configs["unclean.leader.election.enable"] = "true"
        if rng.random() < 0.5:
            configs["replica.lag.time.max.ms"] = rng.choice(("300", "1000", "5000"))
        churns = number > 0 and rng.random() < 0.6
        topics.append(
            DataTopicPlan(f"d{number}", rng.choice((1, 1, 2, 3)), replicas, configs, churns)
        )
    return tuple(topics)


def _producers(rng: random.Random, pace: float) -> tuple[DataProducerPlan, ...]:
    producers = []
    for number in range(rng.choice((1, 1, 2, 2))):
        idempotent = rng.random() < 0.6
        producers.append(
            DataProducerPlan(
                name=f"p{number}",
                acks="all" if number == 0 or rng.random() < 0.5 else "leader",
                idempotent=idempotent,
                interval_ms=int(rng.choice((20, 40, 100)) * pace),
                burst_max=rng.choice((1, 4, 12)),
                value_bytes_max=rng.choice((20, 20, 200, 2000)),
                compression=rng.choice(("none", "none", "none", "lz4")),
                linger_ms=rng.choice((0, 5)),
                batch_bytes=rng.choice((300, 2_000, 16_384)),
                request_timeout_ms=int(rng.choice((300, 1_000)) * pace),
                delivery_timeout_ms=int(rng.choice((800, 3_000, 8_000)) * pace),
            )
        )
    return tuple(producers)


def _consumers(rng: random.Random) -> tuple[DataConsumerPlan, ...]:
    return tuple(
        DataConsumerPlan(
            name=f"c{number}",
            max_wait_ms=rng.choice((20, 100, 300)),
            partition_bytes_max=rng.choice((1, 500, 1 << 20)),
            restart_share=rng.choice((0.0, 0.0, 0.05)),
            end_share=rng.choice((0.0, 0.1)),
        )
        for number in range(rng.choice((1, 1, 2)))
    )
