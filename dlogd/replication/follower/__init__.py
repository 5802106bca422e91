"""The follower's half of replication: connections to leaders and what they send."""
