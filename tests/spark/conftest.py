"""One Spark session and one node for all tests here: both take seconds to start.

All tests of this folder run in one worker (`tests/conftest.py`). Each makes topics of its own.
"""

import itertools
import os
import random
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from dlog.client.blocking import Admin
from dlog.spark.reading.stream_reader import DlogStreamReader
from dlog.spark.reading.task import close_idle
from dlog.spark.registration import register
from tests.daemon.process import DaemonProcess, running_daemon
from tests.spark.bare import bare_python
from tests.spark.executor_kills import RECORDS, SETTINGS
from tests.spark.home import make_home
from tests.spark.job_process import PROGRAM, ClusterRun, Job
from tests.spark.log import Log
from tests.spark.reading import Topics

ROOT = Path(__file__).resolve().parents[2]
_numbers = itertools.count(1)


def environment_of_workers() -> dict[str, str]:
    """Return what Python workers need to run this checkout by this interpreter."""
    python_path = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYTHONPATH": os.pathsep.join(dict.fromkeys(python_path)),
    }


@pytest.fixture(scope="session", autouse=True)
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Give the home of every Spark here."""
    with pytest.MonkeyPatch.context() as patch:
        path = make_home(tmp_path_factory.mktemp("home") / "spark")
        patch.setenv("SPARK_HOME", str(path))
        yield path


@pytest.fixture(scope="session")
def spark(home: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """Give the one session: two cores, tasks tried four times."""
    os.environ.update(environment_of_workers())
    folder = tmp_path_factory.mktemp("spark")
    session = (
        SparkSession.builder.master("local[2,4]")
        .appName("dlog-tests")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.memory", "1g")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.warehouse.dir", str(folder / "warehouse"))
        .config("spark.local.dir", str(folder / "local"))
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("ERROR")
    register(session)
    yield session
    session.stop()


@pytest.fixture(autouse=True)
def no_readers_left() -> Iterator[None]:
    """End what tasks that ran in this process keep for the next one: tests of threads follow."""
    yield
    close_idle()
    assert "dlog-spark-reader" not in [each.name for each in threading.enumerate()]


@pytest.fixture(scope="session")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaemonProcess]:
    """Give one node that runs during all tests."""
    with running_daemon(tmp_path_factory.mktemp("node")) as process:
        yield process


@pytest.fixture(scope="session")
def bootstrap(node: DaemonProcess) -> str:
    """Give where the node listens."""
    return str(node.status()["listeners"][0])


@pytest.fixture(scope="session")
def admin(bootstrap: str) -> Iterator[Admin]:
    """Give a client that administers the node."""
    with Admin(bootstrap) as client:
        yield client


@pytest.fixture(scope="session")
def bare(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Give a Python that has pyarrow and numpy alone; pyspark comes from Spark itself."""
    return bare_python(tmp_path_factory.mktemp("bare"), "pyarrow", "numpy")


@pytest.fixture(scope="session")
def local_cluster(
    bootstrap: str, admin: Admin, bare: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ClusterRun]:
    """Give what a job told that ran on a cluster of two executors, which takes long to start."""
    folder = tmp_path_factory.mktemp("local-cluster")
    log = Log(bootstrap, admin, "local-cluster-killed")
    log.create(2)
    rng = random.Random(7)
    for partition, _ in itertools.product(range(2), range(10)):
        log.write(partition, [rng.randbytes(1000) for _ in range(RECORDS // 10)])
    with Topics(bootstrap) as topics:
        job = Job(topics, folder, "local-cluster")
        done = job.run(
            [sys.executable, "-c", PROGRAM],
            bare,
            "local-cluster[2,1,1024]",
            folder=str(folder / "archive"),
            killed=log.topic,
            conf=SETTINGS,
        )
        yield ClusterRun(job, job.check(done), log)


@pytest.fixture
def log(bootstrap: str, admin: Admin) -> Log:
    """Give a topic of two partitions that nobody else uses, made when it is first written to."""
    return Log(bootstrap, admin, f"topic-{next(_numbers)}")


@pytest.fixture
def readers() -> Iterator[list[DlogStreamReader]]:
    """Collect readers, and close them in the end."""
    made: list[DlogStreamReader] = []
    yield made
    for each in made:
        each.stop()
