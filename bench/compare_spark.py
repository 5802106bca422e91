"""`python -m bench.compare_spark`: the same jobs through Spark's Kafka source and through ours.

Option by option, against one dlogd: rows, schemas, tasks, where batches of streams end, what is
written, and the kind of an error. Writes bench/results/spark-comparison.md. 1 when something
differs.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient

from bench.load.spark_cases import FIRST_MS, STEP_MS
from bench.load.spark_verdict import BOTH_REFUSE, DIFFERS, FAIL_ALIKE, SAME, TAKEN
from bench.peers import spark
from bench.peers.dlog import DlogServer
from bench.peers.server import ROOT
from dlog.batch.records import Record
from dlog.client.admin import NewTopic
from dlog.client.blocking import Admin, Producer

RESULT = ROOT / "bench" / "results" / "spark-comparison.md"
TIMEOUT_S = 900


def _records(partition: int, count: int) -> list[Record]:
    """Return records of every shape, one every 1,000 s."""
    made = []
    for number in range(count):
        key = None if number % 5 == 0 else b"k%d" % (number % 7)
        value = None if number % 11 == 3 else b"%d/%d " % (partition, number) * (number % 13)
        headers = (("h", b"%d" % number), ("h", None)) if number % 4 == 1 else ()
        made.append(Record(key, value, headers, FIRST_MS + number * STEP_MS))
    return made


def fill(bootstrap: str) -> None:
    """Make the topics that `bench.load.spark_cases` is about."""
    kept = {"retention.ms": "-1"}
    stamped = {**kept, "message.timestamp.type": "LogAppendTime"}
    any_time = {"message.timestamp.after.max.ms": str(2**63 - 1)}
    with Admin(bootstrap) as admin, Producer(bootstrap) as producer:
        admin.create_topics(
            [
                NewTopic(name="cmp-a", partitions=3, configs=kept),
                NewTopic(name="cmp-b", partitions=1, configs=kept),
                NewTopic(name="cmp-stamped", partitions=1, configs=stamped),
                NewTopic(name="cmp-trimmed", partitions=1, configs=kept),
                NewTopic(name="odd", partitions=1, configs={**kept, **any_time}),
                NewTopic(name="__transaction_state", partitions=1, configs=kept),
            ]
        )
        producer.send_many("odd", [Record(None, b"odd", (), 2**62)], partition=0)
        for partition, count in enumerate((10, 60, 200)):
            producer.send_many("cmp-a", _records(partition, count), partition=partition)
        for topic in ("cmp-b", "cmp-stamped", "cmp-trimmed", "__transaction_state"):
            for start in range(0, 100, 20):
                producer.send_many(topic, _records(0, 100)[start : start + 20], partition=0)
                producer.flush()


def _trim(bootstrap: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    for done in admin.delete_records([TopicPartition("cmp-trimmed", 0, 40)]).values():
        done.result(30)


def markdown(lines: Sequence[dict[str, object]]) -> str:
    """Return the table."""
    counts = Counter(str(line["verdict"]) for line in lines)
    meant = sum(line["verdict"] == DIFFERS and bool(line["intended"]) for line in lines)
    text = [
        "# The same jobs through Spark's Kafka source and through dlog's",
        "",
        f"Spark {spark.VERSION}, spark-sql-kafka-0-10 of the same version, one dlogd. "
        f"{len(lines)} cases:",
        "",
        f"- {SAME}: {counts[SAME]}. Schema, rows (all columns), which offsets each task reads, of "
        "batches the number of Spark's partitions, of streams (AvailableNow) the offsets at which "
        "each batch ends; of streams that run on, how many records each batch has and when it "
        "begins; of what was written, how it is compressed.",
        f"- {TAKEN}: {counts[TAKEN]}. Both take the options and read the same; what the options do "
        "does not show in that.",
        f"- {FAIL_ALIKE}: {counts[FAIL_ALIKE]}. Both fail in the same way, which is named.",
        f"- {BOTH_REFUSE}: {counts[BOTH_REFUSE]}. Both fail, but with words of which nobody can "
        "tell by rule whether they mean the same.",
        f"- meant to differ: {meant}. The reason stands beside them.",
        f"- not meant to differ: {counts[DIFFERS] - meant}.",
        "",
        f"`python -m bench.compare_spark`, {datetime.now(UTC):%Y-%m-%d}.",
        "",
        "| job | case | spark-sql-kafka | dlog | |",
        "|---|---|---|---|---|",
    ]
    for line in lines:
        cells = [str(line[key]).replace("|", "\\|") for key in ("kind", "name", "theirs", "ours")]
        text.append(f"| {' | '.join(cells)} | {_told(line).replace('|', chr(92) + '|')} |")
    return "\n".join([*text, ""])


def _told(line: dict[str, object]) -> str:
    if line["verdict"] != DIFFERS:
        return f"{line['verdict']}: {line['failure']}" if line["failure"] else str(line["verdict"])
    if line["intended"]:
        return f"differs: {line['intended']}"
    return f"**differs** {line['difference']}"


def main(arguments: Sequence[str]) -> int:
    """Run everything; 1 when something differs."""
    parser = argparse.ArgumentParser(prog="python -m bench.compare_spark", description=__doc__)
    parser.add_argument("--only", default="", help="cases whose name has this in it; nothing kept")
    options = parser.parse_args(arguments)
    spark.install()
    lines = []
    with tempfile.TemporaryDirectory() as folder:
        server = DlogServer(Path(folder))
        server.start()
        try:
            fill(server.bootstrap)
            _trim(server.bootstrap)
            where = ("--bootstrap", server.bootstrap, "--jars", spark.jars())
            command = [sys.executable, "-m", "bench.load.spark_compare", *where]
            log = Path(folder, "spark.log")
            with subprocess.Popen(
                [*command, "--only", options.only],
                cwd=folder,
                env=spark.environment(),
                stdout=subprocess.PIPE,
                stderr=log.open("wb"),
                text=True,
            ) as process:
                assert process.stdout is not None
                for text in process.stdout:
                    line = json.loads(text)
                    lines.append(line)
                    is_new = line["verdict"] == DIFFERS and not line["intended"]
                    mark = ("DIFFERS" if is_new else str(line["verdict"])).ljust(15)
                    names = f"{line['kind']}: {line['name']}"
                    said = line["failure"] or line["difference"]
                    print(mark, names, "|", line["theirs"], "|", line["ours"], "|", said)
            if process.returncode:
                print(log.read_text(errors="replace")[-3000:], file=sys.stderr)
                return process.returncode
        finally:
            server.kill()
    if not options.only:
        RESULT.write_text(markdown(lines), encoding="utf-8")
    return 0 if all(line["verdict"] != DIFFERS or line["intended"] for line in lines) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
