"""What one run of a cluster does, drawn from its seed: nodes, timings, bounds, clients, faults.

Pure. As in `tests.simulation.plan`, each seed draws its own subset of everything, and the schedule
of faults is data, so that a failing run can be shortened by leaving faults out.
"""

import random
from dataclasses import dataclass, field, replace

from tests.simulation.fleet import rot_plan
from tests.simulation.fleet.bounds import draw_bounds
from tests.simulation.fleet.data_plan import NO_DATA, DataPlan, draw_data, with_racks
from tests.simulation.fleet.id_watch import draw_block
from tests.simulation.plan import Fault

CLIENT_PORT, RAFT_PORT, INTERNAL_PORT = 9092, 9643, 9645
SECRET_DIRECTORY = "/etc"
LATE, RENEW, RETURN = "late", "renew", "return"
"""What becomes of the last node: it is added late, or removed and comes back (`steward`)."""
NODES_MIN = 4
"""With fewer, a topic's replicas have nowhere else to go."""


def address_of(node_id: int) -> str:
    """Return where a node is."""
    return f"10.0.0.{node_id}"


@dataclass(frozen=True, slots=True)
class FleetPlan:
    """One run."""

    seed: int
    nodes: int
    controllers: int
    active_ms: int
    pace: float  # how slow the cluster's timings are, against the quick ones
    config: dict[str, str]
    raft: dict[str, int]
    planner: dict[str, int]
    data_directories: tuple[str, ...]
    disk_latency_us: tuple[int, int]
    pause_share: float
    drifts_ppm: tuple[int, ...]  # per node
    racks: tuple[str, ...]  # per node; empty: none
    network: dict[str, int | float]
    threads: bool  # Raft has a thread of its own, as in production
    clients: int
    client_interval_ms: int
    operator_interval_ms: int
    last_strike: str  # how nodes are taken away when all has healed
    faults: tuple[Fault, ...]
    capacity_bytes: int = 1 << 40
    direct_supported: bool = False
    drift_ppm: int = 0
    dropped: tuple[int, ...] = field(default=())
    data: DataPlan = NO_DATA
    bounds: dict[str, int | float] = field(default_factory=dict)
    throttle_interval_ms: int = 0  # between changes of throttles of replication; 0: there are none
    node_change: str = ""
    node_change_ms: int = 0
    write_back_share: float = 0.0  # of what is dirty, flushed by the system itself now and then

    @property
    def directories(self) -> tuple[str, ...]:
        """The mounts of each host."""
        return (*self.data_directories, SECRET_DIRECTORY)

    def without(self, *numbers: int) -> "FleetPlan":
        """Return the plan without some of its faults, which keep their numbers."""
        return replace(self, dropped=tuple(sorted({*self.dropped, *numbers})))

    def schedule(self) -> list[tuple[int, Fault]]:
        """Return the faults that happen, each with its number."""
        return [item for item in enumerate(self.faults) if item[0] not in self.dropped]

    def yaml(self, node_id: int) -> str:
        """Return the configuration file of a node."""
        voters = ", ".join(
            f'"{each}@{address_of(each)}:{RAFT_PORT}"' for each in range(1, self.controllers + 1)
        )
        here = address_of(node_id)
        values = {
            "node.id": str(node_id),
            "cluster.id": "simulated",
            "cluster.secret.file": f"{SECRET_DIRECTORY}/secret",
            "controllers": f"[{voters}]",
            "listeners": f'["{here}:{CLIENT_PORT}"]',
            "metadata.listener": f'"{here}:{RAFT_PORT}"',
            "internal.listener": f'"{here}:{INTERNAL_PORT}"',
            "data.directories": f"[{', '.join(self.data_directories)}]",
            **self.config,
        }
        if self.racks:
            values["node.rack"] = self.racks[node_id - 1]
        return "".join(f"{name}: {value}\n" for name, value in values.items())

    def describe(self) -> list[str]:
        """Return the plan as lines for people."""
        lines = [
            f"seed {self.seed}: {self.active_ms} ms, {self.nodes} nodes, {self.controllers} voters,"
            f" racks {self.racks}, threads {self.threads}"
        ]
        lines += [f"config {name}: {value}" for name, value in self.config.items()]
        lines += [f"bound {name}: {value}" for name, value in self.bounds.items()]
        lines.append(f"raft {self.raft} planner {self.planner} network {self.network}")
        lines.append(
            f"disk latency_us={self.disk_latency_us} directories={self.data_directories}"
            f" pause_share={self.pause_share:.2f} write_back={self.write_back_share}"
            f" drifts={self.drifts_ppm}"
        )
        lines.append(
            f"clients {self.clients} every {self.client_interval_ms} ms,"
            f" operator every {self.operator_interval_ms} ms,"
            f" last strike {self.last_strike}"
        )
        if self.node_change:
            lines.append(f"node {self.nodes}: {self.node_change} at {self.node_change_ms} ms")
        if self.throttle_interval_ms:
            lines.append(f"throttles every {self.throttle_interval_ms} ms")
        lines += self.data.describe()
        return lines + [f"fault {number}: {fault}" for number, fault in self.schedule()]


QUICK = {
    "raft.heartbeat": "30ms",
    "raft.election.min": "120ms",
    "raft.election.max": "300ms",
    "raft.check_quorum": "300ms",
    "raft.silence": "600ms",
    "lease.heartbeat": "60ms",
    "lease.duration": "800ms",
    "lease.authority": "300ms",
    "lease.probe.timeout": "150ms",
    "lease.image_lag.max": "600ms",
}
DEFAULT: dict[str, str] = {}
"""What a cluster has that was not configured otherwise."""


def draw(seed: int) -> FleetPlan:
    """Return the plan of a seed."""
    rng = random.Random(f"{seed}/fleet")
    nodes = rng.choice((3, 3, 3, 4, 5, 5, 6, 7))
    controllers = rng.choice([each for each in (1, 3, 3, 3, 5, 5) if each <= nodes])
    quick = rng.random() < 0.8
    pace = 1.0 if quick else 3.5
    active_ms = int(rng.choice((2500, 3500, 5000)) * (1.0 if quick else 1.6))
    data_directories = rng.choice((("/data0",), ("/data0",), ("/data0", "/data1")))
    plan = FleetPlan(
        seed=seed,
        nodes=nodes,
        controllers=controllers,
        active_ms=active_ms,
        pace=pace,
        config=_config(rng)
        | (QUICK if quick else DEFAULT)
        | _strays(seed)
        | rot_plan.draw_scrub(seed),
        raft={
            "log_bytes_max": rng.choice((2_000, 8_000, 60_000, 4 << 20)),
            "entries_kept": rng.choice((0, 3, 50)),
            "append_bytes_max": rng.choice((300, 4_000, 1 << 20)),
            "chunk_bytes": rng.choice((100, 5_000, 256 << 10)),
        },
        planner={
            "scan_interval_ms": rng.choice((50, 1_000)),
            "elections_max": rng.choice((1, 100)),
            "settled_ms": rng.choice((200, 2_000, 30_000)),
            "unclean_after_ms": rng.choice((500, 30_000)),
            "refill_after_ms": rng.choice((1_500, 1_800_000, 1_800_000)),
            "reassignments_max": rng.choice((1, 20)),
        },
        data_directories=data_directories,
        disk_latency_us=(rng.choice((0, 50)), rng.choice((50, 300, 3_000))),
        pause_share=rng.choice((0.0, 0.0, 0.0, 0.0, 0.2)),
        drifts_ppm=tuple(rng.choice((0, 0, 300, -300, 900, -900)) for _ in range(nodes)),
        racks=tuple(f"r{n % 3}" for n in range(nodes)) if rng.random() < 0.4 else (),
        network=_network(rng),
        threads=rng.random() < 0.7,
        clients=rng.choice((1, 1, 2)),
        client_interval_ms=int(rng.choice((30, 100, 300)) * pace),
        operator_interval_ms=int(rng.choice((60, 200, 800)) * pace),
        last_strike=rng.choice(("none", "crash", "crash", "power-cut", "pause")),
        faults=(
            *_faults(random.Random(f"{seed}/fleet/faults"), active_ms, pace, data_directories),
            *rot_plan.draw_rot(seed, active_ms),
        ),
        data=draw_data(seed, nodes, pace),
        throttle_interval_ms=int(_throttle_interval_ms(seed) * pace),
        bounds=draw_bounds(random.Random(f"{seed}/fleet/bounds"))
        | rot_plan.draw_rot_bounds(seed)
        | draw_block(seed),
        write_back_share=random.Random(f"{seed}/fleet/write-back").choice((0.0, 0.0, 0.3, 0.9)),
    )
    change, change_ms = _node_change(seed, plan)
    data = with_racks(plan.data, seed, plan.racks)
    return replace(plan, data=data, node_change=change, node_change_ms=change_ms)


def _node_change(seed: int, plan: FleetPlan) -> tuple[str, int]:
    """Add or remove a node in some runs; one that is not a voter from the start."""
    rng = random.Random(f"{seed}/fleet/nodes")
    change = rng.choice(("", LATE, RENEW, RETURN))
    if not change or plan.nodes < NODES_MIN or plan.nodes == plan.controllers:
        return "", 0
    return change, rng.randrange(500, plan.active_ms if change == LATE else plan.active_ms // 2)


def _throttle_interval_ms(seed: int) -> int:
    """Throttle replication in some runs, rarely or often."""
    return random.Random(f"{seed}/fleet/throttles").choice((0, 0, 100, 400))


def _config(rng: random.Random) -> dict[str, str]:
    return {
        "disk.reserve.bytes": "64KiB",
        "preallocate.bytes": rng.choice(("0", "4KiB")),
        "segment.bytes": "64KiB",
        "append.memory.bytes": "1MiB",
        "read.memory.bytes": "1MiB",
        "message.bytes.max": "64KiB",
        "frame.bytes.max": "1MiB",
        "inflight.bytes.max": "1MiB",
        "retention.check.interval": rng.choice(("100ms", "30s")),
        "flush.policy": rng.choice(("always", "always", "interval")),
        "topic.replication.default": "1",
        "shutdown.timeout": rng.choice(("2s", "10s")),
    }


def _strays(seed: int) -> dict[str, str]:
    """Let some clusters delete at once what a start set aside."""
    return {"stray.retention": random.Random(f"{seed}/fleet/strays").choice(("1s", "1d"))}


def _network(rng: random.Random) -> dict[str, int | float]:
    return {
        "latency_ns": rng.choice((20_000, 100_000, 1_000_000)),
        "jitter_ns": rng.choice((10_000, 200_000, 3_000_000, 10_000_000)),
        "slow_probability": rng.choice((0.0, 0.0, 0.001, 0.02)),
        "slow_ns": 50_000_000,
        "fragment_probability": rng.choice((0.0, 0.05, 0.3)),
        "window_bytes": rng.choice((2048, 16384, 65536)),
    }


# Kinds of faults, each with how many at most a run has of it.
_KINDS = {
    "crash": 4,
    "crash-many": 2,
    "power-cut": 3,
    "power-all": 1,
    "die": 5,
    "die-writing": 4,
    "stop": 3,
    "pause": 3,
    "one-way": 3,
    "isolate": 3,
    "split": 2,
    "cut-connections": 4,
    "slow-network": 2,
    "slow-disk": 2,
    "stuck-disk": 2,
    "disk-errors": 2,
    "disk-error-once": 2,
    "full-disk": 2,
    "set-clock": 2,
    "wipe": 2,
    "wipe-directory": 1,
    "add-voter": 3,
    "remove-voter": 3,
    "transfer": 3,
}
KINDS = (*_KINDS, rot_plan.KIND)

# In the middle of what a process and its host, or all hosts, end.
_DEATHS = (
    " crash write .log",
    " power-cut write .log",
    " power-cut sync .log",
    " crash truncate .log",
    " power-cut truncate .log",
    " power-cut rename /topics/",
    " crash unlink /topics/",
    " power-cut sync_directory /topics/",
    " power-cut rename high-watermarks",
)
_TARGETS = ("leader", "any", "any", "voter", "follower", "data", "data", "data")


def _faults(
    rng: random.Random, active_ms: int, pace: float, data: tuple[str, ...]
) -> tuple[Fault, ...]:
    chosen = [kind for kind in _KINDS if rng.random() < 0.4]
    count_max = rng.choice((2, 5, 9, 14))
    faults = []
    for kind in chosen:
        for _ in range(rng.randint(1, _KINDS[kind])):
            # The cluster has time to form first, in most runs.
            at_ms = rng.randrange(int(rng.choice((100, 900)) * pace), active_ms)
            faults.append(_fault(rng, kind, at_ms, pace, data))
    rng.shuffle(faults)
    return tuple(sorted(faults[:count_max], key=lambda fault: fault.at_ms))


def _fault(rng: random.Random, kind: str, at_ms: int, pace: float, data: tuple[str, ...]) -> Fault:
    length_ms = int(rng.choice((20, 200, 700, 2000)) * pace)
    target = rng.choice(_TARGETS)
    amount = 0.0
    if kind in ("crash-many", "split"):
        amount = rng.choice((0.4, 0.6, 1.0))
    elif kind == "cut-connections":
        amount = rng.choice((0.3, 1.0))
    elif kind == "die":
        amount = rng.randint(1, 25)
        target += rng.choice((" crash", " power-cut"))
    elif kind == "die-writing":
        amount = rng.choice((1, 2, 5))
        target += rng.choice(_DEATHS)
    elif kind == "slow-disk":
        amount = rng.choice((10.0, 100.0))
        target += f" {rng.choice(data)}"
    elif kind in ("stuck-disk", "full-disk", "wipe-directory"):
        target += f" {rng.choice(data)}"
    elif kind in ("disk-errors", "disk-error-once"):
        amount = rng.choice((0.2, 1.0))
        operations = rng.choice(("sync", "write", "write sync rename", "read"))
        target += f" {rng.choice(data)} {operations}"
    elif kind == "set-clock":
        amount = rng.choice((-3_600_000, -1000, 1000, 86_400_000))
    return Fault(at_ms, kind, length_ms, amount, target)
