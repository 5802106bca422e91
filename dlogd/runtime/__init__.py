"""The process and its host: time, tasks, log lines, systemd, memory."""
