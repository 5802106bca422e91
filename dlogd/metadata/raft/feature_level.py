"""Feature level of the cluster's metadata, and whether this software knows it.

Pure. What it does not know it would pass over as malformed, and its image would be another one than
that of the other nodes from then on; as the leader it would send that image on. So a node whose
software is older than the level stops, and says what to do.
"""

from dlog.errors import StartRefusedError
from dlogd.metadata.state.image import ClusterImage
from dlogd.metadata.state.limits import LEVEL_NEWEST, LEVEL_OLDEST


class UnknownLevelError(StartRefusedError):
    """This software is too old for the metadata; the node must stop."""


def expect_known(image: ClusterImage) -> None:
    """Raise UnknownLevelError unless this software knows all that the image may be made of."""
    if image.feature_level > LEVEL_NEWEST:
        raise UnknownLevelError(
            f"The metadata of the cluster is at feature level {image.feature_level}, this software"
            f" knows {LEVEL_OLDEST} to {LEVEL_NEWEST}: install the newer software again"
        )
