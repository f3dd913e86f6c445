"""Damage to a file that is taken back."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def overwritten(path: Path, where: float, value: bytes) -> Iterator[None]:
    """Some bytes are others; ``where`` from 0, at the beginning, to 1, at the end."""
    good = path.read_bytes()
    at = int(where * (len(good) - len(value)))
    path.write_bytes(good[:at] + value + good[at + len(value) :])
    try:
        yield
    finally:
        path.write_bytes(good)
