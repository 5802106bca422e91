"""Apache Spark with its own Kafka source: pyspark and jars of one version, in the cache.

The newest version of which all jars are to be had, installed beside the bench's own environment:
both sources run in it. Java 17 has to be there.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from bench.peers.server import CACHE, HOST, ROOT, StartError

VERSION = "4.2.0"
PY4J = "0.10.9.9"
HOME = CACHE / "spark" / VERSION
SITE = HOME / "python"
JARS = HOME / "jars"
POM = Path(__file__).with_name("spark-pom.xml")
INSTALL_TIMEOUT_S = 900


def _run(command: Sequence[str], folder: str | Path) -> None:
    done = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, check=False, timeout=INSTALL_TIMEOUT_S
    )
    if done.returncode:
        raise StartError(f"{' '.join(command[:4])} failed: {(done.stdout + done.stderr)[-2000:]}")


def install() -> None:
    """Fetch pyspark and the jars into the cache, once; raise StartError when that cannot be."""
    for program, package in (("java", "openjdk-17-jdk-headless"), ("mvn", "maven")):
        if shutil.which(program) is None:
            raise StartError(f"{program} is missing; as root: apt-get install {package}")
    if not (SITE / ".complete").exists():
        pip = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", str(SITE)]
        _run([*pip, f"pyspark=={VERSION}", f"py4j=={PY4J}"], ROOT)
        (SITE / ".complete").touch()
    if not (JARS / ".complete").exists():
        # A copy of the pom: Maven may write beside it.
        with tempfile.TemporaryDirectory() as folder:
            shutil.copy(POM, Path(folder, "pom.xml"))
            goal = ["dependency:copy-dependencies", f"-DoutputDirectory={JARS}"]
            _run(["mvn", "-q", "-B", f"-Dspark.version={VERSION}", *goal], folder)
        (JARS / ".complete").touch()


def compiled_home() -> Path:
    """Return a home of the same Spark whose archives have compiled modules, as our guide advises.

    Everything but the archives is shared with the one that was installed.
    """
    home, installed = HOME / "compiled", SITE / "pyspark"
    if not (home / ".complete").exists():
        shutil.rmtree(home, ignore_errors=True)
        shutil.copytree(installed / "python", home / "python")
        for folder in installed.iterdir():
            if folder.is_dir() and folder.name != "python":
                (home / folder.name).symlink_to(folder)
        archives = [str(path) for path in (home / "python" / "lib").glob("*.zip")]
        _run([sys.executable, "-m", "dlog.spark.compile_pyspark", *archives], ROOT)
        (home / ".complete").touch()
    return home


def environment(home: Path | None = None) -> dict[str, str]:
    """Return the variables under which Spark of this version runs, in all its processes."""
    kept = {name: text for name, text in os.environ.items() if not name.startswith("SPARK_")}
    return {
        **kept,
        "PYTHONPATH": f"{SITE}{os.pathsep}{ROOT}",
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": HOST,
        **({} if home is None else {"SPARK_HOME": str(home)}),
    }


def jars() -> str:
    """Return the jars as `spark.jars` takes them."""
    return ",".join(str(path) for path in sorted(JARS.glob("*.jar")))
