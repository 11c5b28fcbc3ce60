"""A fleet on one machine: what each process is told, and the supervisor that starts, watches, restarts and ends them."""
