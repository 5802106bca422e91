"""Installation on executors: shipping of dlog, and what is missing there."""
