"""A cluster on one machine's loopback, for laptops, demos and tests."""
