"""The server under test, and one of each client, for all tests of a worker."""

import itertools
import os
from collections.abc import Callable, Iterator

import pytest

from scripts.sandbox import running_sandbox
from tests.clients.drivers.asynchronous import AiokafkaDriver
from tests.clients.drivers.confluent import ConfluentDriver
from tests.clients.drivers.driver import Driver
from tests.clients.drivers.java import Java3Driver, Java4Driver
from tests.clients.drivers.kcat import KcatDriver, OldLibrdkafkaDriver
from tests.clients.drivers.own import DlogDriver
from tests.clients.drivers.pure_python import KafkaPythonDriver
from tests.clients.tools import MissingError

CLIENTS: tuple[Callable[[str], Driver], ...] = (
    DlogDriver,
    KcatDriver,
    OldLibrdkafkaDriver,
    ConfluentDriver,
    KafkaPythonDriver,
    AiokafkaDriver,
    Java3Driver,
    Java4Driver,
)
# Kafka 4 no longer serves ListOffsets v0 (KIP-896), which librdkafka 1.7 asks; dlogd does.
if os.environ.get("DLOG_TEST_BOOTSTRAP"):
    CLIENTS = tuple(kind for kind in CLIENTS if kind is not OldLibrdkafkaDriver)
NAMES = tuple(kind.name for kind in CLIENTS)  # type: ignore[attr-defined]
LACKS = {kind.name: kind.lacks for kind in CLIENTS}  # type: ignore[attr-defined]


def pytest_configure(config: pytest.Config) -> None:
    """Declare the marker that leaves out clients without a feature."""
    # kafka-python reads its schemas by an old call.
    config.addinivalue_line("filterwarnings", "ignore:.*_text is deprecated:DeprecationWarning")
    config.addinivalue_line("markers", "needs(feature, ...): what a client must be able to do")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run a test that takes `client` once per client that can do what it needs."""
    if "client" not in metafunc.fixturenames:
        return
    needed = {n for mark in metafunc.definition.iter_markers("needs") for n in mark.args}
    names = [name for name in NAMES if not needed & LACKS[name]]
    metafunc.parametrize("client", names, indirect=True)


@pytest.fixture(scope="session")
def bootstrap(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Address of the server under test: a sandbox of dlogd, or DLOG_TEST_BOOTSTRAP."""
    given = os.environ.get("DLOG_TEST_BOOTSTRAP")
    if given:
        yield given
        return
    with running_sandbox(tmp_path_factory.mktemp("sandbox")) as sandbox:
        yield sandbox.bootstrap


@pytest.fixture(scope="session")
def clients(bootstrap: str) -> Iterator[Callable[[str], Driver]]:
    """Return the driver of that name; made once, closed at the end."""
    made: dict[str, Driver] = {}

    def get(name: str) -> Driver:
        if name not in made:
            try:
                made[name] = dict(zip(NAMES, CLIENTS, strict=True))[name](bootstrap)
            except MissingError as error:
                pytest.skip(str(error))
        return made[name]

    yield get
    for driver in made.values():
        driver.close()


@pytest.fixture
def client(request: pytest.FixtureRequest, clients: Callable[[str], Driver]) -> Driver:
    """The client of this run of the test."""
    return clients(request.param)


_numbers = itertools.count()


@pytest.fixture
def topic_name(request: pytest.FixtureRequest) -> str:
    """A name that no other test uses."""
    safe = "".join(c if c.isalnum() else "-" for c in request.node.name)[:80]
    return f"{safe}.{os.getpid()}.{next(_numbers)}"
