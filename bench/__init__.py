"""Load programs, the peers that dlogd is measured beside, and the rows of the table."""
