"""Donors on disk: one folder per entry, safetensors only, written atomically."""
