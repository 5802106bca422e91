"""Keys and certificates for tests, made when they are needed: none lie about in a repository."""

import ssl
import subprocess
from pathlib import Path

HOST = "127.0.0.1"
PASSWORD = "secret"
"""Of the client's key."""


def _openssl(folder: Path, *words: str) -> None:
    subprocess.run(["openssl", *words], cwd=folder, check=True, capture_output=True)


class Keys:
    """An authority, and what it has signed: a server's and a client's certificate.

    The keys are of elliptic curves: they cost no time.
    """

    def __init__(self, folder: Path, name: str = "authority") -> None:
        self.folder = folder
        folder.mkdir(exist_ok=True)
        new = ("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1")
        _openssl(folder, *new, "-nodes", "-keyout", "ca.key", "-out", "ca.pem", "-days", "2",
                 "-subj", f"/CN={name}")  # fmt: skip
        self._sign("server", "-nodes")
        self._sign("client", "-passout", f"pass:{PASSWORD}")

    def _sign(self, name: str, *protection: str) -> None:
        new = ("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1")
        _openssl(self.folder, *new, *protection, "-keyout", f"{name}.key", "-out", f"{name}.pem",
                 "-days", "2", "-subj", f"/CN={name}", "-addext", f"subjectAltName=IP:{HOST}",
                 "-CA", "ca.pem", "-CAkey", "ca.key")  # fmt: skip

    def path(self, name: str) -> str:
        """Return where a file is, such as `client.pem`."""
        return str(self.folder / name)

    def server(self) -> ssl.SSLContext:
        """Return what a server has that wants a certificate of its clients."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.path("server.pem"), self.path("server.key"))
        context.load_verify_locations(self.path("ca.pem"))
        context.verify_mode = ssl.CERT_REQUIRED
        return context

    def options(self) -> dict[str, str]:
        """Return the options of a query that knows the authority and has the client's key."""
        return {
            "dlog.tls.ca": self.path("ca.pem"),
            "dlog.tls.certificate": self.path("client.pem"),
            "dlog.tls.key": self.path("client.key"),
            "dlog.tls.key.password": PASSWORD,
        }

    def options_of_kafka(self) -> dict[str, str]:
        """Return the same by the names of Kafka's clients."""
        return {
            "kafka.security.protocol": "SSL",
            "kafka.ssl.truststore.type": "PEM",
            "kafka.ssl.truststore.location": self.path("ca.pem"),
            "kafka.ssl.certificate.location": self.path("client.pem"),
            "kafka.ssl.key.location": self.path("client.key"),
            "kafka.ssl.key.password": PASSWORD,
        }

    def options_of_text(self) -> dict[str, str]:
        """Return the same with PEM itself in the options, as Kafka's Java client takes it."""
        return {
            "kafka.security.protocol": "SSL",
            "kafka.ssl.truststore.type": "PEM",
            "kafka.ssl.truststore.certificates": self.text("ca.pem"),
            "kafka.ssl.keystore.type": "PEM",
            "kafka.ssl.keystore.certificate.chain": self.text("client.pem"),
            "kafka.ssl.keystore.key": self.text("client.key"),
            "kafka.ssl.key.password": PASSWORD,
        }

    def text(self, name: str) -> str:
        """Return what is in a file."""
        return (self.folder / name).read_text()
