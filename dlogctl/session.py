"""Session with a cluster: the client that a command uses.

The commands' only way to the cluster. Errors of `dlog.errors` pass through; `dlogctl.__main__`
turns them into messages and exit codes.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from dlog.client.blocking import BlockingClient
from dlog.client.retry import RetryPolicy
from dlog.errors import InvalidTopicError, UnknownTopicOrPartitionError
from dlog.transport import ConnectionOptions
from dlogctl.settings import Settings

CLIENT_ID = "dlogctl"


def no_topic(name: str) -> UnknownTopicOrPartitionError:
    """Return the error about a topic that is not there."""
    return UnknownTopicOrPartitionError(f"there is no topic {name}; see: dlogctl topic list")


@contextmanager
def naming_topic(name: str) -> Iterator[None]:
    """Say which topic is not there, or has a wrong name: the cluster's answer does not."""
    try:
        yield
    except UnknownTopicOrPartitionError:
        raise no_topic(name) from None
    except InvalidTopicError as error:
        if str(error) not in ("", name):
            raise
        raise InvalidTopicError(
            f"topic name {name!r} is not allowed; a name has 1 to 249 ASCII letters, digits,"
            " '.', '_' and '-'"
        ) from None


def client_options(settings: Settings) -> tuple[ConnectionOptions, RetryPolicy]:
    """Return how a client of these settings connects, and how long it tries."""
    options = ConnectionOptions(
        client_id=CLIENT_ID,
        connect_timeout_s=settings.timeout_s,
        request_timeout_s=settings.timeout_s,
    )
    return options, RetryPolicy(deadline_s=settings.timeout_s)


@contextmanager
def connected(settings: Settings) -> Iterator[BlockingClient]:
    """Give a client of the cluster; it is closed at the end."""
    options, policy = client_options(settings)
    with BlockingClient(settings.bootstrap, options=options, policy=policy) as client:
        yield client
