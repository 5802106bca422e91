"""Sessions whose executors have nothing of dlog: it is brought to them, streaming planner included.

Each is a program of its own, for its session differs from that of the other tests. What takes long
and shows little more runs with DLOG_SPARK_LONG=1.
"""

import json
import os
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyspark
import pytest

from tests.spark.archives import rows_of_archive
from tests.spark.bare import bare_python
from tests.spark.reading import Topics

ROOT = Path(__file__).resolve().parents[2]
JOB = ROOT / "tests" / "spark" / "shipping_job.py"
SPARK_SUBMIT = Path(sys.executable).with_name("spark-submit")
SPARK_HOME = Path(pyspark.__file__).parent
# The driver of most jobs has dlog by its own means, which its workers do not inherit.
PROGRAM = f"import sys; sys.path.insert(0, {str(ROOT)!r}); import runpy; "
PROGRAM += "runpy.run_module('tests.spark.shipping_job', run_name='__main__')"
PATIENCE_S = 240
long_form = pytest.mark.skipif("DLOG_SPARK_LONG" not in os.environ, reason="takes a minute")


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Give a Python that has pyarrow and numpy alone; pyspark comes from Spark itself."""
    return bare_python(tmp_path_factory.mktemp("bare"), "pyarrow", "numpy")


@pytest.fixture
def topics(bootstrap: str) -> Iterator[Topics]:
    with Topics(bootstrap) as made:
        yield made


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
            for each in SPARK_HOME.iterdir():
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


@pytest.fixture
def job(topics: Topics, tmp_path: Path, request: pytest.FixtureRequest) -> Job:
    return Job(topics, tmp_path, re.sub(r"\W", "-", request.node.name)[:80])


def test_local_cluster_with_nothing_on_executors(job: Job, bare: str) -> None:
    folder = str(job.folder / "archive")
    command = [sys.executable, "-c", PROGRAM]
    done = job.run(command, bare, "local-cluster[2,1,1024]", folder=folder)
    told = job.check(done)
    # The pipelines work there, too.
    archived = [(row[1:3], row[6]) for row in rows_of_archive(Path(folder))]
    assert told["archived"] == len(dict(archived)) == len(archived) == 4000
    replayed = job.topics.read_all(f"{job.names[0]}-replayed", 2)
    assert told["replayed"] == 4000 and replayed == job.topics.read_all(job.names[0], 2)
    # An executor that is killed: nothing is missing, and what its task had written came again.
    lost = job.topics.read_all(f"{job.names[0]}-lost", 2)
    found = Counter(int(record.value or b"-1") for log in lost for record in log)
    assert told["lost"] >= 1 and set(found) == set(range(4000))
    assert found.total() <= 4000 + told["lost"] * 500
    assert {facts["python"] for facts in told["executors"]} == {bare}
    # The compiled parts went with it, for executors are of this platform.
    assert all(facts["without"] == [] for facts in told["executors"])


def test_spark_submit_with_an_archive_of_another_platform(job: Job, bare: str) -> None:
    """Neither the driver nor the executors have anything of dlog, and no compiled part fits."""
    archive = job.folder / "dlog.zip"
    script = "import sys, dlog.spark.bundle as made; made.platform_tag = lambda: 'pdp11';"
    script += "sys.exit(made.main(sys.argv[1:]))"
    subprocess.run([sys.executable, "-c", script, str(archive)], check=True, cwd=ROOT)
    command = [str(SPARK_SUBMIT), "--master", "local[2]", "--py-files", str(archive), str(JOB)]
    done = job.run(command, bare, "local[2]", codec="lz4")
    told = job.check(done)
    assert told["dlog"].endswith(f"{archive.name}/dlog/__init__.py")
    for facts in told["executors"]:
        assert facts["without"] == ["dlog.batch._speedups", "crc32c", "cramjam"]
    assert "Runs without compiled parts missing=dlog.batch._speedups,crc32c,cramjam" in done.stderr


def test_executors_without_pyarrow(job: Job, tmp_path: Path) -> None:
    python = bare_python(tmp_path / "naked")
    done = job.run([sys.executable, "-c", PROGRAM], python, "local[2]")
    assert done.returncode == 1
    assert re.search(
        rf"\[DLOG_PACKAGE_MISSING\] Python on \S+ \({re.escape(python)}\) has no pyarrow, numpy\. "
        r"Install it there \(pip install pyarrow numpy\)",
        done.stderr,
    )


@long_form
def test_executors_without_python(job: Job) -> None:
    done = job.run([sys.executable, "-c", PROGRAM], "/no/python/here", "local[2]")
    assert done.returncode == 1
    assert "[DLOG_EXECUTOR_PYTHON] No Python task runs on the executors (/no/python/here)" in (
        done.stderr
    )
    assert "PYSPARK_PYTHON (or spark.pyspark.python) names an interpreter" in done.stderr


@pytest.fixture
def standalone(tmp_path: Path, bare: str, job: Job) -> Iterator[str]:
    """Give the address of a standalone cluster: a master and one worker with two cores."""
    spark_class = str(SPARK_HOME / "bin" / "spark-class")
    package = "org.apache.spark.deploy"
    log = tmp_path / "standalone.log"
    started: list[subprocess.Popen[bytes]] = []

    def start(*arguments: str) -> None:
        with log.open("ab") as output:
            started.append(
                subprocess.Popen(
                    [spark_class, *arguments],
                    stdout=output,
                    stderr=output,
                    env=job.environment(bare),
                    cwd=tmp_path,
                )
            )

    def wait_for(pattern: str) -> str:
        deadline = time.monotonic() + 60
        while (found := re.search(pattern, log.read_text())) is None:
            assert time.monotonic() < deadline, log.read_text()[-3000:]
            time.sleep(0.1)  # another process: there is no event to wait for
        return found[1]

    ports = ["--host", "127.0.0.1", "--port", "0", "--webui-port", "0"]
    try:
        start(f"{package}.master.Master", *ports)
        address = wait_for(r"Starting Spark master at (spark://\S+)")
        start(f"{package}.worker.Worker", *ports, "--cores", "2", "--memory", "2g", address)
        wait_for(r"(Successfully registered with master)")
        yield address
    finally:
        for process in started:
            process.terminate()
            process.wait()


@long_form
def test_a_standalone_cluster(job: Job, bare: str, standalone: str) -> None:
    done = job.run([sys.executable, "-c", PROGRAM], bare, standalone)
    told = job.check(done)
    assert {facts["python"] for facts in told["executors"]} == {bare}
    assert all(facts["without"] == [] for facts in told["executors"])
