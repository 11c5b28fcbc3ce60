"""KV below device memory: in host memory, on a disk, in another process. What is kept where is `serving.residency`'s to say."""
