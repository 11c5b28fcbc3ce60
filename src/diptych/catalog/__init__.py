"""What exists: accelerators, links, memory tiers, models, prices. Each number with its source."""
