"""Files and disks: engines, buffers, memory and space."""
