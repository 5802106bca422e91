"""The bundle: one file with which dlog is installed on a host that has python3 and no network."""
