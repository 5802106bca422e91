"""Archives in folders: manifests, batches, checks."""
