"""Golden bytes of every format (docs/formats)."""
