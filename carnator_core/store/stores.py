"""All stores under one root as a user interface sees them: plain JSON data in and out.

Looking changes nothing: it reads the catalog through a connection of its own and waits for no run. Only what changes an
entry goes through the Store that runs use too, so that nothing is deleted that one of them is reading.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ..calibration import progress_of
from . import registry
from .catalog import FILES, Catalog, CatalogDamaged, CatalogError, Listed, Totals
from .consensus import consensus_bytes
from .disk import ENTRIES
from .entry import PREVIEW_FILE, checked_id, read_preview
from .eviction import Purged
from .folder import Store
from .history import History, Record
from .tensor_file import EntryGone
from .verdicts import Verdict, VerdictLog, judge_decision, withdraw_verdict

Data = dict[str, Any]


class NotThere(LookupError):
    """What was asked for is not there, or not any more; the message says what."""


class Refused(ValueError):
    """It is there, but this cannot be done to it; the message says why."""


@dataclass(frozen=True)
class Look:
    """One store on disk, read without opening it."""

    folder: Path
    history: History
    verdicts: VerdictLog

    @classmethod
    def at(cls, folder: Path) -> Look:
        return cls(folder, History(folder), VerdictLog(folder))


class Stores:
    """Every method but the first takes the name of a store and raises NotThere if there is none, and OSError.

    Args:
        root: folder that holds all stores.
        video_size: what a latent's sides, as the catalog names them, are as width x height x frames; None if unknown.
    """

    def __init__(self, root: Path, video_size: Callable[[str], str | None]):
        self._root, self._video_size = Path(root), video_size

    # -- looking ---------------------------------------------------------------------------------------------------

    def all(self) -> Data:
        """Every store with its sums. Raises OSError only where the root itself cannot be read."""
        return {"stores": [self._summary(name) for name in registry.store_names(self._root)]}

    def _summary(self, name: str) -> Data:
        look, error = Look.at(self._root / name), None
        totals, decisions, verdicts = Totals(0, 0, 0, 0.0), 0, {"safe": 0, "unsafe": 0}
        try:
            with self._catalog(name) as catalog:
                totals = catalog.totals() if catalog else totals
            decisions, verdicts = len(look.history.read()), look.verdicts.tally()
        except OSError as trouble:  # one store that cannot be read hides no other
            error = trouble.strerror or str(trouble)
        found = {"name": name, "budget_bytes": registry.budget_bytes(self._root, name), **asdict(totals)}
        found["bytes"] += consensus_bytes(look.folder)
        return {**found, "decisions": decisions, "verdicts": verdicts, "error": error}

    def entries(self, name: str, order: str, offset: int, limit: int) -> Data:
        """Some of the entries, in one of ``catalog.ORDERS``."""
        self._look(name)
        with self._catalog(name) as catalog:
            if catalog is None:
                return {"total": 0, "entries": []}
            rows = catalog.page(order, offset, limit)
            return {"total": catalog.totals().entries, "entries": [self._entry(name, row) for row in rows]}

    def entry_picture(self, name: str, entry_id: str) -> bytes:
        """The JPEG of an entry."""
        return _there(read_preview(self._look(name).folder / ENTRIES / checked_id(entry_id) / PREVIEW_FILE), "picture")

    def decisions(self, name: str, offset: int, limit: int) -> Data:
        """Some of the decisions, newest first, each with people's verdict on it."""
        look = self._look(name)
        records, verdicts = look.history.read()[::-1], look.verdicts.by_decision()
        shown = [_decision(record, verdicts.get(record.id)) for record in records[offset : offset + limit]]
        return {"total": len(records), "decisions": shown}

    def hit_picture(self, name: str, decision_id: str) -> bytes:
        """The JPEG of what a hit made."""
        return _there(self._look(name).history.picture(decision_id), "picture")

    def dense_picture(self, name: str, decision_id: str) -> bytes:
        """The JPEG of the dense run of an audited hit."""
        return _there(self._look(name).history.dense_picture(decision_id), "picture")

    # -- changing --------------------------------------------------------------------------------------------------

    def pin(self, name: str, entry_id: str, pinned: bool) -> Data:
        """Keep an entry from eviction and purge, or no longer."""
        try:
            self._store(name).set_pinned(entry_id, pinned)
        except (EntryGone, FileNotFoundError) as error:
            raise NotThere("this entry is not in the store any more") from error
        with self._catalog(name) as catalog:
            return self._entry(name, _there(catalog and catalog.find(entry_id), "entry"))

    def delete(self, name: str, entry_id: str) -> Data:
        """Delete an entry, pinned or not. Raises Refused while a run uses it."""
        store = self._store(name)
        if not store.delete(entry_id):
            if store.in_use(entry_id):
                raise Refused("a run uses this entry right now; try again when it is done")
            store.usage()  # it may still be listed
            raise NotThere("this entry is not in the store any more")
        return {"deleted": True}

    def purge(self, name: str, days: float, confirm: bool) -> Data:
        """Delete, or only tell, what was not used for so many days."""
        self._look(name)
        store = registry.existing_store(self._root, name)  # None: decisions, and nothing was ever stored
        purged = Purged(0, 0, 0, 0) if store is None else store.purge(days * 86400, dry=not confirm)
        told = purged.sentence if confirm else f"nothing deleted yet; it would be: {purged.sentence}"
        counts = {"count": purged.entries, "bytes": purged.bytes, "pinned": purged.pinned, "in_use": purged.in_use}
        return {**counts, "sentence": told}

    def judge(self, name: str, decision_id: str, safe: bool) -> Data:
        """Give a person's verdict on a hit, in place of an earlier one. Raises Refused for what is none."""
        try:
            verdict = judge_decision(self._look(name), decision_id, safe)
        except LookupError as error:
            raise NotThere(str(error)) from error
        except ValueError as error:
            raise Refused(str(error)) from error
        return {"verdict": verdict.word, "id": verdict.id}

    def withdraw(self, name: str, decision_id: str) -> Data:
        """Take a person's verdict back, if there is one."""
        look = self._look(name)
        if not withdraw_verdict(look, decision_id) and look.history.find(decision_id) is None:
            raise NotThere("this decision is not in the history any more")
        return {"verdict": None}

    def certificate(self, name: str) -> Data:
        """The certificate of the settings with the most verdicts, and how far these are from one."""
        return progress_of(self._look(name).folder)

    # -- one store -------------------------------------------------------------------------------------------------

    def _look(self, name: str) -> Look:
        if not registry.is_store(self._root, name):
            raise NotThere(f"there is no store {name!r}")
        return Look.at(self._root / name)

    def _store(self, name: str) -> Store:
        store = registry.existing_store(self._root, name)
        if store is None:
            raise NotThere(f"there is no store {name!r}")
        return store

    @contextmanager
    def _catalog(self, name: str) -> Iterator[Catalog | None]:
        """A read-only connection, or None for a store without entries. One that is missing or damaged is made anew."""
        folder = self._root / name
        try:
            catalog = Catalog(folder, read_only=True)
        except CatalogError as error:
            if (folder / FILES[0]).exists() and not isinstance(error, CatalogDamaged):
                raise
            store = registry.existing_store(self._root, name)
            if store is None:
                yield None
                return
            store.usage()
            catalog = Catalog(folder, read_only=True)
        with closing(catalog):
            yield catalog

    def _entry(self, name: str, row: Listed) -> Data:
        shown = asdict(row)
        latent = shown.pop("latent")
        picture = (self._root / name / ENTRIES / row.id / PREVIEW_FILE).exists()
        return {**shown, "size": latent and self._video_size(latent), "picture": picture}


def _decision(record: Record, verdict: Verdict | None) -> Data:
    return {**asdict(record), "verdict": verdict and verdict.word}


def _there(found: Any, what: str) -> Any:
    if found is None:
        raise NotThere(f"there is no such {what}")
    return found
