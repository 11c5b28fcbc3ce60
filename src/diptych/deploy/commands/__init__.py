"""Launch commands and shell scripts as people write them, read without running anything."""
