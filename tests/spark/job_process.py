"""Programs with a session of Spark of their own, whose workers have nothing of dlog."""

import json
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.spark.log import Log
from tests.spark.reading import Topics

ROOT = Path(__file__).resolve().parents[2]
# The driver of most jobs has dlog by its own means, which its workers do not inherit.
PROGRAM = f"import sys; sys.path.insert(0, {str(ROOT)!r}); import runpy; "
PROGRAM += "runpy.run_module('tests.spark.shipping_job', run_name='__main__')"
PATIENCE_S = 500


class Job:
    """A program with a session of its own. Owner: one test."""

    def __init__(self, topics: Topics, folder: Path, name: str) -> None:
        self.topics = topics
        self.folder = folder
        self.names = [topics.create(f"{name}-in", 2), topics.create(f"{name}-out", 2)]

    def run(
        self, command: list[str], python: str, master: str, codec: str = "zstd", **more: Any
    ) -> "subprocess.CompletedProcess[str]":
        """Run the job to its end, by workers with this interpreter."""
        conf = {
            "spark.master": master,
            "spark.ui.enabled": "false",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.driver.memory": "1g",
            "spark.sql.shuffle.partitions": "2",
            "spark.sql.warehouse.dir": str(self.folder / "warehouse"),
            **more.pop("conf", {}),
        }
        settings = {"conf": conf, "bootstrap": self.topics.bootstrap, "topics": self.names}
        return subprocess.run(
            [*command, json.dumps({**settings, "codec": codec, **more})],
            cwd=self.folder,
            env=self.environment(python),
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )

    def environment(self, python: str) -> dict[str, str]:
        """Return the environment without what would help workers to find dlog."""
        kept = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        return kept | {
            "PYSPARK_PYTHON": python,
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_WORKER_DIR": str(self.folder / "work"),
            "SPARK_HOME": str(self.home()),
        }

    def home(self) -> Path:
        """Return a Spark in the job's own folder: what local-cluster leaves there goes with it."""
        home = self.folder / "spark"
        if not home.exists():
            home.mkdir()
            for each in Path(os.environ["SPARK_HOME"]).iterdir():
                (home / each.name).symlink_to(each)
        return home

    def check(self, done: "subprocess.CompletedProcess[str]") -> dict[str, Any]:
        """Return what the job told, all of whose records must be there."""
        assert done.returncode == 0, done.stderr[-6000:]
        told: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        for name in self.names:
            logs = self.topics.read_all(name, 2)
            found = sorted((int(record.key or b""), record.value) for log in logs for record in log)
            assert found == [(number, b"%d" % number) for number in range(4000)]
        return told


@dataclass(frozen=True)
class ClusterRun:
    """What came of the job on a cluster: all its parts share one start. `log` is what was read."""

    job: Job
    told: dict[str, Any]
    log: Log
