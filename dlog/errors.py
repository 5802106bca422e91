"""The tree of exceptions, and the one table of error codes that may cross the wire.

    DlogError
    ├── WireError              has a code of Kafka's table; one subclass per code
    ├── TransportError         the connection failed; what was sent has an unknown outcome
    │   ├── DisconnectedError
    │   ├── ConnectFailedError
    │   └── RequestTimedOutError   (a WireError too: code 7)
    ├── ProtocolError          the peer sent bytes that make no sense: close the connection
    └── ConfigError            a configuration with problems, all of them at once

Codes, names and the two retry flags are Kafka's (`Errors.java`); codes are never reused. Two
refusals of dlog use codes of Kafka's with a wider meaning: a full disk is KAFKA_STORAGE_ERROR (56),
a forbidden request POLICY_VIOLATION (44). Codes that nothing here raises or catches by name get
their class from `dlog.error_codes`; move a line from there to a class when a name is needed.
"""

import re
from collections.abc import Sequence
from typing import ClassVar

from dlog.error_codes import UNNAMED

NONE = 0
UNKNOWN_SERVER_ERROR = -1


class DlogError(Exception):
    """Root of every exception that dlog raises on purpose."""


class WireError(DlogError):
    """An error that may cross the wire; the instance message is for people.

    `retriable`: the same request may succeed later. `refresh_metadata`: ask for metadata first.
    """

    code: ClassVar[int] = UNKNOWN_SERVER_ERROR
    name: ClassVar[str] = "UNKNOWN_SERVER_ERROR"
    retriable: ClassVar[bool] = False
    refresh_metadata: ClassVar[bool] = False

    def __init_subclass__(
        cls,
        *,
        code: int | None = None,
        name: str | None = None,
        retriable: bool = False,
        refresh_metadata: bool = False,
    ) -> None:
        """Take the code of a class; a class without one is a kind of its base, and has its code."""
        super().__init_subclass__()
        if code is None:
            return
        if code in ERRORS:
            raise TypeError(f"error code {code} is taken by {ERRORS[code].__name__}")
        cls.code = code
        stem = cls.__name__.removesuffix("Error")
        cls.name = name or re.sub(r"(?<=[a-z])(?=[A-Z])", "_", stem).upper()
        cls.retriable = retriable or refresh_metadata
        cls.refresh_metadata = refresh_metadata
        ERRORS[code] = cls

    def __str__(self) -> str:
        return super().__str__() or self.name


ERRORS: dict[int, type[WireError]] = {}
"""Every error code but 0, and its class."""


class TransportError(DlogError):
    """The connection failed; whether the request took effect is unknown when it `was_sent`."""

    was_sent: bool = True
    """False: not a byte of the request left, so that it had no effect for sure."""


class DisconnectedError(TransportError):
    """The connection was lost before the response came."""


class ConnectFailedError(TransportError):
    """No connection could be made; the request was not sent."""

    was_sent = False


class ProtocolError(DlogError):
    """The peer sent bytes that no version of the protocol allows; close the connection."""


class StartRefusedError(DlogError):
    """A node cannot work as things are: every start fails until somebody acts."""


class ConfigError(StartRefusedError):
    """A configuration is wrong; `problems` has one sentence per problem, none left out."""

    def __init__(self, problems: Sequence[str] | str) -> None:
        self.problems = (problems,) if isinstance(problems, str) else tuple(problems)
        super().__init__("; ".join(self.problems))


class UnknownServerError(WireError, code=-1, name="UNKNOWN_SERVER_ERROR"):
    """The server failed in a way that it did not expect."""


class OffsetOutOfRangeError(WireError, code=1):
    """The offset is below the log start offset or beyond the end."""


class CorruptMessageError(WireError, code=2, retriable=True):
    """The bytes are no batch: bad CRC, magic, length or counts."""


class DecompressedTooLargeError(CorruptMessageError):
    """Records decompress to more bytes than the reader takes."""


class UnknownTopicOrPartitionError(WireError, code=3, refresh_metadata=True):
    """This server does not host the partition, or nobody does."""


class LeaderNotAvailableError(WireError, code=5, refresh_metadata=True):
    """The partition has no leader at the moment."""


class NotLeaderOrFollowerError(WireError, code=6, refresh_metadata=True):
    """This node is not the leader, and for a fetch not a replica either."""


class RequestTimedOutError(TransportError, WireError, code=7, retriable=True):
    """No answer came in time, or the server did not finish in time: the outcome is unknown."""

    is_answer: bool = False
    """Whether the server said so, and was reached therefore."""


class BrokerNotAvailableError(WireError, code=8):
    """The addressed node is not alive."""


class ReplicaNotAvailableError(WireError, code=9, refresh_metadata=True):
    """The replica is not on this node."""


class RecordTooLargeError(WireError, code=10, name="MESSAGE_TOO_LARGE"):
    """A batch is larger than the topic allows."""


class NetworkError(WireError, code=13, name="NETWORK_EXCEPTION", refresh_metadata=True):
    """The server lost a connection that the request needed."""


class CoordinatorLoadInProgressError(WireError, code=14, retriable=True):
    """The coordinator still loads its state."""


class CoordinatorNotAvailableError(WireError, code=15, retriable=True):
    """There is no coordinator at the moment."""


class NotCoordinatorError(WireError, code=16, retriable=True):
    """Another node coordinates this group or transaction."""


class InvalidTopicError(WireError, code=17, name="INVALID_TOPIC_EXCEPTION"):
    """The topic's name is not allowed, or the operation on it is not."""


class RecordListTooLargeError(WireError, code=18):
    """A request holds a batch larger than a segment."""


class NotEnoughReplicasError(WireError, code=19, retriable=True):
    """The ISR is smaller than `min.insync.replicas`; nothing was appended."""


class NotEnoughReplicasAfterAppendError(WireError, code=20, retriable=True):
    """The ISR became smaller than `min.insync.replicas` after the append."""


class InvalidRequiredAcksError(WireError, code=21):
    """Acks is none of 0, 1 and -1."""


class IllegalGenerationError(WireError, code=22):
    """The group has moved on to another generation."""


class InvalidGroupIdError(WireError, code=24):
    """The group id is empty or otherwise not allowed."""


class UnknownMemberIdError(WireError, code=25):
    """The group does not know this member."""


class RebalanceInProgressError(WireError, code=27):
    """The group rebalances; join again."""


class TopicAuthorizationFailedError(WireError, code=29):
    """The user may not do this with this topic."""


class ClusterAuthorizationFailedError(WireError, code=31):
    """The user may not do this with the cluster."""


class InvalidTimestampError(WireError, code=32):
    """A timestamp is too far from the server's clock."""


class UnsupportedVersionError(WireError, code=35):
    """The request's version is not served."""


class TopicAlreadyExistsError(WireError, code=36):
    """A topic of this name exists."""


class InvalidPartitionsError(WireError, code=37):
    """The number of partitions is not possible."""


class InvalidReplicationFactorError(WireError, code=38):
    """The replication factor is below 1 or above the number of nodes."""


class InvalidReplicaAssignmentError(WireError, code=39):
    """The assignment of replicas to nodes is not possible."""


class InvalidConfigError(WireError, code=40):
    """A configuration key or value is not possible."""


class NotControllerError(WireError, code=41, refresh_metadata=True):
    """Another node is the controller."""


class InvalidRequestError(WireError, code=42):
    """The request is well-formed and contradicts itself."""


class UnsupportedForMessageFormatError(WireError, code=43):
    """The batch format does not support the request."""


class PolicyViolationError(WireError, code=44):
    """A rule of the operator forbids the request."""


class OutOfOrderSequenceNumberError(WireError, code=45):
    """A batch of this producer before this one is missing."""


class DuplicateSequenceNumberError(WireError, code=46):
    """The batch was appended before, too long ago to say where."""


class InvalidProducerEpochError(WireError, code=47):
    """A newer producer with this id is at work."""


class InvalidProducerIdMappingError(WireError, code=49):
    """The producer id does not belong to this transactional id."""


class TransactionalIdAuthorizationFailedError(WireError, code=53):
    """The user may not use this transactional id, or nobody may."""


class KafkaStorageError(WireError, code=56, name="KAFKA_STORAGE_ERROR", refresh_metadata=True):
    """The partition's disk failed or is full."""


class UnknownProducerIdError(WireError, code=59):
    """The partition holds no state of this producer."""


class FetchSessionIdNotFoundError(WireError, code=70, retriable=True):
    """The fetch session does not exist (any more)."""


class InvalidFetchSessionEpochError(WireError, code=71, retriable=True):
    """The fetch session is at another epoch."""


class FencedLeaderEpochError(WireError, code=74, refresh_metadata=True):
    """The request's leader epoch is older than the partition's."""


class UnknownLeaderEpochError(WireError, code=75, retriable=True):
    """The request's leader epoch is newer than what this node knows."""


class UnsupportedCompressionTypeError(WireError, code=76):
    """The codec is unknown, or too new for the request's version."""


class StaleBrokerEpochError(WireError, code=77):
    """The node was started again since it sent this."""


class OffsetNotAvailableError(WireError, code=78, retriable=True):
    """The new leader does not know the high watermark yet."""


class PreferredLeaderNotAvailableError(WireError, code=80, refresh_metadata=True):
    """The preferred replica is not in sync or not active."""


class EligibleLeadersNotAvailableError(WireError, code=83, refresh_metadata=True):
    """No replica can lead the partition."""


class ElectionNotNeededError(WireError, code=84, refresh_metadata=True):
    """The partition has the leader that was asked for."""


class NoReassignmentInProgressError(WireError, code=85):
    """There is no reassignment to cancel."""


class InvalidRecordError(WireError, code=87):
    """A batch is whole and breaks a rule of the topic."""


class ProducerFencedError(WireError, code=90):
    """A newer producer with this transactional id is at work."""


class ResourceNotFoundError(WireError, code=91):
    """The named thing does not exist."""


class InvalidUpdateVersionError(WireError, code=95):
    """An ISR change was made from an older state of the partition."""


class UnknownTopicIdError(WireError, code=100, refresh_metadata=True):
    """This server does not host the topic with this id."""


class BrokerIdNotRegisteredError(WireError, code=102):
    """No node has registered with this id."""


class InconsistentTopicIdError(WireError, code=103, refresh_metadata=True):
    """The topic of this name has another id: it was deleted and created again."""


class InconsistentClusterIdError(WireError, code=104):
    """The peer belongs to another cluster."""


class FetchSessionTopicIdError(
    WireError, code=106, name="FETCH_SESSION_TOPIC_ID_ERROR", retriable=True
):
    """The fetch session mixes topic ids with topic names."""


class IneligibleReplicaError(WireError, code=107):
    """A proposed ISR has a node that is fenced or shutting down."""


class DuplicateVoterError(WireError, code=126):
    """The node is a voter of the metadata already."""


class VoterNotFoundError(WireError, code=127):
    """The node, or this directory of it, is no voter of the metadata."""


def _define_unnamed() -> None:
    for code, retriable, name in UNNAMED:
        class_name = name.title().replace("_", "") + "Error"
        type(class_name, (WireError,), {}, code=code, name=name, retriable=retriable)


_define_unnamed()


def error_for(code: int, message: str = "") -> WireError:
    """Return the exception for a code that came over the wire; never fails.

    Code 0 is no error and must not be passed; it and unknown codes give UnknownServerError.
    """
    error_type = ERRORS.get(code)
    if error_type is None:
        return UnknownServerError(message or f"unknown error code {code}")
    error = error_type(message)
    if isinstance(error, RequestTimedOutError):
        error.is_answer = True
    return error
