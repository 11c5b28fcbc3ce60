"""Everything needed to start a design on someone else's engine, as text by file name."""
