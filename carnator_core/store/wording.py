"""Counts and sizes as people read them."""

from __future__ import annotations

UNITS = ("B", "kB", "MB", "GB")


def counted(number: int, one: str, many: str) -> str:
    return f"{number} {one if number == 1 else many}"


def size_text(size: float) -> str:
    """Bytes in their largest unit, as in the panel: 4.3 MB, 12 GB."""
    unit = 0
    while size >= 999.5 and unit < len(UNITS) - 1:
        size, unit = size / 1000, unit + 1
    return f"{size:.{1 if unit > 1 and size < 9.95 else 0}f} {UNITS[unit]}"
