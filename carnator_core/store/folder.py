"""A folder of entries: atomic commits, a byte budget, quarantine.

Layout: ``entries/<id>/`` (complete entries only), ``staging/`` (being written), ``quarantine/`` (failed a check).
A commit writes and syncs a staging folder, then renames it: a crash leaves either no entry or a whole one.
"""

from __future__ import annotations

import logging
import os
import shutil
import time
import uuid
from pathlib import Path
from typing import TYPE_CHECKING

from ..options import StoreOptions
from ..signature import EarlySignature
from .entry import (
    SIGNATURE_FILE,
    TRAJECTORY_FILE,
    EntryError,
    EntryInfo,
    Trajectory,
    is_finite,
    read_info,
    read_signature,
    read_trajectory,
    write_entry,
)

if TYPE_CHECKING:
    from ..scale import Scale

log = logging.getLogger("carnator")

GB = 1_000_000_000
MIN_FREE_BYTES = 5 * GB
KEPT_IN_QUARANTINE = 8
STALE_SECONDS = 3600


def _is_ours(folder: Path) -> bool:
    """Whether a folder holds a file of an entry, good or bad; what others put there is left alone."""
    return (folder / SIGNATURE_FILE).exists() or (folder / TRAJECTORY_FILE).exists()


def _listed(folder: Path) -> list[os.DirEntry]:
    """Entries of a folder that may vanish under us."""
    try:
        return list(os.scandir(folder))
    except OSError:
        return []


def _folder_bytes(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.iterdir())


def _sync_folder(folder: Path) -> None:
    """Make a rename durable where the platform can sync a directory (not on Windows)."""
    if os.name == "posix":
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


class Store:
    """Entries under one root folder. Headers are kept in memory and follow the disk at every ``entries()``."""

    def __init__(self, root: Path, options: StoreOptions):
        self.options = options
        base = Path(root) / options.name
        self._entries, self._staging, self._quarantine = base / "entries", base / "staging", base / "quarantine"
        for folder in (self._entries, self._staging, self._quarantine):
            folder.mkdir(parents=True, exist_ok=True)
        self._known: dict[str, EntryInfo] = {}
        self.pair_distances: dict[tuple[str, str], Scale] = {}  # of unrelated entries; see scale.py
        self._clean_up()

    def entries(self) -> list[EntryInfo]:
        """All readable entries; a new one that fails its check is quarantined here."""
        try:
            present = {item.name for item in os.scandir(self._entries) if _is_ours(Path(item.path))}
        except OSError as error:
            log.warning("Carnator: the store cannot be read: %s", error)
            return []
        for gone in self._known.keys() - present:
            del self._known[gone]
        for name in sorted(present - self._known.keys()):
            try:
                self._known[name] = read_info(self._entries / name)
            except EntryError as error:
                self.quarantine(name, str(error))
        return list(self._known.values())

    def signature(self, entry_id: str) -> EarlySignature:
        """Raises EntryError."""
        return read_signature(self._entries / entry_id)

    def trajectory(self, entry_id: str, latent: tuple[int, ...], steps: int, checks: tuple[int, ...]) -> Trajectory:
        """Raises EntryError."""
        return read_trajectory(self._entries / entry_id, latent, steps, checks)

    def touch(self, entry_id: str) -> None:
        """Mark as used now, for eviction by least recent use."""
        try:
            os.utime(self._entries / entry_id)
        except OSError:
            log.debug("entry %s vanished before it could be marked as used", entry_id)

    def quarantine(self, entry_id: str, why: str) -> None:
        """Take an entry out of use but keep its files for inspection."""
        log.warning("Carnator: entry %s set aside: %s", entry_id, why)
        self._known.pop(entry_id, None)
        try:
            os.rename(self._entries / entry_id, self._quarantine / f"{entry_id}-{uuid.uuid4().hex[:8]}")
        except OSError:
            log.debug("entry %s vanished before it could be set aside", entry_id)

    def _clean_up(self) -> None:
        """Drop what a killed process left in staging and all but the newest folders in quarantine."""
        staged = [i.path for i in _listed(self._staging) if time.time() - i.stat().st_mtime > STALE_SECONDS]
        aside = sorted(_listed(self._quarantine), key=lambda item: item.stat().st_mtime)
        for path in staged + [item.path for item in aside[: max(0, len(aside) - KEPT_IN_QUARANTINE)]]:
            shutil.rmtree(path, ignore_errors=True)

    def commit(self, info: EntryInfo, signature: EarlySignature, trajectory: Trajectory) -> str | None:
        """Add an entry and keep the budget. Returns None, or a sentence if it was not stored."""
        final = self._entries / info.id
        if final.exists():
            self.touch(info.id)
            return None
        if not all(map(is_finite, [*signature.tensors().values(), *trajectory.tensors().values()])):
            return "not stored: the result is not finite"
        staging = self._staging / uuid.uuid4().hex
        try:
            if shutil.disk_usage(self._entries).free < MIN_FREE_BYTES:
                return "not stored: less than 5 GB are free on the disk of the store"
            staging.mkdir()
            write_entry(staging, info, signature, trajectory)
            if _folder_bytes(staging) > self.options.budget_gb * GB:
                return f"not stored: one entry is larger than the budget of {self.options.budget_gb:g} GB"
            os.rename(staging, final)
            _sync_folder(self._entries)
        except OSError as error:
            # Two equal requests at once: the other one was first.
            return None if final.exists() else f"not stored: {error.strerror or error}"
        finally:
            shutil.rmtree(staging, ignore_errors=True)
        self._known[info.id] = info
        self._keep_budget(keep=info.id)
        return None

    def _keep_budget(self, keep: str) -> None:
        """Delete least recently used entries until the budget holds, never the one just written."""
        sized = []
        for item in _listed(self._entries):
            try:
                sized.append((item.stat().st_mtime, item.name, _folder_bytes(Path(item.path))))
            except OSError:
                continue  # another process evicted it
        total = sum(size for _, _, size in sized)
        for _, name, size in sorted(sized):
            if total <= self.options.budget_gb * GB:
                return
            if name != keep:
                self._known.pop(name, None)
                shutil.rmtree(self._entries / name, ignore_errors=True)
                total -= size
