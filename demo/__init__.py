"""The demo world: synthetic videos, a prompt grammar, tiny Wan weights trained on them, and a scorer."""
