"""The verdicts of a store: what people and scorers say about finished reuse, as the data behind certificates.

``verdicts.jsonl`` has one line per verdict and one per verdict that was taken back. A verdict says all that it speaks
of itself: it outlives the entries and the decision that it was given on.
"""

from __future__ import annotations

import time
import uuid
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

from ..reasons import Decision
from .checks import is_bool, is_name, is_number, is_plain, is_text, is_time, made, map_of, one_of, optional
from .history import History
from .journal import Journal

FILE = "verdicts.jsonl"
MAX_BYTES = 64_000_000
ORIGINS = ARTIST, AUDIT, SCORER = "artist", "audit", "scorer"
PEOPLE = ARTIST, AUDIT


@dataclass(frozen=True)
class Verdict:
    """What somebody says about one reuse.

    Args:
        when: seconds since the epoch.
        target, donor: ids of the request that was served and of the entry it was served from.
        safe: whether the result is what was asked for.
        origin: how it came about: of an artist's own accord, on an audit (a hit that was chosen to be run again
            densely, without a look at its outcome), or by a scorer.
        kind, family: of edit, and of prompts, where those are known.
        similarity: of the two texts; share: of the tokens in the region when the gate decided; work: model evaluations
            relative to a dense run.
        discrepancies: what the gate found; accepted_by: the thresholds that let it pass.
        settings: all that could change the result's pixels, by name.
        decision: id of the decision that it speaks of, if it was given on one.
    """

    id: str
    when: float
    target: str
    donor: str
    safe: bool
    origin: str
    kind: str | None
    family: str | None
    similarity: float
    discrepancies: dict[str, float | None]
    share: float
    work: float
    settings: dict[str, str]
    accepted_by: dict[str, Any]
    decision: str | None = None

    @property
    def word(self) -> str:
        return "safe" if self.safe else "unsafe"


_CHECKS = {
    "id": is_name,
    "when": is_time,
    "target": is_text,
    "donor": is_text,
    "safe": is_bool,
    "origin": one_of(*ORIGINS),
    "kind": optional(is_text),
    "family": optional(is_text),
    "similarity": is_number,
    "discrepancies": map_of(optional(is_number)),
    "share": is_number,
    "work": is_number,
    "settings": map_of(is_text),
    "accepted_by": map_of(is_plain),
    "decision": optional(is_name),
}


class VerdictLog:
    """The verdicts in a folder, in the order in which they were given. Safe between threads and processes.

    A verdict replaces an earlier one of the same origin on the same decision. Every method raises OSError where the
    disk fails.
    """

    def __init__(self, folder: Path):
        self._journal = Journal(Path(folder) / FILE, "the verdicts", MAX_BYTES)
        self.damaged = 0  # lines that the last read had to skip

    def add(self, verdict: Verdict) -> None:
        """Raises ValueError for a verdict that could not be read again."""
        made(Verdict, asdict(verdict), _CHECKS)
        with self._journal.locked():
            self._journal.append(asdict(verdict))

    def undo(self, verdict_id: str) -> bool:
        """Take a verdict back. Returns whether it stood."""
        with self._journal.locked():
            if all(verdict.id != verdict_id for verdict in self.read()):
                return False
            self._journal.append({"undo": verdict_id, "when": time.time()})
            return True

    def read(self) -> list[Verdict]:
        """The verdicts that stand; damaged lines are skipped and counted in ``damaged``."""
        standing: dict[str, Verdict] = {}
        last: dict[tuple[str, str], str] = {}
        self.damaged = 0
        for line in self._journal.lines():
            data = line.data or {}
            if is_name(data.get("undo")):
                standing.pop(data["undo"], None)
                continue
            try:
                verdict = made(Verdict, data, _CHECKS)
            except ValueError:
                self.damaged += 1
                continue
            if verdict.decision is not None:
                of = verdict.decision, verdict.origin
                earlier = standing.get(last.get(of, ""))
                if earlier is not None and (earlier.decision, earlier.origin) == of:
                    del standing[earlier.id]
                last[of] = verdict.id
            standing.pop(verdict.id, None)
            standing[verdict.id] = verdict
        return list(standing.values())

    def tally(self) -> dict[str, int]:
        """How many stand, by their word."""
        found = Counter(verdict.word for verdict in self.read())
        return {"safe": found["safe"], "unsafe": found["unsafe"]}

    def by_decision(self) -> dict[str, Verdict]:
        """What people say about decisions, by their ids."""
        return {v.decision: v for v in self.read() if v.decision is not None and v.origin in PEOPLE}


class Logs(Protocol):
    """What has a history and verdicts: a Store, or a look at one on disk."""

    history: History
    verdicts: VerdictLog


def judge_decision(store: Logs, decision_id: str, safe: bool) -> Verdict:
    """Give a person's verdict on a decision of the history, in place of an earlier one.

    Its origin is audit if the decision was audited, else artist: nobody can make a verdict that they volunteered one of
    those that were drawn by chance.

    Raises LookupError if there is no such decision, ValueError if it reused nothing, and OSError.
    """
    record = store.history.find(decision_id)
    if record is None:
        raise LookupError("this decision is not in the history any more")
    if record.decision != Decision.HIT.value or None in (record.request_id, record.donor):
        raise ValueError("only a hit can be judged: this run reused nothing")
    earlier = store.verdicts.by_decision().get(decision_id)
    if earlier is not None and earlier.safe == safe:
        return earlier
    verdict = Verdict(
        id=uuid.uuid4().hex,
        when=time.time(),
        target=record.request_id,
        donor=record.donor,
        safe=safe,
        origin=AUDIT if record.audit else ARTIST,
        kind=None,
        family=None,
        similarity=record.similarity or 0.0,
        discrepancies=record.discrepancies or {},
        share=record.decided_share or 0.0,
        work=record.work or 0.0,
        settings=record.settings,
        accepted_by=record.thresholds or {},
        decision=record.id,
    )
    store.verdicts.add(verdict)
    return verdict


def withdraw_verdict(store: Logs, decision_id: str) -> bool:
    """Take back a person's verdict on a decision, which need not be in the history any more. Returns whether it stood.

    Raises OSError.
    """
    verdict = store.verdicts.by_decision().get(decision_id)
    return verdict is not None and store.verdicts.undo(verdict.id)
