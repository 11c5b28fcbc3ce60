"""Connections between workers: frames of KV and messages over Unix sockets or TCP, in blocking threads."""
