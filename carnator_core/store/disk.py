"""The folders of a store and the renames that make every change to them all or nothing.

``entries/<id>/`` holds complete entries only, ``staging/`` what is being written or deleted, ``quarantine/`` what
failed a check. Writing makes and syncs a folder in staging and renames it into entries; deleting renames it back first.
Files that belong to no single entry are synced in staging too and then put in the place of the old ones.
"""

from __future__ import annotations

import errno
import logging
import os
import shutil
import time
import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from .entry import PIN_FILE, SIGNATURE_FILE, TRAJECTORY_FILE, checked_id, is_id

log = logging.getLogger("carnator")

ENTRIES = "entries"
KEPT_IN_QUARANTINE = 8
QUARANTINE_BYTES = 1_000_000_000
STALE_SECONDS = 3600


class Disk:
    """Raises OSError where the folders cannot be made."""

    def __init__(self, base: Path):
        self.base = base
        self.entries, self._staging, self._quarantine = (base / part for part in (ENTRIES, "staging", "quarantine"))
        for folder in (self.entries, self._staging, self._quarantine):
            folder.mkdir(parents=True, exist_ok=True)
        self.clean_up()

    def folder(self, entry_id: str) -> Path:
        """Where an entry lies or would lie. Raises EntryError for a name that is no plain id."""
        return self.entries / checked_id(entry_id)

    @property
    def changed(self) -> int:
        """A number that changes when entries come or go. Raises FileNotFoundError."""
        return self.entries.stat().st_mtime_ns

    def names(self) -> set[str]:
        """Of what lies among the entries and may be one. Raises FileNotFoundError."""
        return set(filter(is_id, os.listdir(self.entries)))

    def is_entry(self, name: str) -> bool:
        """Whether a folder holds a file of an entry, good or bad; what others put there is left alone."""
        return any((self.entries / name / file).exists() for file in (SIGNATURE_FILE, TRAJECTORY_FILE))

    def is_pinned(self, entry_id: str) -> bool:
        return (self.folder(entry_id) / PIN_FILE).exists()

    def set_pinned(self, entry_id: str, pinned: bool) -> None:
        """Raises FileNotFoundError if there is no such entry."""
        if pinned:
            (self.folder(entry_id) / PIN_FILE).touch()
        else:
            (self.folder(entry_id) / PIN_FILE).unlink(missing_ok=True)

    @property
    def free_bytes(self) -> int:
        return shutil.disk_usage(self.entries).free

    @contextmanager
    def staging_folder(self) -> Iterator[Path]:
        """A new folder on the disk of the store; what is left in it is deleted afterwards."""
        folder = self._staging / uuid.uuid4().hex
        folder.mkdir()
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def place(self, folder: Path, entry_id: str) -> None:
        """Make a complete, synced folder in staging an entry.

        Raises FileExistsError if there is one already, and OSError.
        """
        try:
            os.rename(folder, self.folder(entry_id))
        except OSError as error:
            if error.errno != errno.ENOTEMPTY:  # POSIX's second name for it
                raise
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(self.folder(entry_id))) from error
        sync_folder(self.entries)

    def remove(self, entry_id: str) -> bool:
        """Delete an entry; at no instant is a part of it left among the entries. Returns whether it was there."""
        away = self._staging / uuid.uuid4().hex
        try:
            os.rename(self.folder(entry_id), away)
        except OSError:
            return False
        shutil.rmtree(away, ignore_errors=True)
        return True

    def set_aside(self, name: str) -> None:
        """Move something that lies among the entries into quarantine."""
        try:
            os.rename(self.entries / name, self._quarantine / f"{name}-{uuid.uuid4().hex[:8]}")
        except OSError:
            log.debug("%s vanished before it could be set aside", name)
        self.clean_up()

    def set_files_aside(self, label: str, names: Iterable[str]) -> None:
        """Move files of the store itself into quarantine."""
        aside = self._quarantine / f"{label}-{uuid.uuid4().hex[:8]}"
        aside.mkdir()
        for name in names:
            if (self.base / name).exists():
                os.rename(self.base / name, aside / Path(name).name)
        self.clean_up()

    def put(self, file: Path, name: str) -> None:
        """Make a complete, synced file in staging one of the store itself, in place of an earlier one."""
        target = self.base / name
        os.replace(file, target)
        sync_folder(target.parent)

    def clean_up(self) -> None:
        """Drop what a killed process left in staging, and all but the newest of the quarantine."""
        now = time.time()
        gone = [path for made, path in by_age(self._staging) if now - made > STALE_SECONDS]
        room = QUARANTINE_BYTES
        for place, (_, path) in enumerate(reversed(by_age(self._quarantine))):
            room -= folder_bytes(path)
            if place >= KEPT_IN_QUARANTINE or room < 0:
                gone.append(path)
        for path in gone:
            shutil.rmtree(path, ignore_errors=True)


def folder_bytes(folder: Path) -> int:
    """Of the files in a folder, as far as they can be read."""
    total = 0
    for file in _listed(folder):
        try:
            total += file.stat().st_size
        except OSError:
            continue
    return total


def file_bytes(path: Path) -> int:
    """0 for a file that cannot be seen."""
    try:
        return path.stat().st_size
    except OSError:
        return 0


def remove_file(path: Path) -> bool:
    """Whether it was there and is gone now."""
    try:
        path.unlink()
    except OSError:
        return False
    return True


def by_age(folder: Path) -> list[tuple[float, Path]]:
    """Times and paths of what lies in a folder, oldest first; it may vanish under us."""
    found = []
    for item in _listed(folder):
        try:
            found.append((item.stat().st_mtime, Path(item.path)))
        except OSError:
            continue
    return sorted(found)


def is_unused(used: float, seconds: float) -> bool:
    """Whether a last use is so long ago; one of a computer whose clock is ahead was just now."""
    return max(0.0, time.time() - used) >= seconds


def _listed(folder: Path) -> list[os.DirEntry]:
    try:
        return list(os.scandir(folder))
    except OSError:
        return []


def sync_folder(folder: Path) -> None:
    """Make a rename durable where the platform can sync a directory (not on Windows)."""
    if os.name == "posix":
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
