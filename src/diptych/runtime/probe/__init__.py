"""The rooms of a probe: workers asked directly, as a gateway asks them, to see how long they take."""
