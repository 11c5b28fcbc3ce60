"""Others' engines from the outside: reading launch commands and manifests, and writing them."""
