"""Results on disk: one JSON file that rows are merged into, and the table made from it."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bench.arena import DESCRIPTIONS

# What the table shows of each row: metric -> heading, factor, format.
METRICS: dict[str, tuple[str, float, str]] = {
    "mb_per_s": ("MB/s", 1, ",.0f"),
    "mb_per_cpu_s": ("MB per CPU second", 1.0, ",.0f"),
    "records_per_s": ("records/s", 1, ",.0f"),
    "requests_per_s": ("requests/s", 1, ",.0f"),
    "p50_us": ("p50 µs", 1, ",.0f"),
    "p99_us": ("p99 µs", 1, ",.0f"),
    "p999_us": ("p99.9 µs", 1, ",.0f"),
    "cpu_s_per_gb": ("server CPU s/GB", 1, ".2f"),
    "rss_mb": ("RSS MB", 1, ",.0f"),
    "seconds": ("seconds", 1, ".3f"),
    "idle_cpu_share": ("idle CPU, % of a core", 100, ".1f"),
    "kb_per_connection": ("RSS KiB per connection", 1, ".1f"),
    "speed_beside_crowd": ("speed of the others", 1, ".2f"),
    "client_cpu_us": ("client CPU µs/record", 1, ".2f"),
    "import_ms": ("ms to import", 1, ".0f"),
    "proposals_per_s": ("changes/s", 1, ",.0f"),
    "follower_p50_us": ("p50 µs by a follower", 1, ",.0f"),
    "topic_ms": ("ms per topic, one by one", 1, ".1f"),
    "topics_answered_s": ("s for all, answered", 1, ".2f"),
    "topics_served_s": ("s for all, served", 1, ".2f"),
    "failover_s": ("s, median", 1, ".2f"),
    "failover_max_s": ("s at most", 1, ".2f"),
    "gap_s": ("s, longest gap, median", 1, ".2f"),
    "gap_max_s": ("s, longest gap at most", 1, ".2f"),
    "client_gap_s": ("s, longest gap of librdkafka's reports, median", 1, ".2f"),
    "client_gap_max_s": ("s at most", 1, ".2f"),
    "client_errors": ("errors at librdkafka's caller", 1, ",.0f"),
    "rate": ("records/s", 1, ",.0f"),
    "p99_times": ("times the p99 of 10 partitions", 1, ".2f"),
    "few_p99_us": ("p99 µs on 10 partitions", 1, ",.0f"),
    "follower_cpu_s_per_gb": ("CPU s/GB for each follower", 1, ".2f"),
    "r1_cpu_s_per_gb": ("CPU s/GB with 1 replica", 1, ".2f"),
    "r2_cpu_s_per_gb": ("with 2", 1, ".2f"),
    "r3_cpu_s_per_gb": ("with 3", 1, ".2f"),
    "r1_mb_per_s": ("MB/s with 1 replica", 1, ",.0f"),
    "r2_mb_per_s": ("with 2", 1, ",.0f"),
    "r3_mb_per_s": ("with 3", 1, ",.0f"),
    "image_mb": ("MB of image per node", 1, ".1f"),
    "replay_s": ("s to read it at start", 1, ".2f"),
    "help_ms": ("ms for `dlogctl --help`", 1, ".0f"),
    "cpu_s_per_million": ("CPU s per million records", 1, ".2f"),
    "batch_ms": ("ms per batch", 1, ".0f"),
    "walk_ns": ("ns of CPU per record", 1, ",.1f"),
    "crc_ns": ("for the CRC", 1, ",.1f"),
    "twin_ns": ("for the walk in Python", 1, ",.0f"),
    "crc_ratio": ("times the CRC", 1, ",.2f"),
    "twin_ratio": ("times the walk in Python", 1, ".4f"),
    "learn_cpu_s_per_gb": ("CPU s/GB to learn it", 1, ".2f"),
    "learn_ns": ("ns of CPU per record", 1, ",.0f"),
    "crc_cpu_s_per_gb": ("CPU s/GB to read it with CRC", 1, ".2f"),
    "search_us": ("p50 µs per search while it is written", 1, ",.0f"),
    "start_s": ("s to start and end the query", 1, ".1f"),
}
# Shown per row; the rest stays in the JSON file.
SHOWN = {
    "produce-1k": ("mb_per_s", "cpu_s_per_gb", "rss_mb"),
    "produce-100": ("records_per_s", "cpu_s_per_gb"),
    "prebuilt": ("mb_per_s", "p50_us", "p99_us", "cpu_s_per_gb"),
    **{
        f"produce-{size}-{codec}": ("mb_per_s", "cpu_s_per_gb")
        for size in ("1k", "100")
        for codec in ("zstd", "lz4", "gzip")
    },
    "pipelined": ("requests_per_s",),
    "pipelined-1k": ("requests_per_s", "mb_per_s"),
    "connections-64": ("requests_per_s", "p50_us", "p99_us"),
    "round-trip": ("p50_us", "p99_us"),
    "catch-up": ("mb_per_s", "cpu_s_per_gb"),
    "produce-beside-catch-up": ("p50_us", "p99_us"),
    "cold-start": ("seconds",),
    "restart-after-kill": ("seconds",),
    "partitions-2000": ("idle_cpu_share", "mb_per_s", "rss_mb"),
    "connections-1000-idle": ("kb_per_connection", "speed_beside_crowd"),
    "consumers-1000-slow": ("kb_per_connection", "speed_beside_crowd"),
    **dict.fromkeys(
        (
            "client-produce-100",
            "client-produce-1k",
            "client-produce-many-100",
            "client-produce-many-1k",
            "client-consume-100",
            "client-consume-1k",
            "client-consume-many-100",
            "client-consume-many-1k",
        ),
        ("records_per_s", "client_cpu_us"),
    ),
    "client-decode": ("records_per_s", "mb_per_s"),
    "client-decode-1k": ("records_per_s", "mb_per_s"),
    "client-import": ("import_ms", "help_ms"),
    **dict.fromkeys(
        ("walk-100", "walk-1k", "walk-1k-large"),
        ("walk_ns", "crc_ns", "twin_ns", "crc_ratio", "twin_ratio"),
    ),
    **dict.fromkeys(
        (f"segment-times{kind}" for kind in ("", "-large", "-zstd", "-large-zstd")),
        (
            "learn_cpu_s_per_gb",
            "learn_ns",
            "crc_cpu_s_per_gb",
            "crc_ratio",
            "search_us",
        ),
    ),
    "proposals": ("p50_us", "p99_us", "follower_p50_us", "proposals_per_s"),
    "create-topics": ("topic_ms", "topics_answered_s", "topics_served_s"),
    "controller-failover": ("failover_s", "failover_max_s"),
    "node-failure": ("failover_s", "failover_max_s"),
    "partitions-10000": ("image_mb", "replay_s", "idle_cpu_share", "rss_mb"),
    "r3-produce-1k": ("mb_per_s", "cpu_s_per_gb", "rss_mb"),
    "r3-produce-100": ("records_per_s", "cpu_s_per_gb", "rss_mb"),
    "r3-prebuilt": ("mb_per_s", "p50_us", "p99_us", "cpu_s_per_gb"),
    "r3-round-trip": ("p50_us", "p99_us"),
    "r3-connections-64": ("requests_per_s", "p50_us", "p99_us"),
    "r3-prebuilt-crowded": ("mb_per_s", "p50_us", "p99_us", "cpu_s_per_gb"),
    "r3-round-trip-crowded": ("p50_us", "p99_us"),
    "r3-connections-64-crowded": ("requests_per_s", "p50_us", "p99_us"),
    "r3-latency-1000": ("p50_us", "p99_us", "p999_us"),
    "r3-latency-peak": ("rate", "p50_us", "p99_us", "p999_us"),
    "r3-follower-cost": (
        *("follower_cpu_s_per_gb", "r1_cpu_s_per_gb", "r2_cpu_s_per_gb", "r3_cpu_s_per_gb"),
        *("r1_mb_per_s", "r2_mb_per_s", "r3_mb_per_s"),
    ),
    "r3-partitions-5000": ("idle_cpu_share", "p99_us", "few_p99_us", "rss_mb"),
    "r3-kill-leader": ("failover_s", "failover_max_s"),
    "r3-kill-controller": ("failover_s", "failover_max_s"),
    "r3-pause-leader": ("failover_s", "failover_max_s"),
    "r3-pause-controller": ("failover_s", "failover_max_s"),
    "r3-kill-all": ("failover_s", "failover_max_s"),
    "r3-restart": ("gap_s", "gap_max_s", "client_gap_s", "client_gap_max_s", "client_errors"),
    "r3-return": ("seconds",),
    "r3-lose-host": ("failover_s", "failover_max_s"),
    "r3-lose-controller": ("failover_s", "failover_max_s"),
    "r3-catch-up": ("seconds", "gap_s", "gap_max_s"),
    **dict.fromkeys(
        (
            *("spark-batch-100", "spark-batch-zstd-100", "spark-batch-1k", "spark-batch-zstd-1k"),
            *("spark-stream-noop-100", "spark-stream-noop-1k"),
            *("spark-stream-parquet-100", "spark-stream-parquet-1k"),
            *("spark-sink-100", "spark-sink-1k"),
        ),
        ("records_per_s", "mb_per_s", "cpu_s_per_million"),
    ),
    "spark-plan-1000": ("seconds",),
    "spark-micro-batch": ("batch_ms", "start_s"),
    "spark-archive-1k": ("records_per_s", "mb_per_s", "mb_per_cpu_s"),
    "spark-replay-1k": ("records_per_s", "mb_per_s", "mb_per_cpu_s"),
}
Results = dict[str, Any]


def load(path: Path) -> Results:
    """Return the results so far, or none."""
    if path.exists():
        found: Results = json.loads(path.read_text(encoding="utf-8"))
        return found
    return {"rows": {}}


def merge(results: Results, row: Mapping[str, Any], facts: Mapping[str, str], command: str) -> None:
    """Put a row that was just measured in place of its last one."""
    results["rows"][row["name"]] = {**row, "machine": dict(facts), "command": command}


def save(results: Results, path: Path) -> None:
    """Write the JSON file and the table beside it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(results, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    path.with_suffix(".md").write_text(markdown(results), encoding="utf-8")


def _number(metric: str, value: float) -> str:
    heading, factor, shape = METRICS[metric]
    return f"{value * factor:{shape}} {heading}"


def _verdict(target: Mapping[str, Any]) -> str:
    """Say one target's ratio (or number), its bound, and whether it was met."""
    if target["value"] is None:
        return f"{target['bound']}: not measured"
    if target["theirs"] is None:
        value = _number(target["metric"], target["value"])
        bound = target["bound"]
        if target["metric"] == "idle_cpu_share":
            bound = f"{bound[:1]} {float(bound[1:]) * 100:g}"
    else:
        against = "" if target["theirs"] == "kafka" else f" of {target['theirs']}"
        heading = METRICS[target["metric"]][0]
        value = f"{heading} {target['value']:.2f}x{against}"
        if target["ours"] != "dlog":
            value = f"{target['ours']}: {value}"
        bound = target["bound"]
    return f"{value} (target {bound}{'' if target['met'] else ', **missed**'})"


def _row_lines(row: Mapping[str, Any]) -> list[str]:
    medians = row["medians"]
    cells = []
    for contender, numbers in medians.items():
        shown = [m for m in SHOWN.get(row["name"], METRICS) if m in numbers]
        text = "; ".join(_number(metric, numbers[metric]) for metric in shown)
        cells.append(f"{contender}: {text}")
    verdicts = [_verdict(target) for target in row["targets"]]
    return [f"| {row['title']} | {'<br>'.join(cells)} | {'<br>'.join(verdicts)} |"]


def markdown(results: Results) -> str:
    """Return the table, with the machine and the commands below it."""
    rows = sorted(results["rows"].values(), key=lambda row: list(SHOWN).index(row["name"]))
    lines = [
        "# What was measured",
        "",
        "Medians of alternating runs on one machine, client and server on the same cores. Only the",
        "ratios mean anything elsewhere; a ratio is dlog's number divided by the other's.",
        "",
        *(f"- **{name}**: {text}" for name, text in DESCRIPTIONS.items()),
        "",
        "| row | medians | ratios |",
        "|---|---|---|",
    ]
    for row in rows:
        lines += _row_lines(row)
    lines += ["", "## How", "", "| row | runs | date | commit | command |", "|---|---|---|---|---|"]
    for row in rows:
        size = " (quick)" if row["quick"] else ""
        cells = (row["name"], f"{row['runs']}{size}", row["date"], row["machine"]["commit"])
        lines.append(f"| {' | '.join(cells)} | `{row['command']}` |")
    machines = sorted({_machine(row["machine"]) for row in rows})
    lines += ["", "## Machine", "", *machines, ""]
    return "\n".join(lines)


def _machine(facts: Mapping[str, str]) -> str:
    return "; ".join(f"{key}: {value}" for key, value in sorted(facts.items()) if key != "commit")
