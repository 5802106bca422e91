"""A home of Spark for tests: no compiling that pays off after minutes only.

Most of the processor time of a short job is Java compiling Spark a second time, and each Python of
Spark compiling PySpark (`dlog.spark.compile_pyspark`).
"""

from pathlib import Path

import pyspark

from dlog.spark.compile_pyspark import compile_archive

INSTALLED = Path(pyspark.__file__).parent
JVM = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


def make_home(folder: Path) -> Path:
    """Make a home that shares everything with the installed one but its archives and defaults."""
    folder.mkdir()
    for each in INSTALLED.iterdir():
        if each.name not in ("conf", "python"):
            (folder / each.name).symlink_to(each)
    archives = folder / "python" / "lib"
    archives.mkdir(parents=True)
    for each in (INSTALLED / "python").iterdir():
        if each.name != "lib":
            (folder / "python" / each.name).symlink_to(each)
    for each in (INSTALLED / "python" / "lib").iterdir():
        (archives / each.name).write_bytes(each.read_bytes())
        if each.suffix == ".zip":
            compile_archive(archives / each.name)
    (folder / "conf").mkdir()
    (folder / "conf" / "spark-defaults.conf").write_text(
        f"spark.driver.extraJavaOptions {JVM}\nspark.executor.extraJavaOptions {JVM}\n"
    )
    return folder
