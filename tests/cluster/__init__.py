"""Several real processes that belong together."""
