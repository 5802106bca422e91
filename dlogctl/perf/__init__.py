"""Load for `dlogctl perf`: schedule, measurement, report."""
