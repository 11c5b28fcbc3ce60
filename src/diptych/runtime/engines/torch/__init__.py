"""The engine that computes real models with PyTorch: Llama and Qwen checkpoints, paged KV, batches of unlike lengths."""
