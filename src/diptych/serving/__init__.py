"""Rules that both worlds obey: events in, effects out. No clock, no I/O, no randomness; the simulator and a real driver share them."""
