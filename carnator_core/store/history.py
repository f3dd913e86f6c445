"""The history of a store: what became of its last requests, for people.

``decisions.jsonl`` has one line per decision, never a word of a prompt or the place of a file; ``decisions/<id>.jpg``
is a small picture of what a hit made, ``decisions/<id>.dense.jpg`` one of the dense run of an audited hit. Nothing here
is read by a run.
"""

from __future__ import annotations

import logging
import re
import time
import uuid
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from ..reasons import Decision
from .checks import (
    MAX_TEXT,
    clipped,
    finite,
    is_bool,
    is_name,
    is_number,
    is_plain,
    is_text,
    is_time,
    made,
    map_of,
    one_of,
    optional,
)
from .entry import checked_id, is_preview, read_preview
from .journal import MAX_LINE_BYTES, Journal, Line
from .writer import Queue

log = logging.getLogger("carnator")

FILE, PICTURES = "decisions.jsonl", "decisions"
KEPT = 500
SLACK = 100  # how many more may lie there until the file is written anew
KEPT_BYTES = KEPT * MAX_LINE_BYTES
MAX_BYTES = (KEPT + 2 * SLACK) * MAX_LINE_BYTES

_pending = Queue("the history was not written")
# Absolute paths, also with spaces in the names of folders. What is left of one is its last name.
_PLACE = re.compile(
    r"""(?:\b[A-Za-z]:[\\/]|\\\\|(?<![\w.])~?/(?=[\w.~]))[^\s'",;:()]*(?:[ ][^\s'",;:()]*[\\/][^\s'",;:()]*)*"""
)


@dataclass(frozen=True)
class Record:
    """What became of one sampling.

    Args:
        id: of this decision; when: seconds since the epoch.
        status: the line that the node showed.
        seconds_saved: dense seconds extrapolated from the run's own dense steps less its own seconds; 0 unless reused.
        donor: id of the entry that was reused, or that was nearest; request_id: the id that this request has as an
            entry, whether stored or not; entry_id: the same if it was stored.
        region_share: of the video that was computed, after a hit the mean over its steps; decided_share: of the
            tokens in the region when the gate decided.
        discrepancies, thresholds: what the gate found, and what it held that against.
        settings: all that can change a hit's pixels, by name, see settings.py; empty for what was declined.
        work: model evaluations relative to a dense run.
        picture: whether there is one.
        audit: whether the request of this hit was chosen to be run again densely, without a look at its outcome, and
            was; dense_picture: whether there is a picture of that run; dense_difference: between the two results, see
            audit.py.
    """

    id: str
    when: float
    decision: str
    reason_code: str
    reason: str
    status: str
    seconds: float
    seconds_saved: float
    donor: str | None
    request_id: str | None
    entry_id: str | None
    region_share: float | None
    decided_share: float | None
    discrepancies: dict[str, float | None] | None
    thresholds: dict[str, Any] | None
    settings: dict[str, str]
    similarity: float | None
    work: float | None
    picture: bool
    audit: bool = False
    dense_picture: bool = False
    dense_difference: dict[str, float | None] | None = None

    @classmethod
    def of(cls, report: Mapping[str, Any], status: str, seconds_saved: float) -> Record:
        """From ``Report.to_dict()`` and its line of text. Raises KeyError and ValueError for what is no report."""
        donor, found, limits = report["donor"] or {}, report["discrepancies"], report["thresholds"]
        data = {
            **{name: report.get(name) for name in _CHECKS},
            "id": uuid.uuid4().hex,
            "when": time.time(),
            "reason": _without_places(report["reason"]),
            "status": _without_places(status),
            "seconds_saved": seconds_saved,
            "donor": donor.get("id"),
            "discrepancies": found and finite(found),
            "thresholds": limits and finite(limits),
            "similarity": donor.get("similarity"),
            "picture": False,
            "dense_picture": False,
        }
        return made(cls, data, _CHECKS)


_CHECKS = {
    "id": is_name,
    "when": is_time,
    "decision": one_of(*(decision.value for decision in Decision)),
    "reason_code": is_text,
    "reason": is_text,
    "status": is_text,
    "seconds": is_number,
    "seconds_saved": is_number,
    "donor": optional(is_name),
    "request_id": optional(is_name),
    "entry_id": optional(is_name),
    "region_share": optional(is_number),
    "decided_share": optional(is_number),
    "discrepancies": optional(map_of(optional(is_number))),
    "thresholds": optional(map_of(is_plain)),
    "settings": map_of(is_text),
    "similarity": optional(is_number),
    "work": optional(is_number),
    "picture": is_bool,
    "audit": is_bool,
    "dense_picture": is_bool,
    "dense_difference": optional(map_of(optional(is_number))),
}


class History:
    """The last 500 decisions of the store in a folder. Safe between threads and processes.

    Every method raises OSError where the disk fails.
    """

    def __init__(self, folder: Path):
        self._journal = Journal(Path(folder) / FILE, "the decisions", MAX_BYTES)
        self._pictures = Path(folder) / PICTURES

    def add(self, record: Record, picture: bytes | None = None, dense: bytes | None = None) -> None:
        """Write a record and JPEG pictures of at most 64 KB; older ones may go.

        Args:
            picture: of what a hit made; dense: of the dense run of the same request.
        """
        with self._journal.locked():
            if self._journal.count >= KEPT + SLACK or self._journal.bytes > KEPT_BYTES + SLACK * MAX_LINE_BYTES:
                self._trim()
            kept = self._keep_picture(self._picture(record.id), picture)
            dense_kept = self._keep_picture(self._dense_picture(record.id), dense)
            self._journal.append(asdict(replace(record, picture=kept, dense_picture=dense_kept)))

    def _keep_picture(self, path: Path, picture: bytes | None) -> bool:
        """Whether there is one now: it is a courtesy, and no reason to lose a record."""
        if picture is None or not is_preview(picture):
            return False
        try:
            self._pictures.mkdir(exist_ok=True)
            path.write_bytes(picture)
        except OSError as error:
            log.warning("Carnator: the picture of a decision was not written: %s", error.strerror or error)
            with suppress(OSError):
                path.unlink(missing_ok=True)
            return False
        return True

    def add_later(self, record: Record, picture: bytes | None = None, dense: bytes | None = None) -> None:
        """The same on a background thread; what goes wrong is a line of the log."""
        _pending.add(partial(self.add, record, picture, dense))

    def read(self) -> list[Record]:
        """Oldest first, with what this process has yet to write; damaged lines are left out."""
        _pending.wait()
        return [record for _, record in _records(self._journal.lines())][-KEPT:]

    def find(self, decision_id: str) -> Record | None:
        return next((record for record in self.read() if record.id == decision_id), None)

    def picture(self, decision_id: str) -> bytes | None:
        """A JPEG, or None if there is none. Raises EntryError for a name that is no plain id."""
        return read_preview(self._picture(checked_id(decision_id)))

    def dense_picture(self, decision_id: str) -> bytes | None:
        """The same of the dense run of an audited hit."""
        return read_preview(self._dense_picture(checked_id(decision_id)))

    def _picture(self, decision_id: str) -> Path:
        return self._pictures / f"{decision_id}.jpg"

    def _dense_picture(self, decision_id: str) -> Path:
        return self._pictures / f"{decision_id}.dense.jpg"

    def _trim(self) -> None:
        """Drop old lines with their pictures; damaged ones among those that stay are left as they are."""
        lines, end = self._journal.lines(), self._journal.bytes
        kept = _records(lines)[-KEPT:]
        start = kept[0][0] if len(kept) == KEPT else 0
        if end - start > KEPT_BYTES:  # that many records of ours cannot be: something else fills the file
            start = next((line.start for line in lines if end - line.start <= KEPT_BYTES), end)
        if start:
            self._journal.drop_before(start)
        staying = [record.id for place, record in kept if place >= start]
        paths = {path for name in staying for path in (self._picture(name), self._dense_picture(name))}
        for picture in self._pictures.glob("*.jpg"):
            if picture not in paths:
                picture.unlink(missing_ok=True)


def finish() -> None:
    """Return when this process has nothing left to write to any history."""
    _pending.wait()


def _records(lines: Iterable[Line]) -> list[tuple[int, Record]]:
    """The good ones among the lines, with their places in the file."""
    found = []
    for line in lines:
        with suppress(ValueError):
            found.append((line.start, made(Record, line.data or {}, _CHECKS)))
    return found


def _without_places(text: str) -> str:
    """A sentence that names no place on the disk, as the text of an error may."""
    return clipped(_PLACE.sub(lambda found: re.split(r"[\\/]", found[0])[-1], text[: 4 * MAX_TEXT]))
