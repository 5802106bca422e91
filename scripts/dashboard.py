"""Writes grafana/pipelines.json: the row that shows the jobs on Spark. A test compares them.

python -m scripts.dashboard > grafana/pipelines.json
"""

import json
import sys
from typing import Any

WIDTH, HEIGHT, ACROSS = 8, 7, 24
SELECTED = '{pipeline=~"$pipeline", job_name=~"$job_name"}'
LEGEND = "{{pipeline}} {{job_name}}"
PANELS: tuple[tuple[str, str, str, str], ...] = (
    (
        "Left to do",
        "Offsets that are not archived or replayed yet, after the last batch.",
        "dlog_pipeline_lag_offsets{s}",
        "short",
    ),
    (
        "Records per second",
        "While batches are under way: moved records by the time that batches took.",
        "rate(dlog_pipeline_records_total{s}[$__rate_interval])"
        " / rate(dlog_pipeline_batch_seconds_total{s}[$__rate_interval])",
        "cps",
    ),
    (
        "Bytes per second",
        "Keys and values, over all time.",
        "rate(dlog_pipeline_record_bytes_total{s}[$__rate_interval])",
        "Bps",
    ),
    (
        "Age of the last success",
        "How long ago a run ended well. An alert belongs on it: a timer that does not start has no "
        "errors.",
        "time() - dlog_pipeline_last_success_timestamp_seconds{s}",
        "s",
    ),
    (
        "Runs, failures",
        "Runs that ended, well or with an error, in the last hour.",
        "increase(dlog_pipeline_runs_total{s}[1h])"
        " or increase(dlog_pipeline_run_failures_total{s}[1h])",
        "short",
    ),
    (
        "Duration of the last run; running",
        "The second series is 1 while a run is under way.",
        "dlog_pipeline_last_run_seconds{s} or dlog_pipeline_running{s}",
        "s",
    ),
    (
        "Batches",
        "Batches that were done in the last hour.",
        "increase(dlog_pipeline_batches_total{s}[1h])",
        "short",
    ),
    (
        "Lost before it was archived",
        "Offsets that retention took first, where that was accepted. Archive more often.",
        "increase(dlog_pipeline_lost_offsets_total{s}[1d])",
        "short",
    ),
    (
        "Without a record",
        "Offsets that held none when they were archived, in topics that are not compacted. "
        "Anything but 0 was lost where it was stored: dlogctl pipeline audit names them.",
        "increase(dlog_pipeline_missing_offsets_total{s}[1d])",
        "short",
    ),
    (
        "Findings of the last audit",
        "Offsets that are missing, there twice, or differ. Anything but 0 is an incident.",
        "dlog_pipeline_findings{s}",
        "short",
    ),
)


def _panel(place: int, title: str, meaning: str, query: str, unit: str) -> dict[str, Any]:
    across = ACROSS // WIDTH
    targets = [
        {"refId": chr(ord("A") + index), "expr": part, "legendFormat": _legend(part)}
        for index, part in enumerate(query.replace("{s}", SELECTED).split(" or "))
    ]
    return {
        "id": place + 2,
        "type": "timeseries",
        "title": title,
        "description": meaning,
        "datasource": {"type": "prometheus", "uid": "${datasource}"},
        "fieldConfig": {"defaults": {"unit": unit, "min": 0}, "overrides": []},
        "gridPos": {
            "x": place % across * WIDTH,
            "y": 1 + place // across * HEIGHT,
            "w": WIDTH,
            "h": HEIGHT,
        },
        "targets": targets,
    }


def _legend(query: str) -> str:
    for word in ("failures", "running"):
        if word in query:
            return f"{LEGEND} {word}"
    return LEGEND


def _variable(name: str) -> dict[str, Any]:
    return {
        "name": name,
        "type": "query",
        "datasource": {"type": "prometheus", "uid": "${datasource}"},
        "query": f"label_values(dlog_pipeline_running, {name})",
        "refresh": 2,
        "multi": True,
        "includeAll": True,
    }


def dashboard() -> dict[str, Any]:
    """Return the dashboard as Grafana imports it."""
    row = {
        "id": 1,
        "type": "row",
        "title": "Jobs on Spark",
        "collapsed": False,
        "gridPos": {"x": 0, "y": 0, "w": ACROSS, "h": 1},
        "panels": [],
    }
    return {
        "uid": "dlog-pipelines",
        "title": "dlog: jobs on Spark",
        "tags": ["dlog"],
        "schemaVersion": 39,
        "time": {"from": "now-6h", "to": "now"},
        "refresh": "30s",
        "templating": {
            "list": [
                {"name": "datasource", "type": "datasource", "query": "prometheus"},
                _variable("pipeline"),
                _variable("job_name"),
            ]
        },
        "panels": [row, *(_panel(index, *each) for index, each in enumerate(PANELS))],
    }


if __name__ == "__main__":
    json.dump(dashboard(), sys.stdout, indent=1)
    sys.stdout.write("\n")
