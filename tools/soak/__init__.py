"""Soak test: hostile and damaged inputs, interrupted runs, a flooded server. `python tools/soak --help`."""
