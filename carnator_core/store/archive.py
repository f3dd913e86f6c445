"""One entry as one file: a zip archive without compression whose members are ``<id>/<file of an entry>``.

Nothing in an archive is believed: names must be the known ones, sizes are bounded before anything is written, and the
entry is checked to the last byte before it takes its place in the store.
"""

from __future__ import annotations

import os
import shutil
import zipfile
from pathlib import Path

from .entry import (
    CONNECTIVITY_FILE,
    MAX_PREVIEW_BYTES,
    PREVIEW_FILE,
    SIGNATURE_FILE,
    TRAJECTORY_FILE,
    EntryInfo,
    checked_id,
    is_preview,
    verify_entry,
)
from .folder import GB, Store
from .tensor_file import EntryError

NEEDED = {SIGNATURE_FILE, TRAJECTORY_FILE}
OPTIONAL = {CONNECTIVITY_FILE, PREVIEW_FILE}


def export_entry(store: Store, entry_id: str, target: Path) -> None:
    """Write an entry, checked before, to a new file. Raises EntryError, and OSError also if the file exists."""
    folder = store.disk.folder(entry_id)
    verify_entry(folder)
    made = False
    try:
        with open(target, "xb") as file:
            made = True
            with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
                for name in sorted(NEEDED | OPTIONAL):
                    if name in NEEDED or (folder / name).exists():
                        archive.write(folder / name, f"{entry_id}/{name}")
            file.flush()
            os.fsync(file.fileno())
    except BaseException:
        if made:
            Path(target).unlink(missing_ok=True)
        raise


def import_entry(store: Store, source: Path) -> EntryInfo:
    """Take an exported entry into the store. Raises EntryError, and OSError."""
    try:
        with zipfile.ZipFile(source) as archive, store.disk.staging_folder() as staging:
            entry_id, members = _members(archive, store.options.budget_gb * GB)
            folder = staging / entry_id
            folder.mkdir()
            for name, member in members.items():
                _extract(archive, member, folder / name)
            if PREVIEW_FILE in members and not is_preview((folder / PREVIEW_FILE).read_bytes()):
                raise EntryError("the preview is no small JPEG")
            return store.admit(folder)
    except (zipfile.BadZipFile, NotImplementedError, RuntimeError, EOFError, ValueError) as error:
        raise EntryError(f"{source} is no archive of an entry: {error}") from error


def _members(archive: zipfile.ZipFile, budget: float) -> tuple[str, dict[str, zipfile.ZipInfo]]:
    """Id and members by file name, if they are what an export writes."""
    entry_id = checked_id(next(iter(archive.namelist()), "").partition("/")[0])
    found: dict[str, zipfile.ZipInfo] = {}
    for member in archive.infolist():
        folder, _, name = member.filename.partition("/")
        if folder != entry_id or name not in NEEDED | OPTIONAL or name in found:
            raise EntryError(f"the archive holds {member.filename!r}, which is no part of one entry")
        if member.compress_type != zipfile.ZIP_STORED or member.flag_bits & 1:
            raise EntryError(f"{member.filename} is compressed or encrypted")
        found[name] = member
    if not found.keys() >= NEEDED:
        raise EntryError("the archive does not hold a whole entry")
    if sum(member.file_size for member in found.values()) > budget:
        raise EntryError("the entry is larger than the budget of the store")
    if PREVIEW_FILE in found and found[PREVIEW_FILE].file_size > MAX_PREVIEW_BYTES:
        raise EntryError("the preview is too large")
    return entry_id, found


def _extract(archive: zipfile.ZipFile, member: zipfile.ZipInfo, target: Path) -> None:
    with archive.open(member) as source, open(target, "xb") as file:
        shutil.copyfileobj(source, file, 1 << 20)
        file.flush()
        os.fsync(file.fileno())
