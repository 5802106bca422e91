"""The cluster's state: image, commands, machine, and the log that keeps them."""
