"""The inside of consumers: fetch plans, positions, fetched batches."""
