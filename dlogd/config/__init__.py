"""A node's configuration: keys, sections, loading, the sample file."""
