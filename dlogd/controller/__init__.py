"""The controller: who is alive, and what the cluster should do about it."""
