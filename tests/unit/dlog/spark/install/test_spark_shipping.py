"""The archive that is shipped, what unpacks from it, what is said where something is missing."""

import importlib.util
import os
import subprocess
import sys
import zipfile
from concurrent.futures import ThreadPoolExecutor
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import SimpleNamespace

import pytest
from pyspark.core.files import SparkFiles
from pyspark.errors import PySparkException

from dlog.spark import bundle, registration
from dlog.spark.errors import SparkSourceError
from dlog.spark.incomplete import IncompleteDataSource
from dlog.spark.install import missing_packages, shipped, shipping
from dlog.spark.source import DlogDataSource
from tests.tidy import sources

ROOT = sources.ROOT


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("archive") / "dlog.zip"
    assert bundle.main([str(path)]) == 0
    return path


def test_an_archive_is_whole_and_always_the_same(archive: Path) -> None:
    content = archive.read_bytes()
    again = bundle.make_bundle()
    assert again == content
    assert bundle.bundle_name(content) == bundle.bundle_name(again) != bundle.bundle_name(b"")
    names = zipfile.ZipFile(archive).namelist()
    assert len(set(names)) == len(names)
    assert {"pyspark_dlog.py", "dlog/spark/source.py", "kio/schema/errors.py"} < set(names)
    assert not [name for name in names if name.startswith(("dlogd/", "dlogctl/", "kio/serial/"))]
    compiled = {name for name in names if name.startswith("dlog_compiled/")}
    root = f"dlog_compiled/{shipped.platform_tag()}/"
    assert all(name.startswith(root) for name in compiled)
    assert f"{root}packages/crc32c/__init__.py" in compiled
    assert not [name for name in set(names) - compiled if not name.endswith(".py")]


def test_the_command_says_how_it_is_used(capsys: pytest.CaptureFixture[str]) -> None:
    assert bundle.main([]) == 2
    assert "FILE.zip" in capsys.readouterr().err


# What runs in each process: it finds nothing but the archive and what is installed for Spark.
SCRIPT = """
import importlib, sys
for missing in {hidden}:
    sys.modules[missing] = None
import dlog.spark
from dlog.spark.install.shipped import missing_parts
import dlog.spark.source, dlog.client.blocking, dlog.client.producing.bulk_arrow
from dlog.wire.apis import VERSIONS
from dlog.wire.messages import request_type
for key in VERSIONS:
    if key.name not in ("PRODUCE", "FETCH"):
        try:
            request_type(key, VERSIONS[key][1])
        except ImportError as error:
            print("NO", key, error)
from dlog.batch.records import Record, decode, encode
from dlog.compression import Codec
for codec in Codec:
    batch = encode([Record(b"k", b"v" * 50_000, (), 1)], codec=codec)
    assert decode(bytes(batch))[0].value == b"v" * 50_000
print(dlog.__file__, missing_parts())
"""


def run_from(archive: Path, folder: Path, hidden: tuple[str, ...] = ()) -> tuple[str, str]:
    """Import everything from an archive in a process that has dlog from nowhere else."""
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT.format(hidden=hidden)],
        env={**kept, "PYTHONPATH": str(archive), "TMPDIR": str(folder)},
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip(), done.stderr


def test_everything_runs_from_the_archive(archive: Path, tmp_path: Path) -> None:
    out, err = run_from(archive, tmp_path)
    assert out == f"{archive}/dlog/__init__.py []"
    assert "without compiled parts" not in err
    # What a driver unpacked goes with it, and nothing lies beside the archive.
    assert not list(tmp_path.glob("dlog-*"))
    assert list(archive.parent.iterdir()) == [archive]


def test_everything_runs_without_compiled_parts(tmp_path: Path, archive: Path) -> None:
    plain = tmp_path / "plain.zip"
    with zipfile.ZipFile(archive) as full, zipfile.ZipFile(plain, "w") as written:
        for name in full.namelist():
            if not name.startswith("dlog_compiled/"):
                written.writestr(name, full.read(name))
    out, err = run_from(plain, tmp_path, hidden=("crc32c._crc32c", "crc32c", "cramjam"))
    missing = ["dlog.batch._speedups", "cramjam"]
    # The module of crc32c is imported past its package, where that is installed.
    assert out in (
        f"{plain}/dlog/__init__.py {parts}"
        for parts in (missing, ["dlog.batch._speedups", "crc32c", "cramjam"])
    )
    assert err.count("Running without compiled parts missing=dlog.batch._speedups,") == 1


@pytest.fixture
def at_worker(archive: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Give the archive where a worker of Spark finds it."""
    root = tmp_path / "files"
    root.mkdir()
    monkeypatch.setattr(SparkFiles, "_root_directory", str(root))
    path = root / "dlog-0123.zip"
    path.write_bytes(archive.read_bytes())
    return path


def test_many_workers_unpack_once(at_worker: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        folders = {*pool.map(lambda _: shipped._unpacked(at_worker), range(16))}
    (folder,) = folders
    assert folder == at_worker.with_name(f"dlog-0123-{shipped.platform_tag()}")
    assert sorted(at_worker.parent.iterdir()) == sorted([at_worker, folder])
    assert (folder / "packages" / "crc32c" / "__init__.py").is_file()


def test_what_cannot_be_unpacked_is_done_without(
    at_worker: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    spec = SimpleNamespace(loader=SimpleNamespace(archive=str(at_worker)))
    before = list(sys.path)

    def refuse(*_: object, **__: object) -> str:
        raise PermissionError("read-only")

    with monkeypatch.context() as patched:
        patched.setattr("tempfile.mkdtemp", refuse)
        patched.setattr(shipped, "missing_parts", lambda: ["crc32c"])
        shipped.use_compiled_parts(spec)  # type: ignore[arg-type]
    assert sys.path == before
    said = [record.getMessage() for record in caplog.records]
    assert "Could not unpack compiled parts" in said[0] and "read-only" in said[0]
    assert "Running without compiled parts missing=crc32c" in said[1]
    at_worker.write_bytes(b"not a zip")
    with monkeypatch.context() as patched:
        patched.setattr(shipped, "missing_parts", list)
        shipped.use_compiled_parts(spec)  # type: ignore[arg-type]
    assert "File is not a zip file" in caplog.records[-1].getMessage()


def test_nothing_is_unpacked_where_dlog_is_installed() -> None:
    assert shipped.archive_of(ModuleSpec("dlog", None)) is None
    before = list(sys.path)
    shipped.use_compiled_parts(None)
    shipped.use_compiled_parts(importlib.util.find_spec("dlog"))
    assert sys.path == before


def test_what_is_missing_here_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    assert missing_packages.missing_packages() == []
    monkeypatch.setattr(missing_packages, "PACKAGES", ("pyspark", "pyarrow_of_mars"))
    with pytest.raises(SparkSourceError) as caught:
        registration.register(object())
    text = str(caught.value)
    assert "[DLOG_PACKAGE_MISSING] this Python" in text and "has no pyarrow_of_mars" in text
    assert sys.executable in text and "PYSPARK_PYTHON" in text


def test_what_is_found_where_something_is_missing_has_the_name_of_the_source(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert IncompleteDataSource.name() == DlogDataSource.name()
    monkeypatch.setattr(missing_packages, "PACKAGES", ("pyarrow_of_mars",))
    with pytest.raises(SparkSourceError, match=r"\[DLOG_PACKAGE_MISSING\].*pyarrow_of_mars"):
        IncompleteDataSource({})


def test_a_server_that_takes_no_archive_is_told_with_what_to_do(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Session:
        """A client of Spark Connect, whose server refuses artifacts."""

        def addArtifacts(self, path: str, *, pyfile: bool) -> None:  # noqa: N802
            assert pyfile and path.endswith(".zip")
            raise PySparkException("no artifacts here")

    monkeypatch.setattr(shipping, "is_connect", lambda _: True)
    with pytest.raises(SparkSourceError) as caught:
        shipping.ship(Session())
    text = str(caught.value)
    assert text.startswith("[DLOG_SHIPPING_FAILED] The server refused the artifact: no artifacts")
    assert "Install dlog on the server" in text and "ship=False" in text


def test_whether_others_find_dlog(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(["", str(tmp_path), str(ROOT)]))
    assert shipping.is_found_by_others()
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr("site.getsitepackages", lambda: [str(tmp_path)])
    assert not shipping.is_found_by_others()


@pytest.mark.parametrize(
    ("master", "python", "same"),
    [
        ("local[2]", sys.executable, True),
        ("local", sys.executable, True),
        ("local-cluster[2,1,1024]", sys.executable, False),
        ("spark://host:7077", sys.executable, False),
        ("local[2]", "/usr/bin/other-python", False),
        ("local[2]", "no-such-program", False),
        ("local[2,4]", Path(sys.executable).name, True),
    ],
)
def test_whether_all_processes_are_like_this_one(
    master: str, python: str, same: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent))
    context = SimpleNamespace(master=master, pythonExec=python)
    assert shipping.same_python_everywhere(SimpleNamespace(sparkContext=context)) is same


class Context:
    """A context of a cluster that takes files."""

    master = "local-cluster[2,1,1024]"
    pythonExec = sys.executable  # noqa: N815

    def __init__(self) -> None:
        self._python_includes: list[str] = []
        self.added: list[str] = []

    def addPyFile(self, path: str) -> None:  # noqa: N802
        """Note a file."""
        self.added.append(path)
        self._python_includes.append(Path(path).name)


def test_the_archive_is_made_once_for_a_context(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shipping, "link_streaming_files", lambda: None)  # it asks the JVM
    made: list[bytes] = []

    def make_bundle() -> bytes:
        made.append(b"%d" % len(made))
        return made[-1]

    monkeypatch.setattr(shipping, "make_bundle", make_bundle)
    one, other = Context(), Context()
    for context in (one, one, other, other, one):
        shipping.ship(SimpleNamespace(sparkContext=context))
    assert made == [b"0", b"1"]
    for context, content in zip((one, other), made, strict=True):
        (path,) = context.added
        assert Path(path).read_bytes() == content


FOUND = """
import pyspark_dlog
from pyspark import cloudpickle
found = cloudpickle.loads(cloudpickle.dumps(getattr(pyspark_dlog, "DefaultSource", None)))
try:
    print(found and (found.name(), type(found({"subscribe": "t"})).__name__))
except Exception as error:
    print(found.name(), error)
"""


def test_threads_that_register_at_the_same_time_make_one_link(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pyspark.SparkFiles.getRootDirectory", lambda: str(tmp_path))
    # Each looks before the other one has made it.
    monkeypatch.setattr(shipping.os.path, "lexists", lambda _: False)
    for _ in range(2):
        shipping.link_streaming_files()
    assert (tmp_path / "streaming_job").readlink() == tmp_path


@pytest.mark.parametrize(
    ("missing", "found"),
    [
        ("", "('dlog', 'DlogDataSource')"),
        *(
            (name, f"dlog [DLOG_PACKAGE_MISSING] this Python ({sys.executable}) has no {name}.")
            for name in ("pyarrow", "numpy")
        ),
        # What none can do without.
        ("dlog.errors", "None"),
    ],
)
def test_what_spark_imports_never_raises(missing: str, found: str) -> None:
    """Else no data source in Python is found, whoever's it is; a job is told what is missing."""
    script = f"import sys\nif {missing!r}: sys.modules[{missing!r}] = None\n{FOUND}"
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith(found)


def test_what_spark_imports_is_light() -> None:
    """Spark imports the source in several processes for each query: only some need a client."""
    script = """
import sys
import pyspark_dlog
heavy = ("client.blocking", "client.cluster.cluster", "spark.reading.lookup", "batch")
heavy += ("spark.writing.sink_task", "spark.reading.task")
found = [name for name in heavy if f"dlog.{name}" in sys.modules]
assert hasattr(pyspark_dlog, "DefaultSource") and not found, found
"""
    subprocess.run([sys.executable, "-c", script], cwd=ROOT, check=True)


def test_spark_finds_the_source_wherever_it_runs() -> None:
    """Without `register`: Spark lists what is on the path, and imports what is a `pyspark_...`."""
    script = (
        "import pkgutil; assert 'pyspark_dlog' in [each.name for each in pkgutil.iter_modules()]"
    )
    subprocess.run([sys.executable, "-I", "-c", script], cwd="/", check=True)
