"""Checks of what a line of a log says before it is believed: files are open to everybody's editor."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from .entry import LATEST, is_id

MAX_TEXT = 1000
MAX_FIELDS = 200

Check = Callable[[Any], bool]
Made = TypeVar("Made")


def is_name(value: Any) -> bool:
    """Of an entry, a decision or a verdict."""
    return isinstance(value, str) and is_id(value)


def is_text(value: Any) -> bool:
    return isinstance(value, str) and len(value) <= MAX_TEXT


def is_bool(value: Any) -> bool:
    return isinstance(value, bool)


def is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < 1e300 and value == value


def is_time(value: Any) -> bool:
    """Seconds since the epoch that a date can name."""
    return is_number(value) and 0.0 <= value <= LATEST


def one_of(*values: str) -> Check:
    return lambda value: isinstance(value, str) and value in values


def optional(check: Check) -> Check:
    return lambda value: value is None or check(value)


def map_of(check: Check) -> Check:
    """A small object whose values all pass a check."""

    def passes(value: Any) -> bool:
        small = isinstance(value, dict) and len(value) <= MAX_FIELDS
        return small and all(map(is_text, value)) and all(map(check, value.values()))

    return passes


def is_plain(value: Any) -> bool:
    return value is None or is_bool(value) or is_number(value) or is_text(value)


def made(kind: type[Made], data: Mapping[str, Any], checks: Mapping[str, Check]) -> Made:
    """An object of a dataclass from the checked fields of a line; fields that no check names are left out.

    Raises ValueError for a field that fails its check; one that is absent, as in a line of an earlier version, has its
    default, and without one counts as None.
    """
    defaults = {f.name: f.default for f in dataclasses.fields(kind) if f.default is not dataclasses.MISSING}
    values = {name: data.get(name, defaults.get(name)) for name in checks}
    for name, check in checks.items():
        if not check(values[name]):
            raise ValueError(f"{name} is not as it was written")
    return kind(**values)


def clipped(text: str) -> str:
    return text if len(text) <= MAX_TEXT else text[: MAX_TEXT - 3] + "..."


def finite(values: Mapping[str, Any]) -> dict[str, Any]:
    """A copy in which numbers that JSON has no word for are None."""
    return {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in values.items()}
