"""The real driver: engines, workers, the KV handoff between them, and the gateway before them. It obeys `serving`'s rules."""
