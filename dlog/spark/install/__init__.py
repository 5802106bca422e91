"""What executors need: shipping dlog to them, and what is missing there."""
