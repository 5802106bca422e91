"""The state machine: how commands change the image."""
