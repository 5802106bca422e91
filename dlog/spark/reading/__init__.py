"""Batch and streaming reads: planners on the driver, tasks on executors."""
