"""Plan LLM inference whose prefill and decode run on different accelerators."""
