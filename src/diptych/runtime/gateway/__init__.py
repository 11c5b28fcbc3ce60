"""The gateway: requests in, workers chosen, tokens out exactly once."""
