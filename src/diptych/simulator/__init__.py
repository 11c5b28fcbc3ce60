"""The virtual driver: the rules of `serving` carried out in integer picoseconds, with durations from `perf`."""
