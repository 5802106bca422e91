"""Options for the connection to the cluster.

Pure. `dlog.spark.options.options` gives this on, to the source and to the sink: what only one of
them has is theirs. Properties of Kafka's clients keep their names behind `kafka.`.
"""

import re

from dlog.client.cluster.bootstrap import parse_bootstrap
from dlog.offset_specs import Isolation
from dlog.spark.errors import OptionError
from dlog.spark.options.option_values import (
    Options,
    lowered,
    milliseconds,
    one_of,
    switch,
    whole_number,
    wrong_value,
)
from dlog.spark.settings import ClientSettings, TlsSettings

BOOTSTRAP = "kafka.bootstrap.servers"
DEADLINE_S = 120.0
LOOKUP_DEADLINE_S = 60.0
REQUEST_TIMEOUT_S = 30.0
CONNECT_TIMEOUT_S = 10.0
PARTITION_BYTES_MAX = 8 * 1024 * 1024
CLIENT_ID_BYTES_MAX = 2**15 - 1
"""The protocol has 16 bits for its length."""

_AUTHORITIES = "kafka.ssl.truststore.certificates"
_CHAIN = "kafka.ssl.keystore.certificate.chain"
_KEY = "kafka.ssl.keystore.key"

UNDERSTOOD = frozenset(
    {
        *(BOOTSTRAP, "kafka.client.id", "kafka.client.rack", "kafka.isolation.level"),
        *("kafka.request.timeout.ms", "kafka.default.api.timeout.ms"),
        *("kafka.socket.connection.setup.timeout.ms", "kafka.max.partition.fetch.bytes"),
        *("kafka.security.protocol", "kafka.ssl.endpoint.identification.algorithm"),
        *("kafka.ssl.ca.location", "kafka.ssl.certificate.location", "kafka.ssl.key.location"),
        *("kafka.ssl.truststore.location", "kafka.ssl.truststore.type"),
        *("kafka.ssl.keystore.location", "kafka.ssl.keystore.type", "kafka.ssl.key.password"),
        *(_AUTHORITIES, _CHAIN, _KEY),
    }
)
"""Properties that both the source and the sink heed."""

OWN = frozenset(
    {
        *("dlog.tls", "dlog.tls.ca", "dlog.tls.certificate", "dlog.tls.key"),
        *("dlog.tls.key.password", "dlog.tls.verify.host"),
    }
)
"""Our options of security."""

_PEM = "Java's key stores cannot be read: give files of PEM with dlog.tls.ca, dlog.tls.certificate"
_PEM += " and dlog.tls.key."

_BLOCK = re.compile(
    r"-----BEGIN ([A-Z0-9 ]+)-----\s+((?:[A-Za-z-]+:[^\r\n]*\s+)*)([A-Za-z0-9+/=\s]*)"
    r"-----END \1-----"
)
"""Label, headers (of OpenSSL's old encrypted keys), letters."""
_LINE_LETTERS = 64
"""Of PEM: more in a line OpenSSL reads only in some of its versions."""


def client_settings(options: Options) -> ClientSettings:
    """Return how to reach the cluster; raises OptionError. Names may be in any case."""
    options = lowered(options)
    isolation = one_of(
        options,
        "kafka.isolation.level",
        {"read_uncommitted": "read_uncommitted", "read_committed": "read_committed"},
    )
    partition_bytes_max = whole_number(
        options, "kafka.max.partition.fetch.bytes", least=1, most=2**31 - 1
    )
    return ClientSettings(
        bootstrap=_bootstrap(options),
        client_id=_client_id(options),
        tls=_tls(options),
        connect_timeout_s=milliseconds(
            options, "kafka.socket.connection.setup.timeout.ms", CONNECT_TIMEOUT_S
        ),
        request_timeout_s=milliseconds(options, "kafka.request.timeout.ms", REQUEST_TIMEOUT_S),
        deadline_s=milliseconds(options, "kafkaConsumer.pollTimeoutMs", DEADLINE_S),
        lookup_deadline_s=milliseconds(options, "kafka.default.api.timeout.ms", LOOKUP_DEADLINE_S),
        isolation=Isolation[(isolation or "read_uncommitted").upper()],
        rack=options.get("kafka.client.rack") or None,
        partition_bytes_max=partition_bytes_max or PARTITION_BYTES_MAX,
    )


def _client_id(options: Options) -> str:
    name = "kafka.client.id" if options.get("kafka.client.id") else "groupIdPrefix"
    text = options.get(name.lower()) or "dlog-spark"
    if len(text.encode(errors="surrogatepass")) > CLIENT_ID_BYTES_MAX:
        shown = f"{text[:20]}... ({len(text)} letters)"
        raise wrong_value(name, shown, f"a name of at most {CLIENT_ID_BYTES_MAX} bytes")
    return text


def _bootstrap(options: Options) -> str:
    text = options.get(BOOTSTRAP) or options.get("bootstrap.servers")
    if not text:
        raise OptionError(
            "DLOG_OPTION_MISSING",
            f"Option '{BOOTSTRAP}' must be specified for configuring the client.",
            "It is host:port of any node, several with commas.",
        )
    try:
        parse_bootstrap(text)
    except ValueError as error:
        raise wrong_value(BOOTSTRAP, text, f"host:port of any node ({error})") from error
    return text


def _tls(options: Options) -> TlsSettings | None:
    """Return how connections are encrypted; None when they are not."""
    protocol = options.get("kafka.security.protocol", "").upper()
    if protocol.startswith("SASL_"):
        raise OptionError(
            "DLOG_OPTION_REFUSED",
            f"kafka.security.protocol is {protocol}.",
            "SASL is not supported: use PLAINTEXT, or SSL with client certificates.",
        )
    if protocol not in ("", "PLAINTEXT", "SSL"):
        raise wrong_value("kafka.security.protocol", protocol, "PLAINTEXT or SSL")
    ca, certificate, key = _pem_files(options)
    ca_text = None if ca else _authorities(options)
    chain_text, key_text = (None, None) if certificate else _chain_and_key(options)
    is_given = bool(ca or ca_text or certificate or chain_text)
    is_said = protocol == "SSL" or (not protocol and is_given)
    wanted = switch(options, "dlog.tls", is_said)
    if protocol and wanted != is_said:
        raise OptionError(
            "DLOG_OPTION_CONFLICT",
            f"kafka.security.protocol is {protocol}, but dlog.tls is {str(wanted).lower()}.",
            "Leave one of them out.",
        )
    if not wanted:
        return None
    algorithm = options.get("kafka.ssl.endpoint.identification.algorithm", "https")
    return TlsSettings(
        ca_path=ca,
        certificate_path=certificate,
        key_path=key,
        key_password=options.get("dlog.tls.key.password")
        or options.get("kafka.ssl.key.password")
        or None,
        must_match_host=switch(options, "dlog.tls.verify.host", algorithm != ""),
        ca_text=ca_text,
        chain_text=chain_text,
        key_text=key_text,
    )


def _pem_files(options: Options) -> tuple[str | None, str | None, str | None]:
    """Return the paths of authorities, certificate and key; ours win over Kafka's."""
    ca = options.get("dlog.tls.ca") or options.get("kafka.ssl.ca.location")
    certificate = options.get("dlog.tls.certificate")
    certificate = certificate or options.get("kafka.ssl.certificate.location")
    key = options.get("dlog.tls.key") or options.get("kafka.ssl.key.location")
    # As in Kafka's client, a store that is given as text comes before one that is a path.
    if _AUTHORITIES not in options:
        ca = ca or _store(options, "truststore")
    if not {_CHAIN, _KEY} & options.keys():
        certificate = certificate or _store(options, "keystore")
    return ca or None, certificate or None, key or None


def _store(options: Options, store: str) -> str | None:
    """Return the path of a store of Kafka's Java client, which must be PEM."""
    name = f"kafka.ssl.{store}.location"
    path = options.get(name)
    if path:
        _check_type(options, store, name)
    return path


def _check_type(options: Options, store: str, name: str) -> None:
    """Refuse what is not said to be PEM, as Kafka's client does."""
    if options.get(f"kafka.ssl.{store}.type", "JKS").upper() != "PEM":
        raise OptionError(
            "DLOG_OPTION_REFUSED",
            f"{name} is not said to be PEM (kafka.ssl.{store}.type).",
            _PEM,
        )


def _authorities(options: Options) -> str | None:
    """Return the authorities that are themselves in an option (KIP-651)."""
    if _AUTHORITIES not in options:
        return None
    _check_type(options, "truststore", _AUTHORITIES)
    return _pem_text(options, _AUTHORITIES, "CERTIFICATE")


def _chain_and_key(options: Options) -> tuple[str | None, str | None]:
    """Return the certificates and the key that are themselves in options, both or none."""
    given = [name for name in (_CHAIN, _KEY) if name in options]
    if not given:
        return None, None
    if len(given) == 1:
        (missing,) = {_CHAIN, _KEY} - set(given)
        raise OptionError(
            "DLOG_OPTION_MISSING",
            f"{given[0]} is given, and {missing} is not.",
            "Give both, or files of PEM with dlog.tls.certificate and dlog.tls.key.",
        )
    _check_type(options, "keystore", _KEY)
    return _pem_text(options, _CHAIN, "CERTIFICATE"), _pem_text(options, _KEY, "PRIVATE KEY")


def _pem_text(options: Options, name: str, kind: str) -> str:
    """Return an option that is PEM as OpenSSL reads it; errors do not show it, it may be a key.

    Kafka's client takes blanks for the ends of lines, which a properties file has trouble with.
    """
    text = options[name]
    blocks = [match for match in _BLOCK.finditer(text) if match[1].endswith(kind)]
    if not blocks:
        wanted = f"It is PEM: -----BEGIN {kind}----- and what follows. Paths of files are for"
        wanted += " dlog.tls.ca, dlog.tls.certificate and dlog.tls.key."
        raise OptionError("DLOG_OPTION_VALUE", f"Option {name} has no {kind.lower()}.", wanted)
    lines = []
    for match in blocks:
        letters = "".join(match[3].split())
        lines.append(f"-----BEGIN {match[1]}-----")
        if match[2]:
            lines += [*match[2].strip().splitlines(), ""]
        lines += [letters[at : at + _LINE_LETTERS] for at in range(0, len(letters), _LINE_LETTERS)]
        lines.append(f"-----END {match[1]}-----")
    return "\n".join(lines)
