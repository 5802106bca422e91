"""Debian hosts with systemd and sshd on one machine: systemd-nspawn, overlayfs, namespaces."""
