"""Sources of the foreign suites, fetched from their package registries into the cache."""

import json
import shutil
import subprocess
import sys
import tarfile
import tempfile
from importlib.metadata import version
from pathlib import Path

from bench.peers.server import CACHE, StartError

FOLDER = CACHE / "suites"
FRANZ_GO = "v1.22.3"
# What kafka-python's fixtures need to talk to a server that runs already; its sdist lacks the file.
SERVICE = '''"""Stands in for the file that the source distribution lacks."""


class ExternalService:
    """A server that somebody else has started."""

    def __init__(self, host: str, port: int) -> None:
        self.host, self.port = host, port

    def open(self) -> None:
        """Do nothing: it runs."""

    def close(self) -> None:
        """Do nothing: somebody else ends it."""


class SpawnedService:
    """Servers are never started from here."""
'''


def kafka_python() -> tuple[Path, str]:
    """Return the folder of kafka-python's source, of the installed version, and the version."""
    wanted = version("kafka-python")
    folder = FOLDER / f"kafka_python-{wanted}"
    if not (folder / "test" / "service.py").exists():
        FOLDER.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(folder, ignore_errors=True)
        with tempfile.TemporaryDirectory(dir=FOLDER) as scratch:
            command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
            options = ["--no-binary", ":all:", "--dest", scratch, f"kafka-python=={wanted}"]
            run([*command, *options], Path(scratch))
            (archive,) = Path(scratch).glob("*.tar.gz")
            with tarfile.open(archive) as packed:
                packed.extractall(scratch, filter="data")
            (source,) = [each for each in Path(scratch).iterdir() if each.is_dir()]
            (source / "test" / "__init__.py").touch()
            (source / "test" / "service.py").write_text(SERVICE, encoding="utf-8")
            source.rename(folder)
    return folder, wanted


def franz_go() -> tuple[Path, str]:
    """Return the folder of franz-go's package `kgo` with its `kgo.test`, and the version."""
    folder = FOLDER / f"franz-go-{FRANZ_GO}"
    if not folder.exists():
        need("go", "; it has to be as new as franz-go's go.mod says")
        FOLDER.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=FOLDER) as scratch:
            module = f"github.com/twmb/franz-go@{FRANZ_GO}"
            told = run(["go", "mod", "download", "-json", module], Path(scratch))
            source = Path(scratch, "source")
            # A copy: the module cache may not be written to.
            shutil.copytree(json.loads(told)["Dir"], source, copy_function=shutil.copyfile)
            for each in (source, *source.rglob("*")):
                each.chmod(0o755 if each.is_dir() else 0o644)
            run(["go", "test", "-c", "-o", "pkg/kgo/kgo.test", "./pkg/kgo"], source)
            source.rename(folder)
    return folder / "pkg" / "kgo", FRANZ_GO


def need(program: str, remark: str = "") -> None:
    """Raise StartError when a program is not installed."""
    if shutil.which(program) is None:
        raise StartError(f"{program} is missing{remark}")


def run(command: list[str], folder: Path) -> str:
    """Run to the end and return what was said; raise StartError when it failed."""
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=900)
    if done.returncode:
        raise StartError(f"{' '.join(command[:4])} failed: {done.stderr[-1000:]}")
    return done.stdout
