"""A cluster as operators see it: health, risks, replicas, names."""
