"""What others' engines do: their settings as data, what they store, and the rules a prefill/decode pair must keep."""
