"""Settings of a topic for the log and the appends of its partitions. Pure."""

from dlogd.config.schema import Config
from dlogd.metadata.state.effective_configs import EffectiveTopicConfig, TimestampType
from dlogd.replication.partition.batch_validation import PartitionSettings
from dlogd.storage.log.log_config import LogConfig


def log_config_of(effective: EffectiveTopicConfig, config: Config) -> LogConfig:
    """Return how the log of a topic with these configs is kept on this node."""
    return LogConfig(
        segment_bytes=effective.segment_bytes,
        segment_ms=effective.segment_ms,
        index_interval_bytes=effective.index_interval_bytes,
        preallocate_bytes=effective.preallocate_bytes,
        flush_policy=effective.flush_policy,
        flush_interval_ms=effective.flush_interval_ms,
        direct_io=config.direct_io,
        retention_ms=effective.retention_ms,
        retention_bytes=effective.retention_bytes,
        max_message_bytes=effective.max_message_bytes,
    )


def settings_of(effective: EffectiveTopicConfig) -> PartitionSettings:
    """Return what these configs mean for appends."""
    return PartitionSettings(
        batch_bytes_max=effective.max_message_bytes,
        acks_floor=effective.ack_floor.acks,
        stamps_append_time=effective.timestamp_type is TimestampType.LOG_APPEND_TIME,
        timestamp_before_ms_max=effective.timestamp_before_max_ms,
        timestamp_after_ms_max=effective.timestamp_after_max_ms,
        opens_compressed=effective.opens_compressed,
        leader_throttled=effective.leader_throttled,
        follower_throttled=effective.follower_throttled,
        replica_lag_ms_max=effective.replica_lag_time_max_ms,
    )
