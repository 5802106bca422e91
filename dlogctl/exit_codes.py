"""The exit codes of dlogctl, the same for every command."""

OK = 0
FAILURE = 1  # any error that has no code of its own
UNREACHABLE = 2  # no node of the cluster answers
UNHEALTHY = 10  # `status` reached the cluster and something is wrong, or others work on it
USAGE = 64  # sysexits.h EX_USAGE
