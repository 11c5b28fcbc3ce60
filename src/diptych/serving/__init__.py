"""Rules that both worlds obey: events in, effects out. No clock, no I/O, no randomness; any driver can follow them."""
