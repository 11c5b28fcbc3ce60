"""What crosses from prefill to decode: a description of KV that means the same on both sides, and what a pair can do with it."""
