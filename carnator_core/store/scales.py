"""Scale files: how far apart the short probes of unlike prompts were, for one model and setting each; see teaching.py.

``scales/<setting>.json`` holds the distances with a seal, a digest over all else. A file is written to staging, synced
and put in place in one step, so that a kill at any instant leaves the old one or the new one.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ..identity import digest
from ..scale import MAX_PAIRS, PAIRS_NEEDED, Scale
from .checks import is_number, optional
from .disk import Disk, by_age, is_unused, remove_file

log = logging.getLogger("carnator")

FOLDER, SUFFIX, SCHEMA = "scales", ".json", 1
KEPT = 64  # those used last; some 2 KB each
MAX_BYTES = 16 << 10


def _is_distance(value: Any) -> bool:
    return is_number(value) and value > 0.0


_CHECKS = {
    "representation": _is_distance,
    "residual": optional(_is_distance),
    "dynamics": optional(_is_distance),
    "state": _is_distance,
    "region": _is_distance,
}


def _checked(distances: Any) -> list[Scale]:
    """Raises ValueError for what no scale can be made of."""
    if not isinstance(distances, list) or not PAIRS_NEEDED <= len(distances) <= MAX_PAIRS:
        raise ValueError(f"it does not hold {PAIRS_NEEDED} to {MAX_PAIRS} distances")
    if not all(isinstance(found, dict) and found.keys() == _CHECKS.keys() for found in distances):
        raise ValueError("a distance has other families")
    if len({tuple(value is None for value in found.values()) for found in distances}) > 1:
        raise ValueError("its distances have different families")
    if not all(check(found[name]) for found in distances for name, check in _CHECKS.items()):
        raise ValueError("a distance is no finite number above 0")
    return [Scale(**found) for found in distances]


def _parsed(contents: bytes, setting: str) -> list[Scale]:
    """The distances of a file. Raises ValueError for everything that is not as it was written."""
    if len(contents) > MAX_BYTES:
        raise ValueError("it is too large")
    try:
        data = json.loads(contents)
        as_written = data.pop("seal") == digest(data)
    except (ValueError, RecursionError, AttributeError, TypeError, KeyError) as error:
        raise ValueError("it is no JSON with a seal") from error
    if data.get("schema") != SCHEMA:
        raise ValueError("it has another schema version")
    if not as_written:
        raise ValueError("it was changed")
    if data.get("setting") != setting:
        raise ValueError("it belongs to another setting")
    return _checked(data.get("distances"))


class ScaleFiles:
    """The scale files of a store, each named by the digest of its model and setting (``scale.setting_of``)."""

    def __init__(self, disk: Disk):
        self._disk = disk
        self._folder = disk.base / FOLDER

    def _path(self, setting: str) -> Path:
        return self._folder / f"{setting}{SUFFIX}"

    def read(self, setting: str) -> list[Scale] | None:
        """Distances of pairs, 8 to 16 of them, or None if none are known; a damaged file is set aside."""
        path = self._path(setting)
        try:
            with open(path, "rb") as file:
                contents = file.read(MAX_BYTES + 1)
        except FileNotFoundError:
            return None
        except OSError as error:
            log.warning("Carnator: scale %s was not read: %s", setting, error.strerror or error)
            return None
        try:
            found = _parsed(contents, setting)
        except ValueError as error:
            log.warning("Carnator: scale %s set aside: %s", setting, error)
            with suppress(OSError):
                self._disk.set_files_aside(FOLDER, [f"{FOLDER}/{path.name}"])
            return None
        with suppress(OSError):  # a mark of use, by which the oldest go first
            os.utime(path)
        return found

    def write(self, setting: str, distances: Sequence[Scale]) -> None:
        """Keep the distances of pairs, in place of earlier ones. Raises OSError, and ValueError for what is none."""
        path, listed = self._path(setting), [asdict(found) for found in distances]
        _checked(listed)
        data = {"schema": SCHEMA, "setting": setting, "distances": listed}
        self._folder.mkdir(exist_ok=True)
        with self._disk.staging_folder() as staging:
            with open(staging / path.name, "xb") as file:
                file.write(json.dumps({**data, "seal": digest(data)}, indent=1).encode())
                file.flush()
                os.fsync(file.fileno())
            self._disk.put(staging / path.name, f"{FOLDER}/{path.name}")
        others = [other for _, other in self._by_age() if other != path]
        for unused in others[: max(0, len(others) + 1 - KEPT)]:
            remove_file(unused)

    def drop_unused(self, unused_seconds: float) -> None:
        """Delete those that were not used for so long."""
        for used, path in self._by_age():
            if is_unused(used, unused_seconds):
                remove_file(path)

    def _by_age(self) -> list[tuple[float, Path]]:
        return [(used, path) for used, path in by_age(self._folder) if path.suffix == SUFFIX]
