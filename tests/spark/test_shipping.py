"""Sessions whose executors have nothing of dlog: it is brought to them, streaming planner included.

Each is a program of its own, for its session differs from that of the other tests. What takes long
and shows little more runs with DLOG_SPARK_LONG=1.
"""

import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.spark.archives import rows_of_archive
from tests.spark.bare import bare_python
from tests.spark.job_process import PROGRAM, ROOT, ClusterRun, Job
from tests.spark.long_form import long_form
from tests.spark.reading import Topics

JOB = ROOT / "tests" / "spark" / "shipping_job.py"
SPARK_SUBMIT = Path(sys.executable).with_name("spark-submit")


@pytest.fixture
def topics(bootstrap: str) -> Iterator[Topics]:
    with Topics(bootstrap) as made:
        yield made


@pytest.fixture
def job(topics: Topics, tmp_path: Path, request: pytest.FixtureRequest) -> Job:
    return Job(topics, tmp_path, re.sub(r"\W", "-", request.node.name)[:80])


@long_form
@pytest.mark.timeout(600)
def test_local_cluster_with_nothing_on_executors(local_cluster: ClusterRun, bare: str) -> None:
    job, told = local_cluster.job, local_cluster.told
    # The pipelines work there, too.
    archived = [(row[1:3], row[6]) for row in rows_of_archive(Path(told["folder"]))]
    assert told["archived"] == len(dict(archived)) == len(archived) == 4000
    replayed = job.topics.read_all(f"{job.names[0]}-replayed", 2)
    assert told["replayed"] == 4000 and replayed == job.topics.read_all(job.names[0], 2)
    assert {facts["python"] for facts in told["executors"]} == {bare}
    # The compiled parts went with it, for executors are of this platform.
    assert all(facts["without"] == [] for facts in told["executors"])


@long_form
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
    without = [facts["without"] for facts in told["executors"]]
    assert without and all(
        each == ["dlog.batch._speedups", "crc32c", "cramjam"] for each in without
    )
    assert (
        "Running without compiled parts missing=dlog.batch._speedups,crc32c,cramjam" in done.stderr
    )


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
    spark_class = str(job.home() / "bin" / "spark-class")
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
