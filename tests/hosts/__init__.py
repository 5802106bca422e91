"""Tests on real hosts in the small: systemd, sshd, disks."""
