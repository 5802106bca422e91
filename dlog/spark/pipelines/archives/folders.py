"""Folders for results of pipelines: on this host's file system, or on Hadoop's.

A pipeline publishes by one move of a folder to a name that nobody has yet. Local file systems and
HDFS do that atomically; object stores cannot (`has_atomic_moves`), there the manifest comes last.
Paths are relative to the root, with slashes.
"""

import os
import re
import shutil
from pathlib import Path
from typing import Any, Protocol

from py4j.protocol import Py4JJavaError

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):")
OBJECT_STORES = frozenset({"s3", "s3a", "s3n", "gs", "oss", "cos", "cosn", "obs", "wasb", "wasbs"})


class Folder(Protocol):
    """A root, and what is below it."""

    uri: str
    """As Spark takes it."""
    has_atomic_moves: bool

    def names(self, path: str = "") -> list[str]:
        """Return the names in a folder, sorted; none when it is not there."""

    def sizes(self, path: str) -> dict[str, int]:
        """Return the bytes of all files below a folder, by their paths in it."""

    def read(self, path: str) -> bytes | None:
        """Return a file's bytes; None when it is not there."""

    def write_new(self, path: str, data: bytes) -> bool:
        """Write a file, durably, whole or not at all; False when there is one of this name."""

    def sync(self, path: str) -> None:
        """Bring all files below a folder to stable storage."""

    def move(self, path: str, target: str) -> bool:
        """Rename a folder; False when there is one of this name already."""

    def delete(self, path: str) -> None:
        """Delete a folder with all that is in it, or a file; fine when it is not there."""


def open_folder(uri: str, spark: Any = None) -> Folder:
    """Return the folder of a path or URI; all but local ones need a classic Spark session."""
    if _scheme(uri) in ("", "file"):
        return LocalFolder(Path(_local_path(uri)))
    if spark is None or not hasattr(spark, "_jvm"):
        raise ValueError(f"{uri}: only local folders can be used without a classic Spark session")
    return HadoopFolder(uri, spark)


def _scheme(uri: str) -> str:
    found = _SCHEME.match(uri)
    return found[1].lower() if found else ""


def _local_path(uri: str) -> str:
    """Return the path in a URI of scheme `file`, or the path itself: as it is, no part escaped."""
    path = uri.partition(":")[2] if _scheme(uri) else uri
    return "/" + path[2:].partition("/")[2] if path.startswith("//") else path


def join(folder: Folder, path: str) -> str:
    """Return the URI of a path below a folder."""
    return f"{folder.uri.rstrip('/')}/{path}" if path else folder.uri


def is_hidden(path: str) -> bool:
    """Whether readers pass over it: some part of its path begins with `_` or a dot."""
    return any(part.startswith(("_", ".")) for part in path.split("/"))


def _sync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _make_folder(path: Path) -> None:
    """Make a folder and those above it, durably: what is in it is lost with its name."""
    missing = [each for each in (path, *path.parents) if not each.exists()]
    path.mkdir(parents=True, exist_ok=True)
    for each in reversed(missing):
        _sync_directory(each.parent)


class LocalFolder:
    """A folder of this host, or one that all hosts have mounted at the same place."""

    has_atomic_moves = True

    def __init__(self, root: Path) -> None:
        # Hadoop takes `..` out of a path without a look at symbolic links.
        self._root = root.resolve() if ".." in root.parts else root.absolute()
        # Not as_uri(): in Hadoop's paths nothing is escaped.
        self.uri = f"file://{self._root}"

    def names(self, path: str = "") -> list[str]:
        """Return the names in a folder, sorted; none when it is not there."""
        try:
            return sorted(os.listdir(self._root / path))
        except FileNotFoundError:
            return []

    def sizes(self, path: str) -> dict[str, int]:
        """Return the bytes of all files below a folder, by their paths in it."""
        top = self._root / path
        if not top.is_dir():
            return {}
        return {
            each.relative_to(top).as_posix(): each.stat().st_size
            for each in sorted(top.rglob("*"))
            if each.is_file()
        }

    def read(self, path: str) -> bytes | None:
        """Return a file's bytes; None when it is not there."""
        try:
            return (self._root / path).read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            return None

    def write_new(self, path: str, data: bytes) -> bool:
        """Write a file, durably, whole or not at all; False when there is one of this name."""
        target = self._root / path
        _make_folder(target.parent)
        written = target.with_name(f".{target.name}.{os.getpid()}")
        try:
            with written.open("wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            os.link(written, target)  # unlike a rename it fails when the name is taken
        except FileExistsError:
            return False
        finally:
            written.unlink(missing_ok=True)
        _sync_directory(target.parent)
        return True

    def sync(self, path: str) -> None:
        """Bring all files below a folder to stable storage."""
        top = self._root / path
        for each in [top, *sorted(top.rglob("*"))]:
            if each.is_dir():
                _sync_directory(each)
                continue
            with each.open("rb") as file:
                os.fsync(file.fileno())

    def move(self, path: str, target: str) -> bool:
        """Rename a folder; False when there is one of this name already."""
        there = self._root / target
        there.parent.mkdir(parents=True, exist_ok=True)
        if there.exists():
            # A rename would replace an empty folder.
            return False
        try:
            os.rename(self._root / path, there)
        except (FileExistsError, OSError) as error:
            if there.exists():
                return False
            raise error
        _sync_directory(there.parent)
        return True

    def delete(self, path: str) -> None:
        """Delete a folder with all that is in it, or a file; fine when it is not there."""
        target = self._root / path
        if target.is_dir():
            shutil.rmtree(target, ignore_errors=True)
        else:
            target.unlink(missing_ok=True)


class HadoopFolder:
    """A folder of any file system that Spark knows, through the driver's JVM.

    Owner: the thread of the session.
    """

    def __init__(self, uri: str, spark: Any) -> None:
        self.uri = uri.rstrip("/")
        self.has_atomic_moves = _scheme(uri) not in OBJECT_STORES
        self._hadoop = spark._jvm.org.apache.hadoop.fs
        self._jvm = spark._jvm
        self._gateway = spark.sparkContext._gateway
        configuration = spark._jsc.hadoopConfiguration()
        root = self._hadoop.Path(self.uri)
        self._files = root.getFileSystem(configuration)
        self._context = self._hadoop.FileContext.getFileContext(root.toUri(), configuration)

    def _path(self, path: str) -> Any:
        return self._hadoop.Path(f"{self.uri}/{path}" if path else self.uri)

    def names(self, path: str = "") -> list[str]:
        """Return the names in a folder, sorted; none when it is not there."""
        target = self._path(path)
        if not self._files.exists(target):
            return []
        return sorted(each.getPath().getName() for each in self._files.listStatus(target))

    def sizes(self, path: str) -> dict[str, int]:
        """Return the bytes of all files below a folder, by their paths in it."""
        target = self._files.makeQualified(self._path(path))
        if not self._files.exists(target):
            return {}
        prefix = target.toString() + "/"
        files, found = self._files.listFiles(target, True), {}
        while files.hasNext():
            each = files.next()
            found[each.getPath().toString().removeprefix(prefix)] = int(each.getLen())
        return dict(sorted(found.items()))

    def read(self, path: str) -> bytes | None:
        """Return a file's bytes; None when it is not there."""
        target = self._path(path)
        if not self._files.exists(target):
            return None
        stream = self._files.open(target)
        try:
            return bytes(self._jvm.org.apache.commons.io.IOUtils.toByteArray(stream))
        finally:
            stream.close()

    def write_new(self, path: str, data: bytes) -> bool:
        """Write a file, whole or not at all; False when there is one of this name."""
        target = self._path(path)
        if self._files.exists(target):
            return False
        written = target
        if self.has_atomic_moves:
            written = self._hadoop.Path(target.getParent(), f".{target.getName()}.{os.getpid()}")
        stream = self._files.create(written, self.has_atomic_moves)
        try:
            stream.write(data)
            if self.has_atomic_moves:
                stream.hsync()
        finally:
            stream.close()
        return written is target or self._rename(written, target)

    def sync(self, path: str) -> None:
        """Do nothing: what a closed file promises is the file system's affair."""

    def move(self, path: str, target: str) -> bool:
        """Rename a folder; False when there is one of this name already."""
        there = self._path(target)
        self._files.mkdirs(there.getParent())
        return self._rename(self._path(path), there)

    def _rename(self, source: Any, target: Any) -> bool:
        if self._files.exists(target):
            return False
        options = self._gateway.new_array(self._hadoop.Options.Rename, 0)
        # Not FileSystem.rename, which moves a folder into one of the target's name.
        try:
            self._context.rename(source, target, options)
        except Py4JJavaError:
            if not self._files.exists(target):
                raise
            return False  # somebody else was first
        return True

    def delete(self, path: str) -> None:
        """Delete a folder with all that is in it, or a file; fine when it is not there."""
        self._files.delete(self._path(path), True)
