"""Size limits of everything in the image.

Pure. The machine holds every command to these, so they never shrink: a command that was applied
once must be applied again by a later version that reads it from the journal.
"""

TOPIC_PARTITIONS_MAX = 100_000
REPLICAS_MAX = 32
CONFIGS_MAX = 200
CONFIG_VALUE_LENGTH_MAX = 8_192
MESSAGE_LENGTH_MAX = 500
NODE_TEXT_LENGTH_MAX = 255
NODE_DIRECTORIES_MAX = 256
PRODUCER_IDS_MAX = 1_000_000
INT31_MAX = (1 << 31) - 1
INT63_MAX = (1 << 63) - 1

LEVEL_OLDEST = 1
"""The feature level of a cluster of single nodes: what the first commands can say."""

LEVEL_NEWEST = 5
"""The highest feature level that this software knows (docs/formats/commands.md)."""

LEVEL_EPOCH_FLOOR = 4
"""From this feature level on, new partitions begin above the epochs of deleted topics."""

LEVEL_MAINTENANCE = 5
"""From this feature level on, the image can hold a maintenance lock."""

MAINTENANCE_OWNER_LENGTH_MAX = 255
MAINTENANCE_LIFETIME_MS_MAX = 3_600_000
TIMESTAMP_MS_MAX = 253_402_214_400_000
"""The last day of the year 9999: times of locks have four digits for the year."""

EPOCH_FLOOR_MAX = 1 << 30
"""The highest first leader epoch of a partition: as many are left for the changes of its leader."""

OUTCOMES_REMEMBERED = 1_000
"""Commands that are recognised when they come again, in a cluster of level 1."""

OUTCOMES_REMEMBERED_LEVEL_2 = 10_000
"""The same from level 2 on."""


def outcomes_remembered(level: int) -> int:
    """Return how many commands are recognised when they come again."""
    return OUTCOMES_REMEMBERED if level < 2 else OUTCOMES_REMEMBERED_LEVEL_2
