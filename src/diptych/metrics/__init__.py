"""What is promised and observed; the same shape simulated or real."""
