"""The exit codes of dlogctl, the same for every command."""

OK = 0
FAILURE = 1  # any error that has no code of its own
UNREACHABLE = 2  # no node of the cluster answers, or it has no such node, or not on that host
UNHEALTHY = 10  # the cluster answers and something is wrong or not possible now, or others work
USAGE = 64  # sysexits.h EX_USAGE
