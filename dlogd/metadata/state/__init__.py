"""The image of the metadata: its values, configs and encoding."""
