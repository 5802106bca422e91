"""The log of one partition: appends, reads, truncation, recovery, retention."""
