"""What the node counts and measures, and how Prometheus sees it."""
