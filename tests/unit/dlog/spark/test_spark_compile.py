"""Compiled modules in Spark's archives: Python takes them, and everything can be undone."""

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from dlog.spark import compile_pyspark

COUNTING = """
import sys
compiled = []
sys.addaudithook(lambda event, what: compiled.append(what[1]) if event == "compile" else None)
import pkg.module
own = {str(each) for each in compiled if "pkg" in str(each)}
print(pkg.module.VALUE, len(own), pkg.module.function.__code__.co_filename)
"""
WAITING = """
import pkg
print("imported", flush=True)
sys.stdin.readline()
import pkg.module
print(pkg.module.VALUE)
"""


def make_archive(path: Path, value: int = 1) -> bytes:
    files = {
        "pkg/__init__.py": "A = 1\n",
        "pkg/module.py": f"VALUE = {value}\ndef function(): pass\n",
        "pkg/template.py": "this is {no} module\n",
        "pkg/tests/test_module.py": "A = 1\n",
        "pkg/data.json": "{}",
    }
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in files.items():  # long ago, or the date of the test would be right
            archive.writestr(zipfile.ZipInfo(name, (2020, 1, 1, 0, 0, 0)), text)
    return path.read_bytes()


def run(path: Path) -> list[str]:
    """Import from the archive in a Python of its own; return what it says."""
    command = [sys.executable, "-S", "-c", COUNTING]
    answer = subprocess.run(
        command, env={"PYTHONPATH": str(path)}, capture_output=True, text=True, check=True
    )
    return answer.stdout.split()


def test_nothing_is_compiled_at_the_start_any_more(tmp_path: Path) -> None:
    path = tmp_path / "pyspark.zip"
    make_archive(path)
    assert run(path) == ["1", "2", f"{path}/pkg/module.py"]
    assert compile_pyspark.main([str(path)]) == 0
    assert run(path) == ["1", "0", f"{path}/pkg/module.py"]
    with zipfile.ZipFile(path) as archive:
        names = archive.namelist()
        assert archive.testzip() is None
    assert names[:5] == zipfile.ZipFile(f"{path}.orig").namelist()
    assert names[5:] == ["pkg/__init__.pyc", "pkg/module.pyc"]
    assert [each.name for each in tmp_path.iterdir() if "zip" not in each.name] == []


def test_it_can_be_repeated_and_undone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "pyspark.zip"
    original = make_archive(path)
    path.chmod(0o644)
    for _ in range(2):
        assert compile_pyspark.compile_archive(path) == 2
    assert path.read_bytes() != original
    assert path.stat().st_mode & 0o777 == 0o644
    assert compile_pyspark.main(["--undo", str(path)]) == 0
    assert path.read_bytes() == original
    assert [each.name for each in tmp_path.iterdir()] == ["pyspark.zip"]
    assert compile_pyspark.main(["--undo", str(path)]) == 0
    assert capsys.readouterr().out.splitlines() == [f"{path}: restored", f"{path}: nothing to undo"]


def test_a_newer_spark_is_not_replaced_by_what_was_kept_of_the_old_one(tmp_path: Path) -> None:
    path = tmp_path / "pyspark.zip"
    make_archive(path)
    compile_pyspark.compile_archive(path)
    newer = make_archive(path, value=2)
    assert compile_pyspark.undo(path)
    assert path.read_bytes() == newer
    make_archive(path)
    compile_pyspark.compile_archive(path)
    make_archive(path, value=2)
    compile_pyspark.compile_archive(path)
    assert run(path)[:2] == ["2", "0"]
    compile_pyspark.undo(path)
    assert path.read_bytes() == newer


def test_who_reads_from_the_archive_meanwhile_reads_on(tmp_path: Path) -> None:
    path = tmp_path / "pyspark.zip"
    make_archive(path)
    command = [sys.executable, "-c", f"import sys{WAITING}"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, env={"PYTHONPATH": str(path)}, **pipes) as reader:  # type: ignore[call-overload]
        assert reader.stdout.readline() == "imported\n"
        compile_pyspark.compile_archive(path)
        said, _ = reader.communicate("go on\n", timeout=30)
    assert said == "1\n"


def test_another_version_of_python_passes_them_over(tmp_path: Path) -> None:
    path = tmp_path / "pyspark.zip"
    make_archive(path)
    compile_pyspark.compile_archive(path)
    with zipfile.ZipFile(path) as archive:
        entries = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in entries.items():
            archive.writestr(name, b"else" + data[4:] if name.endswith(".pyc") else data)
    assert run(path)[:2] == ["1", "2"]
    compile_pyspark.compile_archive(path)
    assert run(path)[:2] == ["1", "0"]


def test_what_cannot_be_done_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "notes.zip"
    path.write_text("no archive")
    assert compile_pyspark.main([str(path)]) == 1
    assert "notes.zip: File is not a zip file: nothing was changed" in capsys.readouterr().err
    assert compile_pyspark.main([str(tmp_path / "none.zip")]) == 1
    assert "No such file" in capsys.readouterr().err
    assert [each.name for each in tmp_path.iterdir()] == ["notes.zip"]
    monkeypatch.setenv("SPARK_HOME", str(tmp_path))
    assert compile_pyspark.main([]) == 2
    assert "set SPARK_HOME" in capsys.readouterr().err


def test_the_archives_of_this_python_are_found() -> None:
    names = [path.name for path in compile_pyspark.archives_of_spark()]
    assert "pyspark.zip" in names
    assert any(name.startswith("py4j") for name in names)
