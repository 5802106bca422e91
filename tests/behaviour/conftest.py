"""One server after the other for all tests that take `server`; each started once per session."""

import itertools
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator

import pytest

from bench.peers.server import StartError
from tests.behaviour.scene import Scene, Work, play
from tests.behaviour.servers import SERVERS, TestedServer


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run every test once per server; the tests of one server stay in one worker."""
    if "server" not in metafunc.fixturenames:
        return
    only = {name for mark in metafunc.definition.iter_markers("only") for name in mark.args}
    names = [name for name in SERVERS if not only or name in only]
    metafunc.parametrize("server", names, indirect=True, scope="session")


def pytest_configure(config: pytest.Config) -> None:
    """Declare the marker for what one server alone can do."""
    # kafka-python reads its schemas by an old call.
    config.addinivalue_line("filterwarnings", "ignore:.*_text is deprecated:DeprecationWarning")
    config.addinivalue_line("markers", "only(server, ...): the servers that a test is about")


@pytest.fixture(scope="session")
def server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[TestedServer]:
    """The server under test."""
    folder = tmp_path_factory.mktemp(request.param)
    tested = SERVERS[request.param](folder)
    try:
        try:
            tested.start()
        except StartError as error:
            if shutil.which("java") and shutil.which("mvn"):
                raise
            pytest.skip(str(error))
        except subprocess.CalledProcessError as error:
            pytest.skip(f"the jars of Kafka are not in .cache, and cannot be fetched: {error}")
        yield tested
    finally:
        tested.close()


@pytest.fixture(autouse=True)
def last_words(server: TestedServer) -> Iterator[None]:
    """Show what the servers said beside a failure."""
    yield
    print(server.last_words)


_numbers = itertools.count()


@pytest.fixture
def topic_name(request: pytest.FixtureRequest) -> str:
    """A name that no other test uses."""
    safe = "".join(c if c.isalnum() else "-" for c in request.node.name)[:80]
    return f"{safe}.{os.getpid()}.{next(_numbers)}"


@pytest.fixture
def check(server: TestedServer, topic_name: str) -> Callable[[Work], None]:
    """Play a test against the server; nothing of it may be left behind."""
    return lambda work: play(lambda: work(Scene(server, topic_name)))
