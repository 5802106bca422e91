"""TLS from end to end. dlogd serves none by itself: a proxy before the node does."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from dlog.client.blocking import Admin, Producer
from dlog.client.cluster.loop_thread import LoopThread
from dlog.spark.errors import SparkSourceError
from dlog.spark.options.connection_options import client_settings
from dlog.spark.options.write_options import parse_write_options
from dlog.spark.source import DlogDataSource
from dlog.spark.writing.promises import AtLeastOnce
from dlog.spark.writing.sink_task import write_task
from dlog.spark.writing.tokens import Attempt, Token
from dlog.transport import Address
from dlogctl import exit_codes
from dlogctl.__main__ import main
from tests.daemon.process import daemon
from tests.fakes.proxy import Proxy
from tests.spark.log import rows_of
from tests.spark.tls import Keys

FORMS = ("files", "text")
"""Of PEM in the options of Kafka's clients."""
BRIEF = {"kafka.default.api.timeout.ms": "300", "kafkaConsumer.pollTimeoutMs": "300"}


@dataclass(frozen=True)
class Site:
    """A node with two addresses: by TLS, which it advertises, and without."""

    keys: Keys
    encrypted: str
    plain: str

    def options(self, **more: str) -> dict[str, str]:
        """Return the options of who does it right."""
        return {"kafka.bootstrap.servers": self.encrypted, **self.keys.options(), **more}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("tls")
    keys = Keys(folder / "keys")
    proxy, thread = Proxy(tls=keys.server()), LoopThread("tls-proxy")
    thread.start()
    thread.call(proxy.start)
    try:
        with daemon(folder / "node", f"advertised.address: {proxy.address}\n") as node:
            node.start()
            plain = str(node.status()["listeners"][0])
            proxy.upstream = Address.parse(plain)
            yield Site(keys, str(proxy.address), plain)
    finally:
        thread.call(proxy.close)
        thread.close()


@pytest.fixture(scope="module", autouse=True)
def topics(site: Site) -> None:
    settings = client_settings(site.options())
    with Admin(settings.bootstrap, connection=settings.connection()) as admin:
        for name in (
            "first",
            *(f"{each}-{form}" for each in ("first", "second") for form in FORMS),
        ):
            admin.create_topic(name, partitions=2)


@pytest.mark.parametrize("form", FORMS)
def test_jobs_read_write_and_stream(
    spark: SparkSession, site: Site, tmp_path: Path, form: str
) -> None:
    numbers = spark.range(0, 500, 1, 2).selectExpr("cast(id as string) as value")
    writing = site.options(topic=f"first-{form}")
    numbers.write.format("dlog").options(**writing).mode("append").save()
    keys = site.keys.options_of_kafka() if form == "files" else site.keys.options_of_text()
    theirs = {"kafka.bootstrap.servers": site.encrypted, **keys}
    reading = {"subscribe": f"first-{form}", "startingOffsets": "earliest"}
    query = (
        spark.readStream.format("dlog")
        .options(**theirs, **reading)
        .load()
        .writeStream.format("dlog")
        .options(**theirs, topic=f"second-{form}", checkpointLocation=str(tmp_path))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(60)
    found = spark.read.format("dlog").options(**site.options(subscribe=f"second-{form}")).load()
    assert sorted(int(value) for _, _, value in rows_of(found)) == [*range(500)]


def test_pipelines_take_the_options_of_security(
    spark: SparkSession, site: Site, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """An archive needs none of them; two clusters have them in common."""
    settings = client_settings(site.options())
    with Producer(settings.bootstrap, connection=settings.connection()) as producer:
        producer.send_many("first", [b"%d" % number for number in range(9)])

    def dlogctl(*words: str) -> tuple[int, str]:
        capsys.readouterr()
        options = site.keys.options().items()
        given = [word for pair in options for word in ("--option", "=".join(pair))]
        code = main(["--bootstrap", site.encrypted, "pipeline", *words, "-o", "json", "-q", *given])
        return code, capsys.readouterr().err

    assert dlogctl("archive", "first", "--to", str(tmp_path)) == (exit_codes.OK, "")
    assert dlogctl("audit", f"archive:{tmp_path}", "first") == (exit_codes.OK, "")
    code, told = dlogctl("audit", "first", f"first@{site.plain}")
    assert code == exit_codes.UNREACHABLE
    said = f"dlogctl: [DLOG_CLUSTER_UNREACHABLE] Asked {site.plain} for its nodes: "
    assert told.startswith(said)
    assert "whether both sides speak TLS, or none (dlog.tls)" in told


def plan(options: dict[str, str]) -> str:
    """Return what a read says that cannot begin."""
    source = DlogDataSource({**options, **BRIEF, "subscribe": "first"})
    with pytest.raises(SparkSourceError) as error:
        source.reader(source.schema()).partitions()
    return str(error.value)


def write(options: dict[str, str]) -> str:
    """Return what a task says that cannot write."""
    given = {**options, **BRIEF}
    attempt = Attempt(token=Token("q", 0), task=0, attempt=0)
    written = parse_write_options({**given, "topic": "first"})
    rows = iter([pa.record_batch({"value": ["x"]})])
    with pytest.raises(SparkSourceError) as error:
        settings = client_settings(given)
        write_task(attempt, rows, settings, written, AtLeastOnce(settings, written))
    return str(error.value)


def test_what_does_not_fit_is_told(site: Site, tmp_path: Path) -> None:
    others = Keys(tmp_path / "others", "others")
    options = site.options()
    unknown = {**options, "dlog.tls.ca": others.path("ca.pem")}
    nameless = {"kafka.bootstrap.servers": site.encrypted, "dlog.tls.ca": site.keys.path("ca.pem")}
    named = site.encrypted.replace("127.0.0.1", "localhost")
    elsewhere = {**options, "kafka.bootstrap.servers": named}
    unencrypted = {"kafka.bootstrap.servers": site.encrypted}
    needless = {**options, "kafka.bootstrap.servers": site.plain}
    for given, says in (
        (unknown, "certificate verify failed: self-signed certificate in certificate chain"),
        (elsewhere, "certificate is not valid for 'localhost'"),
        (nameless, f"connection to {site.encrypted} was lost"),
        (unencrypted, f"connection to {site.encrypted} was lost"),
        (needless, "perhaps it speaks no TLS|reset by peer"),
    ):
        for text in (plan(given), write(given)):
            assert text.startswith("[DLOG_CLUSTER_UNREACHABLE]") and re.search(says, text)
            assert "whether both sides speak TLS, or none (dlog.tls)" in text
    for name in ("dlog.tls.ca", "dlog.tls.certificate", "dlog.tls.key"):
        given = {**options, name: str(tmp_path / "nothing.pem")}
        for text in (plan(given), write(given)):
            assert (
                text.startswith("[DLOG_TLS_FILES]") and f"{name} ({tmp_path}/nothing.pem)" in text
            )
    text = {"kafka.bootstrap.servers": site.encrypted, **site.keys.options_of_text()}
    for given in ({**text, "kafka.ssl.key.password": "no"}, {**text, "kafka.ssl.key.password": ""}):
        for said in (plan(given), write(given)):
            assert said.startswith("[DLOG_TLS_FILES] kafka.ssl.keystore.certificate.chain with ")
            assert "(or kafka.ssl.key.password) is for a key that is encrypted" in said
    locked = plan({**options, "dlog.tls.key.password": "no"})
    assert "DLOG_TLS_FILES" in locked and "dlog.tls.key.password (or" in locked
