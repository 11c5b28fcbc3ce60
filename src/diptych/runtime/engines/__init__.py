"""Engines: what computes tokens from tokens, and keeps KV in blocks that others may read and fill."""
