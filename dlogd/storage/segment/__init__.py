"""One segment: file, tail, indexes, checks."""
