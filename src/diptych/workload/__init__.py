"""What is asked: lengths and arrivals, from presets or from traces."""
