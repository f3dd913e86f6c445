"""A store: entries on disk, their catalog, their texts in memory, and one background writer.

The folder of entries is the truth. Catalog and memory follow it before every recall, so that several processes and
people with a file manager may work on the same store.
"""

from __future__ import annotations

import logging
import threading
import time
from functools import partial
from pathlib import Path

import torch

from ..connectivity import Connectivity, Consensus
from ..identity import HardKey
from ..options import StoreOptions
from ..recall import Candidate, Recalled, TextIndex
from ..scale import Scale
from ..signature import EarlySignature
from . import catalog as catalogs
from .catalog import Catalog, CatalogDamaged, CatalogError, Usage
from .consensus import BUDGET_SHARE, ConsensusFiles
from .disk import Disk, folder_bytes, is_unused
from .entry import (
    SIGNATURE_FILE,
    Entry,
    EntryInfo,
    StoredTrajectory,
    open_trajectory,
    read_connectivity,
    read_info,
    read_signature,
    verify_entry,
    write_entry,
)
from .eviction import Purged, victims
from .history import History
from .scales import ScaleFiles
from .tensor_file import EntryError, EntryGone, is_finite
from .verdicts import VerdictLog
from .writer import Writer

log = logging.getLogger("carnator")

GB = 1_000_000_000
MIN_FREE_BYTES = 5 * GB


class Store:
    """The entries under one root and name. Thread-safe. Raises OSError if folder or catalog cannot be used."""

    def __init__(self, root: Path, options: StoreOptions):
        self.options = options
        self.disk = Disk(Path(root) / options.name)
        self.consensuses, self.scales = ConsensusFiles(self.disk), ScaleFiles(self.disk)
        self.history, self.verdicts = History(self.disk.base), VerdictLog(self.disk.base)
        self._lock = threading.RLock()
        self._writer = Writer()
        self._leases: list[str] = []
        self._trouble: str | None = None
        self._index, self._revision = TextIndex(), None
        self.pair_distances: dict[tuple[str, str], Scale] = {}  # of unrelated entries; see scale.py
        try:
            self._catalog = Catalog(self.disk.base)
        except CatalogDamaged as error:
            self._new_catalog(error)
        self._refresh()

    def close(self) -> None:
        """Finish pending writes and let go of the catalog."""
        self.wait()
        with self._lock:
            self._catalog.close()

    def __deepcopy__(self, memo: dict) -> Store:
        """There is one per process: a copy of whatever refers to it refers to it too."""
        return self

    @property
    def in_place(self) -> bool:
        """False once somebody deleted or replaced the store's folder or its catalog."""
        return self._catalog.in_place and self.disk.entries.is_dir()

    # -- what is there ---------------------------------------------------------------------------------------------

    def entries(self) -> list[EntryInfo]:
        """All entries by id, pending writes included; a new one that fails its check is quarantined here."""
        self.wait()
        with self._lock:
            self._refresh()
            return self._index.infos

    def texts(self) -> list[tuple[EntryInfo, torch.Tensor]]:
        """All entries with their text embeddings [D] float32, by id, pending writes included."""
        self.wait()
        with self._lock:
            self._refresh()
            return self._index.texts

    def find(self, entry_id: str, embedding: torch.Tensor) -> Candidate | None:
        """One entry by name, of any key, with the similarity of its text to ``embedding`` [D]."""
        for info, text in self.texts():
            if info.id == entry_id:
                return Candidate(info, float(text @ embedding) if text.shape == embedding.shape else 0.0)
        return None

    def recall(self, key: HardKey, embedding: torch.Tensor, count: int, same_text: str) -> Recalled:
        """The ``count`` entries of a key with the most similar texts, pending writes included.

        Args:
            embedding: [D] float32 on the CPU, unit length.
            same_text: id of the entry of exactly this request, if there is one.
        """
        self.wait()
        with self._lock:
            self._refresh()
            trouble, self._trouble = self._trouble, None
            same_key = self._index.of_key(key, embedding, count, same_text)
            nearest = None if same_key else self._index.nearest(embedding, key)
            return Recalled(same_key, nearest, trouble, self._index.count(key))

    def other_seeds(self, key: HardKey, embedding: torch.Tensor, count: int) -> list[Candidate]:
        """Like ``recall``: the entries whose key differs in the seed alone and that name their seed."""
        self.wait()
        with self._lock:
            self._refresh()
            return self._index.of_other_seeds(key, embedding, count)

    def usage(self) -> list[Usage]:
        """Sizes and counts of all entries. Raises CatalogError."""
        self.wait()
        with self._lock:
            self._refresh()
            return self._catalog.usage()

    def check_catalog(self) -> str | None:
        """What SQLite's own full check of the catalog finds wrong, or None. Raises CatalogError."""
        with self._lock:
            return self._catalog.check()

    def _refresh(self) -> None:
        """Bring catalog and memory to what lies in the folder, if anything changed. Raises CatalogError."""
        try:
            self._follow()
        except CatalogDamaged as error:
            self._catalog.close()
            self._new_catalog(error)
            self._follow()

    def _follow(self) -> None:
        try:
            revision = self.disk.changed, self._catalog.revision  # first: later changes are seen the next time
            if revision == self._revision:
                return
            listed = self._catalog.ids()  # before the names: an id that is listed but has no folder then is gone
            present = self.disk.names()
        except FileNotFoundError:
            listed, present, revision = set(), set(), None
        self._index.remove(self._index.ids - present)
        self._index.add(self._catalog.load((listed & present) - self._index.ids))
        unknown = filter(self.disk.is_entry, sorted(present - listed))
        found = [item for item in map(self._read, unknown) if item is not None]
        self._index.add((info, embedding) for info, embedding, _, _ in found)
        try:
            self._catalog.drop(listed - present)
            self._catalog.enter(found)
            self._revision = revision
        except CatalogDamaged:
            raise
        except CatalogError as error:  # a full disk, for one; memory is right, and the next time tries again
            log.warning("Carnator: %s", error)

    def _read(self, name: str) -> tuple[EntryInfo, torch.Tensor, int, bool] | None:
        try:
            folder = self.disk.folder(name)
            info, embedding = read_info(folder)
            return info, embedding, folder_bytes(folder), self.disk.is_pinned(name)
        except EntryGone:
            return None
        except EntryError as error:
            self._trouble = str(error)
            self.quarantine(name, str(error))
            return None

    def _new_catalog(self, error: CatalogDamaged) -> None:
        log.warning("Carnator: %s; it is made anew from the entries", error)
        self.disk.set_files_aside("catalog", catalogs.FILES)
        self._catalog = Catalog(self.disk.base)
        self._index, self._revision = TextIndex(), None

    # -- use of an entry -------------------------------------------------------------------------------------------

    def signature(self, entry_id: str) -> EarlySignature:
        """Raises EntryError, also if the file names another key than the catalog."""
        info, signature = read_signature(self.disk.folder(entry_id))
        with self._lock:
            listed = self._index.info(entry_id)
        if listed is not None and listed.key != info.key:
            raise EntryError(f"{SIGNATURE_FILE} is of another kind of request than the catalog says")
        return signature

    def trajectory(
        self, entry_id: str, latent: tuple[int, ...], steps: int, checks: tuple[int, ...]
    ) -> StoredTrajectory:
        """A trajectory to be read step by step; until it is closed this process does not delete the entry.

        Raises EntryError.
        """
        folder = self.disk.folder(entry_id)
        self._leases.append(entry_id)  # list operations are atomic: a lease may end in any thread
        end_lease = partial(self._leases.remove, entry_id)
        try:
            return open_trajectory(folder, latent, steps, checks, end_lease)
        except BaseException:
            end_lease()
            raise

    def connectivity(self, entry_id: str) -> Connectivity | None:
        """What an entry's dense run attended to, or None if the entry does not say. Raises EntryError."""
        return read_connectivity(self.disk.folder(entry_id))

    def consensus(self, consensus_id: str) -> Consensus | None:
        """The mean mass of the requests of one model and shape, pending writes included, if there is a good one."""
        self.wait()
        try:
            return self.consensuses.read(consensus_id)
        except OSError as error:
            log.warning("Carnator: the consensus was not read: %s", error)
            return None

    def note_hit(self, entry_id: str, seconds_saved: float) -> None:
        """Count a hit for the entry's benefit."""
        self._count(entry_id, 1, seconds_saved)

    def _count(self, entry_id: str, hits: int, seconds_saved: float) -> None:
        self.wait()  # the entry may still be on its way into the catalog
        try:
            with self._lock:
                self._catalog.count_use(entry_id, hits, seconds_saved)
        except CatalogError as error:
            log.warning("Carnator: %s", error)

    def set_pinned(self, entry_id: str, pinned: bool) -> None:
        """A pinned entry is deleted by name only. Raises EntryError and OSError."""
        if not self.disk.is_entry(self.disk.folder(entry_id).name):
            raise EntryGone(f"there is no entry {entry_id}")
        with self._lock:
            self.disk.set_pinned(entry_id, pinned)
            self._refresh()
            self._catalog.set_pinned(entry_id, pinned)

    # -- writing ---------------------------------------------------------------------------------------------------

    def commit(self, entry: Entry, mass: torch.Tensor | None = None, consensus_id: str | None = None) -> str | None:
        """Write an entry in the background and keep the budget; a new one also counts for its consensus.

        Args:
            mass: [layers, heads, blocks, blocks] float, in the blocks of the entry's connectivity.
            consensus_id: hex digest of the model and shape.
        Returns:
            None if the entry is being written or is there already, else a sentence. What goes wrong later is told by
            ``take_failure``.
        Raises ValueError for a mass without connectivity or id, and EntryError for names that are none.
        """
        if mass is not None:
            if entry.connectivity is None or consensus_id is None:
                raise ValueError("a mass needs the entry's connectivity and the id of its consensus")
            self.consensuses.path(consensus_id)
        size = sum(tensor.nbytes for tensor in entry.tensors())
        written = size if mass is None else size + 2 * mass.numel()
        try:
            if self.disk.folder(entry.info.id).exists():
                self._count(entry.info.id, 0, 0.0)
                return None
            if size > self.options.budget_gb * GB:
                return f"not stored: {self.too_large}"
            if self.disk.free_bytes - written < MIN_FREE_BYTES:
                return "not stored: less than 5 GB are free on the disk of the store"
        except OSError as error:
            return f"not stored: {error.strerror or error}"
        self._writer.start(partial(self._write, entry, mass, consensus_id))
        return None

    def wait(self) -> None:
        """Return when no write is pending."""
        self._writer.wait()

    def take_failure(self) -> str | None:
        """Why a background write failed, once."""
        return self._writer.take_failure()

    def _write(self, entry: Entry, mass: torch.Tensor | None, consensus_id: str | None) -> str | None:
        if not all(map(is_finite, entry.tensors())):
            return "not stored: the result is not finite"
        try:
            with self.disk.staging_folder() as staging:
                write_entry(staging, entry)
                self.disk.place(staging, entry.info.id)
        except FileExistsError:  # two equal requests at once: the other one was first, whatever became of it since
            return None
        except OSError as error:
            return f"not stored: {error.strerror or error}"
        failure = None if mass is None else self._add_to_consensus(consensus_id, mass, entry.connectivity.block)
        self._keep_budget(entry.info.id, consensus_id)
        return failure

    def _add_to_consensus(self, consensus_id: str, mass: torch.Tensor, block: int) -> str | None:
        if 2 * mass.numel() > BUDGET_SHARE * self.options.budget_gb * GB:
            return f"consensus not updated: it would take over a quarter of the {self.options.budget_gb:g} GB budget"
        try:
            self.consensuses.add(consensus_id, mass, block)
        except (OSError, EntryError) as error:
            return f"consensus not updated: {getattr(error, 'strerror', None) or error}"
        return None

    def admit(self, folder: Path) -> EntryInfo:
        """Make a folder in staging, named by its id, an entry after all of it was checked.

        Raises EntryError and OSError.
        """
        info = verify_entry(folder)
        if folder_bytes(folder) > self.options.budget_gb * GB:
            raise EntryError(self.too_large)
        try:
            self.disk.place(folder, info.id)
        except FileExistsError as error:
            raise EntryError(f"the store already holds {info.id}") from error
        self._keep_budget(info.id)
        return info

    @property
    def too_large(self) -> str:
        return f"one entry is larger than the budget of {self.options.budget_gb:g} GB"

    # -- deleting --------------------------------------------------------------------------------------------------

    def _keep_budget(self, entry_id: str, consensus_id: str | None = None) -> None:
        """Delete what exceeds the budget: of the entries those of least benefit, never the one just written or in use.

        Consensus files have at most their share of it, and less where entries that must stay leave less.
        """
        budget = self.options.budget_gb * GB
        self.consensuses.keep_within(BUDGET_SHARE * budget, consensus_id)
        try:
            with self._lock:
                self._revision = None  # the time of a folder is too coarse to tell two changes of our own apart
                self._refresh()
                protected, room = {entry_id, *self._leases}, budget - self.consensuses.bytes
                for name in victims(self._catalog.usage(), room, protected, time.time()):
                    self.delete(name)
                left = budget - self._catalog.totals().bytes
        except CatalogError as error:
            log.warning("Carnator: the budget could not be kept: %s", error)
        else:
            self.consensuses.keep_within(left, consensus_id)

    def delete(self, entry_id: str) -> bool:
        """Delete an entry, even a pinned one, unless this process uses it. Returns whether it was deleted."""
        with self._lock:
            if entry_id in self._leases or not self.disk.remove(entry_id):
                return False
            self._forget(entry_id)
            return True

    def in_use(self, entry_id: str) -> bool:
        """Whether this process is reading it."""
        return entry_id in self._leases

    def quarantine(self, entry_id: str, why: str) -> None:
        """Take an entry out of use but keep its files for inspection."""
        log.warning("Carnator: entry %s set aside: %s", entry_id, why)
        with self._lock:
            self.disk.set_aside(entry_id)
            self._forget(entry_id)

    def _forget(self, entry_id: str) -> None:
        self._index.remove([entry_id])
        self._revision = None
        try:
            self._catalog.drop([entry_id])
        except CatalogError as error:
            log.warning("Carnator: %s", error)

    def purge(self, unused_seconds: float, dry: bool = False) -> Purged:
        """Delete, or if ``dry`` only tell, what was not used for so long: consensus and scale files, and entries but
        none that is pinned or in use. Raises CatalogError.
        """
        old = [entry for entry in self.usage() if is_unused(entry.last_used, unused_seconds)]
        loose = [entry for entry in old if not entry.pinned]
        gone = [entry for entry in loose if (not self.in_use(entry.id) if dry else self.delete(entry.id))]
        means = self.consensuses.drop_unused(unused_seconds, dry)
        if not dry:
            self.scales.drop_unused(unused_seconds)
        size = sum(entry.bytes for entry in gone) + sum(means)
        return Purged(len(gone), size, len(old) - len(loose), len(loose) - len(gone), len(means))
