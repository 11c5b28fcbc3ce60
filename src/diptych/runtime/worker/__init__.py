"""One worker: an engine thread with its batch, blocks and handoffs, and the control socket that a gateway speaks to."""
