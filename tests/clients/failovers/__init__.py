"""Clients that write and read while the leaders of their partitions are killed, one by one."""
