"""Measurements. Each one checks its own correctness before it prints, and writes JSON under ``results/``."""
