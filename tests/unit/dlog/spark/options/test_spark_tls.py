"""PEM itself in the options of a job, as Kafka's Java client has it since 2.7 (KIP-651)."""

import pickle
import ssl
import stat
import tempfile
from pathlib import Path

import pytest

from dlog.spark.errors import OptionError, SparkSourceError
from dlog.spark.options.connection_options import client_settings
from dlog.spark.options.write_options import parse_write_options
from dlog.spark.settings import TlsSettings
from tests.spark.tls import PASSWORD, Keys


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Keys:
    return Keys(tmp_path_factory.mktemp("keys") / "keys")


def settings(options: dict[str, str]) -> TlsSettings:
    found = client_settings({"kafka.bootstrap.servers": "h:1", **options}).tls
    assert found is not None
    return found


def refusal(options: dict[str, str]) -> str:
    with pytest.raises(OptionError) as error:
        settings(options)
    return str(error.value)


def authorities(context: ssl.SSLContext) -> list[object]:
    return [dict(each["subject"][0])["commonName"] for each in context.get_ca_certs()]


def test_texts_are_loaded_and_leave_no_file_behind(
    keys: Keys, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[int] = []
    load = ssl.SSLContext.load_cert_chain

    def watched(context: ssl.SSLContext, path: str, *rest: str) -> None:
        seen.append(stat.S_IMODE(Path(path).stat().st_mode))
        load(context, path, *rest)

    monkeypatch.setattr(ssl.SSLContext, "load_cert_chain", watched)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    found = settings(keys.options_of_text())
    assert pickle.loads(pickle.dumps(found)) == found
    assert authorities(found.context()) == ["authority"]
    with pytest.raises(SparkSourceError, match=r"DLOG_TLS_FILES. kafka.ssl.keystore.cert.* on "):
        settings({**keys.options_of_text(), "kafka.ssl.key.password": "no"}).context()
    assert seen == [0o600, 0o600] and not list(tmp_path.iterdir())


def test_what_is_secret_is_not_shown(keys: Keys) -> None:
    shown = repr(settings(keys.options_of_text()))
    assert "PRIVATE KEY" not in shown and PASSWORD not in shown and "BEGIN CERTIFICATE" in shown


def test_blanks_may_end_lines_as_in_kafkas_client(keys: Keys) -> None:
    options = keys.options_of_text()
    flat = {name: " ".join(value.split("\n")) for name, value in options.items()}
    assert settings(flat) == settings(options)
    assert authorities(settings(flat).context()) == ["authority"]
    old = "-----BEGIN EC PRIVATE KEY-----\nProc-Type: 4,ENCRYPTED\nDEK-Info: AES-128-CBC,0F\n\n"
    old += "Zm9v\n-----END EC PRIVATE KEY-----"
    assert settings({**options, "kafka.ssl.keystore.key": old}).key_text == old


def test_ours_come_before_texts_and_texts_before_stores(keys: Keys) -> None:
    stores = {
        "kafka.ssl.truststore.location": "/ca.pem",
        "kafka.ssl.keystore.location": "/both.pem",
    }
    assert settings({**keys.options_of_text(), **stores}) == settings(keys.options_of_text())
    found = settings({**keys.options_of_text(), **keys.options()})
    assert (found.ca_path, found.ca_text) == (keys.path("ca.pem"), None)
    assert (found.certificate_path, found.key_text) == (keys.path("client.pem"), None)


def test_what_is_no_pem_is_refused_by_its_name_and_not_shown(keys: Keys) -> None:
    for name, store in (
        ("kafka.ssl.truststore.certificates", "truststore"),
        ("kafka.ssl.keystore.certificate.chain", "keystore"),
        ("kafka.ssl.keystore.key", "keystore"),
    ):
        options = keys.options_of_text()
        for text in ("", "geheim", options[name].replace("-----END", "-----EN")):
            said = refusal({**options, name: text})
            assert said.startswith(f"[DLOG_OPTION_VALUE] Option {name} has no ")
            assert "dlog.tls.ca" in said and "geheim" not in said and "MI" not in said
        del options[f"kafka.ssl.{store}.type"]
        said = refusal(options)
        assert said.startswith("[DLOG_OPTION_REFUSED] kafka.ssl.") and f"{store}.type" in said
    for name, missing in (
        ("kafka.ssl.keystore.certificate.chain", "kafka.ssl.keystore.key"),
        ("kafka.ssl.keystore.key", "kafka.ssl.keystore.certificate.chain"),
    ):
        options = keys.options_of_text()
        del options[missing]
        assert refusal(options).startswith(
            f"[DLOG_OPTION_MISSING] {name} is given, and {missing} is not."
        )


def test_nobody_is_told_that_they_are_ignored(keys: Keys, caplog: pytest.LogCaptureFixture) -> None:
    parse_write_options(keys.options_of_text())
    assert not caplog.messages
