"""Programs and libraries that the client suite needs beside Python packages, fetched once.

Everything lands in `.cache/` of the checkout; MissingError says what only root can install.
"""

import fcntl
import hashlib
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CACHE = ROOT / ".cache"
JAVA_SOURCE = Path(__file__).resolve().parent / "java"
LIBRDKAFKA_OLD = "1.7.0"


class MissingError(Exception):
    """Something that only the system's administrator can install; the message says how."""


@contextmanager
def _only_one(name: str) -> Iterator[None]:
    """Keep two test workers from building the same thing at once."""
    CACHE.mkdir(exist_ok=True)
    with (CACHE / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def program(name: str, package: str) -> str:
    """Return the path of `name` or raise MissingError."""
    path = shutil.which(name)
    if path is None:
        raise MissingError(f"{name} is missing; as root: apt-get install {package}")
    return path


def java_command(version: str, bootstrap: str) -> list[str]:
    """Build the Java client against kafka-clients `version` if need be; return how to run it."""
    java = program("java", "openjdk-17-jdk-headless")
    sources = sorted(p for p in JAVA_SOURCE.rglob("*") if p.suffix in {".java", ".xml"})
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in sources)).hexdigest()[:12]
    built = CACHE / "java-client" / f"{version}-{digest}"
    with _only_one(f"java-client-{version}"):
        if not built.exists():
            _build_java(version, built)
    # A small heap and the serial collector: eight of these may run beside each other.
    options = ["-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
    return [java, *options, "-cp", f"{built}/*", "dlog.clients.Main", bootstrap]


def _build_java(version: str, built: Path) -> None:
    maven = program("mvn", "maven")
    work = built.with_name(built.name + ".work")
    shutil.rmtree(work, ignore_errors=True)
    shutil.copytree(JAVA_SOURCE, work, ignore=shutil.ignore_patterns("target"))
    command = [maven, "-q", "-B", f"-Dkafka.version={version}", "package"]
    done = subprocess.run(command, cwd=work, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, f"mvn failed:\n{done.stdout[-4000:]}{done.stderr[-2000:]}"
    libs = work / "target" / "libs"
    shutil.copy(work / "target" / "client.jar", libs)
    libs.rename(built)
    shutil.rmtree(work)


def old_librdkafka() -> Path:
    """Return the folder of librdkafka.so.1 of 1.7.0, taken from a wheel of confluent-kafka."""
    folder = CACHE / f"librdkafka-{LIBRDKAFKA_OLD}"
    with _only_one("librdkafka"):
        if not folder.exists():
            _fetch_librdkafka(folder)
    return folder


def _fetch_librdkafka(folder: Path) -> None:
    work = folder.with_name(folder.name + ".work")
    shutil.rmtree(work, ignore_errors=True)
    # The wheel is for another Python; only the C library inside it is used.
    wheel_for = ["--python-version", "3.9", "--platform", "manylinux2010_x86_64"]
    pip = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--only-binary", ":all:"]
    wanted = f"confluent-kafka=={LIBRDKAFKA_OLD}"
    subprocess.run([*pip, *wheel_for, "-d", str(work), wanted], check=True, timeout=300)
    (wheel,) = work.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        (member,) = [n for n in archive.namelist() if "librdkafka" in n and ".so" in n]
        (work / "librdkafka.so.1").write_bytes(archive.read(member))
    wheel.unlink()
    work.rename(folder)
