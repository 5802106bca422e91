"""Bytes in and out of sockets: admission, frames, replies. Below all who serve or ask."""
