"""Consensus files: what requests of one model and shape attended to on average, whatever their prompts.

``consensus/<id>.safetensors`` holds one mean mass, sealed and checked like the files of an entry. A new mean is written
to staging, synced and put in the place of the old one, so that a kill at any instant leaves one of the two.

The budget of the store bounds entries and consensus files together. Of it the consensus files may have a quarter; those
used longest ago go first, and all of them before an entry that has to stay.
"""

from __future__ import annotations

import logging
import os
import re
from contextlib import AbstractContextManager
from pathlib import Path

import torch

from ..connectivity import Consensus
from .disk import Disk, by_age, file_bytes, is_unused, remove_file
from .lock import locked
from .tensor_file import EntryError, TensorFile, is_mass, write_file

log = logging.getLogger("carnator")

FOLDER, SUFFIX, LOCK_FILE = "consensus", ".safetensors", "lock"
KEPT = 8  # those used last; at some 100 to 200 MB each for the larger models
BUDGET_SHARE = 0.25
_ID = re.compile(r"[0-9a-f]{1,64}")


def consensus_bytes(base: Path) -> int:
    """What the consensus files of the store in a folder take."""
    return sum(file_bytes(path) for _, path in by_age(base / FOLDER) if path.suffix == SUFFIX)


def read_consensus(path: Path) -> Consensus:
    """Raises EntryError."""
    with TensorFile(path, owner=path.stem) as file:
        block, count = file.header.get("block"), file.header.get("count")
        if file.names != {"mass"} or file.dtype("mass") != torch.float16:
            raise EntryError(f"{path.name} does not hold one float16 mass")
        if any(type(number) is not int or number < 1 for number in (block, count)):
            raise EntryError(f"{path.name}: header is incomplete")
        return _checked(Consensus(file.tensor("mass"), block, count))


def _checked(consensus: Consensus) -> Consensus:
    """Raises EntryError for what is no mass of [layers, heads, blocks, blocks]."""
    mass = consensus.mass
    if mass.ndim != 4 or min(mass.shape) < 1 or mass.shape[-2] != mass.shape[-1]:
        raise EntryError(f"a mass of shape {tuple(mass.shape)} is not one per layer, head and pair of blocks")
    if not is_mass(mass):
        raise EntryError("a mass is below zero or not finite")
    return consensus


class ConsensusFiles:
    """The consensus files of a store. Every method raises EntryError for an id that is no plain hex digest.

    Changes are made under a lock that also holds between processes.
    """

    def __init__(self, disk: Disk):
        self._disk = disk
        self._folder = disk.base / FOLDER

    def path(self, consensus_id: str) -> Path:
        """Where a consensus lies or would lie."""
        if not isinstance(consensus_id, str) or not _ID.fullmatch(consensus_id):
            raise EntryError(f"{consensus_id!r} is not the name of a consensus")
        return self._folder / f"{consensus_id}{SUFFIX}"

    def paths(self) -> list[Path]:
        """Of all files, those used last at the end."""
        return [path for _, path in by_age(self._folder) if path.suffix == SUFFIX]

    def read(self, consensus_id: str) -> Consensus | None:
        """A consensus, marked as used, or None if there is none; a damaged one is set aside. Raises OSError."""
        path = self.path(consensus_id)
        if not path.exists():
            return None
        with self._locked():
            return self._read(path)

    def add(self, consensus_id: str, mass: torch.Tensor, block: int) -> None:
        """Fold the mass of one request into a consensus, or begin a new one.

        Args:
            mass: [layers, heads, blocks, blocks] float; another shape than that of the consensus begins it anew.
            block: tokens per block; another one than that of the consensus begins it anew.
        Raises OSError, and EntryError for a mass that is none.
        """
        path, mass = self.path(consensus_id), mass.detach().float().cpu()
        new = _checked(Consensus.of(mass, block))
        self._folder.mkdir(exist_ok=True)
        with self._locked():
            old = self._read(path)
            if old is not None and old.block == block and old.mass.shape == mass.shape:
                new = old.with_request(mass)
            with self._disk.staging_folder() as staging:
                header = {"id": consensus_id, "block": new.block, "count": new.count}
                write_file(staging / path.name, {"mass": new.mass}, header)
                self._disk.put(staging / path.name, f"{FOLDER}/{path.name}")

    @property
    def bytes(self) -> int:
        return consensus_bytes(self._disk.base)

    def keep_within(self, room: float, newest: str | None = None) -> None:
        """Delete what goes beyond ``room`` bytes or is one too many, those used last kept first.

        Args:
            newest: kept before all others, whatever the clock says.
        """
        used = kept = 0
        last_used_last = sorted(self.paths(), key=lambda path: path.stem == newest)
        for path in last_used_last[::-1]:
            size = file_bytes(path)
            if kept < KEPT and used + size <= room:
                used, kept = used + size, kept + 1
            else:
                remove_file(path)

    def drop_unused(self, seconds: float, dry: bool) -> list[int]:
        """Delete those that were not used for so long, or only tell; their sizes in bytes."""
        old = [path for used, path in by_age(self._folder) if path.suffix == SUFFIX and is_unused(used, seconds)]
        return [size for path, size in [(path, file_bytes(path)) for path in old] if dry or remove_file(path)]

    def _read(self, path: Path) -> Consensus | None:
        try:
            found = read_consensus(path)
            os.utime(path)
        except EntryError as error:
            if path.exists():
                log.warning("Carnator: consensus %s set aside: %s", path.stem, error)
                self._disk.set_files_aside(FOLDER, [f"{FOLDER}/{path.name}"])
            return None
        return found

    def _locked(self) -> AbstractContextManager[None]:
        return locked(self._folder / LOCK_FILE, "the consensus files")
