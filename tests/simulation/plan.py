"""What one run does, drawn from its seed: configuration, topics, clients, schedule of faults.

Pure. Each seed draws its own subset of everything (swarm testing), so that rare combinations are
common and a fault is not hidden by another. The schedule of faults is data: a failing run is
shortened by leaving faults out (`without`), which changes nothing else of the plan.
"""

import random
from dataclasses import dataclass, field, replace

from tests.simulation.constants import draw_constants

NODE_ADDRESS = "10.0.0.1"
PORT = 9092
CLIENT_ADDRESSES = ("10.0.1.1", "10.0.1.2")


@dataclass(frozen=True, slots=True)
class Fault:
    """Something that goes wrong at a time; what the fields mean depends on the kind."""

    at_ms: int
    kind: str
    length_ms: int = 0
    amount: float = 0.0
    detail: str = ""

    def __str__(self) -> str:
        rest = f" length={self.length_ms}ms" if self.length_ms else ""
        rest += f" amount={self.amount:g}" if self.amount else ""
        return f"{self.at_ms}ms {self.kind}{rest}{' ' + self.detail if self.detail else ''}"


CHECKED = "compressed.records.validate"


@dataclass(frozen=True, slots=True)
class TopicPlan:
    """One topic; a churning one is deleted and made again and again."""

    name: str
    partitions: int
    configs: dict[str, str]
    churns: bool = False


@dataclass(frozen=True, slots=True)
class ProducerPlan:
    """One producer."""

    name: str
    idempotent: bool
    acks: int
    inflight: int
    interval_ms: int
    records_max: int
    value_bytes_max: int
    codec: int
    version: int
    retries: int
    lanes: int
    timeout_ms: int
    # All batches have one size, so that new ones fit exactly where lost ones were.
    uniform: bool = False
    # How often an idempotent producer loses its connection while it waits for answers.
    hangup_share: float = 0.0
    # What heads of batches claim in place of their largest timestamp: see `producers`.
    lies: str = ""


@dataclass(frozen=True, slots=True)
class ConsumerPlan:
    """One consumer, of one partition after another when it does not tail."""

    name: str
    tails: bool
    version: int
    max_wait_ms: int
    min_bytes: int
    partition_bytes_max: int
    # Logs that one request asks for.
    partitions: int = 1


@dataclass(frozen=True, slots=True)
class Plan:
    """One run."""

    seed: int
    active_ms: int
    config: dict[str, str]
    constants: dict[str, int | float]
    directories: tuple[str, ...]
    capacity_bytes: int
    direct_supported: bool
    pause_share: float
    disk_latency_us: tuple[int, int]
    drift_ppm: int
    network: dict[str, int | float]
    topics: tuple[TopicPlan, ...]
    producers: tuple[ProducerPlan, ...]
    consumers: tuple[ConsumerPlan, ...]
    admin_interval_ms: int
    rude_interval_ms: int
    write_back_share: float
    faults: tuple[Fault, ...]
    dropped: tuple[int, ...] = field(default=())

    def without(self, *numbers: int) -> "Plan":
        """Return the plan without some of its faults, which keep their numbers."""
        return replace(self, dropped=tuple(sorted({*self.dropped, *numbers})))

    def schedule(self) -> list[tuple[int, Fault]]:
        """Return the faults that happen, each with its number."""
        return [item for item in enumerate(self.faults) if item[0] not in self.dropped]

    def yaml(self) -> str:
        """Return the node's configuration file."""
        return "".join(f"{name}: {value}\n" for name, value in self.config.items())

    def describe(self) -> list[str]:
        """Return the plan as lines for people."""
        lines = [f"seed {self.seed}: {self.active_ms} ms, directories {self.directories}"]
        lines += [f"config {name}: {value}" for name, value in self.config.items()]
        lines.append(f"constants {self.constants}")
        lines += [str(item) for item in (*self.topics, *self.producers, *self.consumers)]
        lines.append(
            f"disk latency_us={self.disk_latency_us} capacity={self.capacity_bytes}"
            f" direct={self.direct_supported} pause_share={self.pause_share:.2f}"
            f" write_back={self.write_back_share:.2f} network={self.network}"
        )
        lines += [f"fault {number}: {fault}" for number, fault in self.schedule()]
        return lines


def draw(seed: int) -> Plan:
    """Return the plan of a seed."""
    rng = random.Random(f"{seed}/plan")
    active_ms = rng.choice((1500, 2500, 2500, 4000))
    directories = tuple(f"/data{number}" for number in range(rng.choice((1, 1, 2, 3))))
    policies = rng.choice((("always",), ("always",), ("always", "interval", "never")))
    return Plan(
        seed=seed,
        active_ms=active_ms,
        config=_config(rng, directories),
        constants=draw_constants(random.Random(f"{seed}/constants")),
        directories=directories,
        capacity_bytes=1 << 40,
        direct_supported=rng.random() < 0.7,
        pause_share=rng.choice((0.0, 0.0, 0.1, 0.5)),
        disk_latency_us=(rng.choice((0, 50, 200)), rng.choice((50, 300, 3000, 15_000))),
        drift_ppm=rng.choice((0, 0, 100, -100)),
        network=_network(rng),
        topics=_some_checked(_topics(rng, policies), random.Random(f"{seed}/checked")),
        producers=_with_lies(_producers(rng), random.Random(f"{seed}/lies")),
        consumers=_consumers(rng),
        admin_interval_ms=rng.choice((0, 150, 400)),
        rude_interval_ms=rng.choice((0, 0, 300)),
        write_back_share=rng.choice((0.0, 0.0, 0.3, 0.9)),
        faults=_faults(random.Random(f"{seed}/faults"), active_ms, directories),
    )


def _config(rng: random.Random, directories: tuple[str, ...]) -> dict[str, str]:
    segment_bytes = rng.choice((4096, 16384, 65536, 1 << 20))
    config = {
        "node.id": "1",
        "listeners": f"[{NODE_ADDRESS}:{PORT}]",
        "data.directories": f"[{', '.join(directories)}]",
        "segment.bytes": str(segment_bytes),
        "segment.ms": rng.choice(("500ms", "3s", "7d")),
        "index.interval.bytes": str(min(segment_bytes, rng.choice((256, 512, 4096)))),
        "preallocate.bytes": str(rng.choice((0, 4096, 16384, 1 << 18))),
        "direct_io": rng.choice(("auto", "off")),
        "flush.interval": rng.choice(("20ms", "200ms", "1s")),
        "append.memory.bytes": rng.choice(("1MiB", "2MiB", "8MiB")),
        "read.memory.bytes": "1MiB",
        "retention.check.interval": rng.choice(("50ms", "500ms", "30s")),
        "disk.reserve.bytes": rng.choice(("64KiB", "1MiB")),
        "recovery.parallelism": str(rng.choice((1, 2, 4))),
        "message.bytes.max": str(rng.choice((64 << 10, 256 << 10))),
        "frame.bytes.max": "1MiB",
        "inflight.bytes.max": rng.choice(("1MiB", "4MiB")),
        "inflight.requests.max": str(rng.choice((1, 4, 100))),
        "shutdown.timeout": rng.choice(("1s", "30s")),
    }
    if rng.random() < 0.3:
        config["metadata.directory"] = "/data0/meta"
    return config


def _network(rng: random.Random) -> dict[str, int | float]:
    return {
        "latency_ns": rng.choice((20_000, 100_000, 1_000_000)),
        "jitter_ns": rng.choice((10_000, 200_000, 3_000_000)),
        "slow_probability": rng.choice((0.0, 0.0, 0.01)),
        "slow_ns": 100_000_000,
        "fragment_probability": rng.choice((0.0, 0.05, 0.3)),
        "window_bytes": rng.choice((2048, 16384, 65536)),
    }


def _topics(rng: random.Random, policies: tuple[str, ...]) -> tuple[TopicPlan, ...]:
    topics = []
    for number in range(rng.choice((1, 2, 2, 3))):
        configs = {"flush.policy": rng.choice(policies)}
        if rng.random() < 0.25:
            configs["retention.bytes"] = rng.choice(("0", "8192", "65536"))
        if rng.random() < 0.15:
            configs["retention.ms"] = rng.choice(("100", "1000"))
        if rng.random() < 0.2:
            configs["message.timestamp.type"] = "LogAppendTime"
        if rng.random() < 0.2:
            configs["segment.bytes"] = rng.choice(("1024", "8192"))
        churns = number > 0 and rng.random() < 0.5
        topics.append(TopicPlan(f"t{number}", rng.choice((1, 1, 2, 4)), configs, churns))
    return tuple(topics)


def _some_checked(topics: tuple[TopicPlan, ...], rng: random.Random) -> tuple[TopicPlan, ...]:
    """Let some topics have compressed records checked.

    Not where records go by their age: a check corrects the heads that retention must not believe.
    """
    checked = {CHECKED: "true"}
    return tuple(
        replace(each, configs=each.configs | checked)
        if rng.random() < 0.5 and "retention.ms" not in each.configs
        else each
        for each in topics
    )


def _producers(rng: random.Random) -> tuple[ProducerPlan, ...]:
    producers = []
    count = rng.choice((2, 3, 4))
    uniform = rng.random() < 0.3
    for number in range(count):
        idempotent = rng.random() < 0.5
        plan = ProducerPlan(
            name=f"p{number}",
            idempotent=idempotent,
            acks=-1 if idempotent else rng.choice((-1, -1, 1, 1, 0)),
            inflight=rng.choice((1, 2, 5)),
            interval_ms=rng.choice((5, 20, 60, 150)) * count // 2,
            records_max=rng.choice((1, 3, 10)),
            value_bytes_max=rng.choice((20, 200, 800, 2000, 12000)),
            codec=rng.choice((0, 0, 0, 1, 2, 3, 4)),
            version=rng.choice((3, 5, 7, 8, 9, 11, 12, 13)),
            retries=rng.choice((0, 2, 10)),
            lanes=rng.choice((1, 2, 3)),
            timeout_ms=rng.choice((300, 1500, 5000)),
            uniform=uniform,
            hangup_share=rng.choice((0.0, 0.05, 0.2)),
        )
        producers.append(plan)
    return tuple(producers)


def _with_lies(producers: tuple[ProducerPlan, ...], rng: random.Random) -> tuple[ProducerPlan, ...]:
    if rng.random() < 0.25:
        # All of them: one honest head would hide what the others claim.
        lies = rng.choice(("zero", "early", "none"))
        return tuple(replace(each, lies=lies, codec=rng.choice((1, 2, 3, 4))) for each in producers)
    choices = ("", "", "none", "zero", "early", "late", "any")
    return tuple(replace(each, lies=rng.choice(choices)) for each in producers)


def _consumers(rng: random.Random) -> tuple[ConsumerPlan, ...]:
    consumers = []
    for number in range(rng.choice((1, 2, 3))):
        plan = ConsumerPlan(
            name=f"c{number}",
            tails=number == 0 or rng.random() < 0.4,
            version=rng.choice((4, 5, 7, 10, 11, 12, 13, 15, 17)),
            max_wait_ms=rng.choice((0, 50, 500)),
            min_bytes=rng.choice((1, 1, 500, 10000)),
            partition_bytes_max=rng.choice((1, 300, 5000, 1 << 20)),
            partitions=rng.choice((1, 1, 2, 4)),
        )
        consumers.append(plan)
    return tuple(consumers)


# Kinds of faults, each with how many at most a run has of it.
_KINDS = {
    "crash": 5,
    "power-cut": 5,
    "stop": 2,
    "die": 8,
    "pause": 2,
    "cut-connections": 4,
    "block": 2,
    "slow-network": 1,
    "slow-disk": 2,
    "stuck-disk": 2,
    "disk-errors": 2,
    "disk-error-once": 2,
    "read-only": 1,
    "full-disk": 3,
    "no-descriptors": 2,
    "reload": 3,
    "flip-bit": 1,
    "set-clock": 2,
}
_RESTARTS = ("crash", "power-cut", "stop", "die")
_DISK_KINDS = (
    "slow-disk", "stuck-disk", "disk-errors", "disk-error-once", "read-only", "full-disk",
    "no-descriptors",
)  # fmt: skip
_OPERATIONS = ("write", "sync", "read", "write sync", "open create", "sync_directory")
_AMOUNTS: dict[str, tuple[float, ...]] = {
    "die": (1, 1, 2, 5, 20, 60),  # file operations until then
    "power-cut": (-1, -1, 0, 0.5, 1),  # share of sectors that survive; -1: any
    "cut-connections": (0.2, 1),
    "slow-disk": (10, 100),
    "disk-errors": (0.05, 0.3, 1),
    "disk-error-once": (0.05, 0.3, 1),
    "full-disk": (0, 4096, 20_000, 100_000),  # bytes left
    "no-descriptors": (0.3, 1),
    "set-clock": (-600_000, -1000, 1000, 600_000),
}
_DETAILS: dict[str, tuple[str, ...]] = {
    "die": (
        "crash",
        "power-cut",
        "crash write .log",
        "power-cut write .log",
        "power-cut write .log",
        "power-cut sync .log",
        "crash truncate",
        "power-cut truncate",
        "power-cut rename",
        "crash unlink",
        "power-cut unlink",
        "power-cut mkdir",
        "crash sync_directory",
        "power-cut sync_directory",
        "power-cut write .journal",
    ),
    "block": ("in", "out", "both"),
    "disk-errors": _OPERATIONS,
    "disk-error-once": _OPERATIONS,
    "flip-bit": (".log", ".log", ".idx", ".tdx"),
    "reload": (
        "segment.bytes 8192",
        "segment.ms 100ms",
        "retention.check.interval 20ms",
        "flush.interval 10ms",
        "disk.reserve.bytes 32KiB",
        "connections.max 3",
        "connections.per_ip.max 2",
        "connections.idle.timeout 300ms",
        "producer_id.per_partition.max 3",
    ),
}


def _faults(rng: random.Random, active_ms: int, directories: tuple[str, ...]) -> tuple[Fault, ...]:
    share = rng.choice((0.1, 0.25, 0.25, 0.4))
    kinds = [kind for kind in _KINDS if rng.random() < share]
    faults = []
    for kind in kinds:
        for _ in range(rng.randint(1, _KINDS[kind])):
            at_ms = rng.randrange(200, active_ms - 200)
            faults.append(_fault(rng, kind, at_ms, rng.choice(directories)))
    if rng.random() < 0.7:
        # What a run is mostly about: to end in the middle of a write of records.
        for _ in range(rng.randint(1, 4)):
            at_ms = rng.randrange(active_ms // 4, active_ms - 200)
            how = rng.choice(("crash write .log", "power-cut write .log"))
            faults.append(Fault(at_ms, "die", rng.choice((0, 50)), float(rng.choice((1, 3))), how))
    return tuple(sorted(faults, key=lambda fault: fault.at_ms))


def _fault(rng: random.Random, kind: str, at_ms: int, mount: str) -> Fault:
    length_ms = rng.choice((0, 5, 100, 600) if kind in _RESTARTS else (1, 20, 200, 800))
    amount = float(rng.choice(_AMOUNTS.get(kind, (0.0,))))
    detail = rng.choice(_DETAILS.get(kind, ("",)))
    if kind in _DISK_KINDS:
        detail = f"{mount} {detail}".strip()
    return Fault(at_ms, kind, length_ms, amount, detail)
