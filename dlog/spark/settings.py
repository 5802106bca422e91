"""Connection settings of a job's processes, as values that can be pickled.

Made from a job's options on the driver (`dlog.spark.options.options`), used wherever a process
opens a client. A TLS context is made there, from paths and texts of PEM: it cannot travel.
"""

import os
import socket
import ssl
import tempfile
from dataclasses import dataclass, field

from dlog.offset_specs import Isolation
from dlog.spark.errors import SparkSourceError
from dlog.transport import ConnectionOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsSettings:
    """PEM: files, by their paths on every host that runs a task, or texts; None: the system's own.

    Invariant: of authorities, and of a certificate with its key, there is a path or a text.
    What is secret is in no `repr`, and so in no log.
    """

    ca_path: str | None = None
    certificate_path: str | None = None
    key_path: str | None = None
    key_password: str | None = field(default=None, repr=False)
    must_match_host: bool = True
    ca_text: str | None = None
    chain_text: str | None = None
    key_text: str | None = field(default=None, repr=False)

    def context(self) -> ssl.SSLContext:
        """Return a new context; raises SparkSourceError for what is no PEM, or a locked key."""
        named = f"dlog.tls.ca ({self.ca_path})"
        if self.ca_text is not None:
            named = "kafka.ssl.truststore.certificates"
        try:
            context = ssl.create_default_context(cafile=self.ca_path, cadata=self.ca_text)
            context.check_hostname = self.must_match_host
            # Without a password OpenSSL would ask somebody at a terminal for it.
            password = self.key_password or ""
            if self.chain_text is not None and self.key_text is not None:
                named = "kafka.ssl.keystore.certificate.chain with kafka.ssl.keystore.key"
                _load_texts(context, self.chain_text, self.key_text, password)
            elif self.certificate_path is not None:
                named = f"dlog.tls.certificate ({self.certificate_path})"
                if self.key_path is not None:
                    named += f" with dlog.tls.key ({self.key_path})"
                context.load_cert_chain(self.certificate_path, self.key_path, password)
        except OSError as error:
            raise SparkSourceError(
                "DLOG_TLS_FILES",
                f"{named} cannot be used on {socket.gethostname()}: {error.strerror or error}.",
                "They are files of PEM, at these paths on the driver's host and on every host that"
                " runs a task, or PEM itself where the option is not a path;"
                " dlog.tls.key.password (or kafka.ssl.key.password) is for a key that is"
                " encrypted.",
            ) from error
        return context


def _load_texts(context: ssl.SSLContext, chain: str, key: str, password: str) -> None:
    """Give the context a certificate and its key; raises OSError.

    OpenSSL takes keys only from files there, so there is one for that moment, which nobody else
    may read (`mkstemp`: mode 0600), and which has no name any more when this returns.
    """
    descriptor, path = tempfile.mkstemp(prefix="dlog-tls-", suffix=".pem")
    try:
        with os.fdopen(descriptor, "w", encoding="ascii") as file:
            file.write(f"{key}\n{chain}\n")
        context.load_cert_chain(path, None, password)
    finally:
        os.unlink(path)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientSettings:
    """Where the cluster is, and how to speak to it. Times in seconds."""

    bootstrap: str
    client_id: str = "dlog-spark"
    tls: TlsSettings | None = None
    connect_timeout_s: float = 10.0
    request_timeout_s: float = 30.0
    deadline_s: float = 120.0
    """How long one call tries again while nodes come and go (`kafkaConsumer.pollTimeoutMs`)."""
    lookup_deadline_s: float = 60.0
    """The same for questions of the planner: who leads, where partitions begin and end."""
    isolation: Isolation = Isolation.READ_UNCOMMITTED
    """As Kafka's consumers have it when nothing is said."""
    rack: str | None = None
    partition_bytes_max: int = 8 * 1024 * 1024
    """What one fetch brings of one partition, at most."""
    decompressed_batch_bytes_max: int = 128 * 1024 * 1024
    """No batch is decompressed to more: the default is that of `dlog.batch.records`."""

    def connection(self) -> ConnectionOptions:
        """Return the options of new connections."""
        return ConnectionOptions(
            client_id=self.client_id,
            connect_timeout_s=self.connect_timeout_s,
            request_timeout_s=self.request_timeout_s,
            tls=None if self.tls is None else self.tls.context(),
        )
