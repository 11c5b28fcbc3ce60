"""How long it takes: one step of one worker, a transfer, a queue."""
