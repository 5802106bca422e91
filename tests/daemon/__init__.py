"""The daemon as a process: signals, exit codes, logs, pages."""
