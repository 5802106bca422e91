"""One replica of a partition, as leader or follower: appends, acknowledgements, producers."""
