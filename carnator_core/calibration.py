"""From the verdicts of a store to a certificate on its shelf, and how far the verdicts are from one.

Somebody who calibrates until it passes would pass in the end. So every test is written down before a label is looked
at, and each further one for the same settings is made at half the error of the one before: whatever the number of
tests, a gate whose risk is too high gets a certificate with probability at most twice the error of the first.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from .certificate import TOLERATED, Certificate, exactly
from .certificate_file import written
from .certificate_shelf import FOLDER, save, standing, verdicts_of
from .certify import (
    CONFIDENCE,
    DELTA,
    LabelledPair,
    NotCertified,
    Point,
    Prepared,
    calibrate,
    prepare,
    progress_sentence,
    too_few,
)
from .identity import digest
from .options import CERTIFIED
from .risk import accepted_needed, clusters
from .settings import LEAST_WORK_ACCEPTED, differing
from .signature import FAMILIES, Discrepancies
from .store.checks import is_time
from .store.disk import Disk
from .store.journal import Journal
from .store.verdicts import Verdict

TESTS, TESTS_BYTES = f"{FOLDER}/tests.jsonl", 4_000_000
MOST_NAMED = 4
MOST_TESTS = 16  # of the same settings; after that the error that is left is too small to be met


@dataclass(frozen=True)
class Group:
    """Verdicts on reuse under the same settings.

    Args:
        note: what else the log holds, as sentences; empty if nothing.
    """

    settings: dict[str, str]
    pairs: list[LabelledPair]
    note: str


def largest_group(verdicts: Sequence[Verdict]) -> Group:
    """The settings with the most clusters among the verdicts, and their pairs. Raises NotCertified if there are none.

    The last verdict on a pair stands. Left out is what a certificate could not speak of: reuse that came through
    because a cheaper donor was refused, since behind a certificate only the cheapest is judged, and reuse that a
    certificate accepted, since none was seen beyond its limit.
    """
    groups: dict[str, dict[tuple[str, str], Verdict]] = {}
    others = {"a cheaper donor was refused": 0, "a certificate accepted": 0, "do not tell their settings": 0}
    for verdict in verdicts:
        if not verdict.settings:
            others["do not tell their settings"] += 1
        elif verdict.accepted_by.get("mode") == CERTIFIED:
            others["a certificate accepted"] += 1
        elif verdict.settings.get("donor choice") == LEAST_WORK_ACCEPTED:
            others["a cheaper donor was refused"] += 1
        else:
            groups.setdefault(_binding(verdict.settings), {})[verdict.target, verdict.donor] = verdict
    if not groups:
        raise NotCertified("there are no verdicts yet that a certificate could be made of" + _left_out(others))
    found = [list(group.values()) for group in groups.values()]
    largest = max(found, key=lambda group: (_independent(group), group[-1].when))
    settings, notes = largest[-1].settings, [_left_out(others)]
    if len(found) > 1:
        names = sorted({n for g in found for n in differing(g[-1].settings, settings) if n not in TOLERATED})
        named = ", ".join(names[:MOST_NAMED]) + (", ..." if len(names) > MOST_NAMED else "")
        notes.insert(
            0, f"; the verdicts are of {len(found)} settings (they differ in {named}), this is the largest group"
        )
    return Group(settings, [_pair_of(verdict) for verdict in largest], "".join(notes))


def _binding(settings: dict[str, str]) -> str:
    return digest({name: value for name, value in settings.items() if name not in TOLERATED})


def _independent(group: list[Verdict]) -> int:
    return len(set(clusters([_pair_of(verdict).members for verdict in group])))


def _left_out(others: dict[str, int]) -> str:
    told = [f"{count} where {why}" for why, count in others.items() if count]
    return f"; verdicts left out: {', '.join(told)}" if told else ""


def _pair_of(verdict: Verdict) -> LabelledPair:
    return LabelledPair(
        discrepancies=Discrepancies(**{family: verdict.discrepancies.get(family) for family in FAMILIES}),
        unsafe=not verdict.safe,
        target=verdict.target,
        donor=verdict.donor,
        family=verdict.family,
        kind=verdict.kind,
        share=verdict.share,
        similarity=verdict.similarity,
        work=verdict.work,
        accepted_by=verdict.accepted_by,
    )


@dataclass(frozen=True)
class Outcome:
    """What a calibration came to.

    Args:
        text: for a person.
        progress: verdicts in the log, independent ones in the tested part, and how many are needed at least.
        certificate: None if there is none.
        curve: risk against coverage of the tested pairs; empty as long as no label was looked at.
        saved: the certificate's file.
    """

    text: str
    progress: dict[str, int]
    certificate: Certificate | None = None
    curve: list[Point] = field(default_factory=list)
    saved: Path | None = None

    def to_dict(self) -> dict[str, Any]:
        """JSON data."""
        certificate = self.certificate and json.loads(written(self.certificate))
        curve = [asdict(point) for point in self.curve]
        return {"text": self.text, "progress": self.progress, "certificate": certificate, "curve": curve}


def calibrate_store(folder: Path, delta: float = DELTA, confidence: float = CONFIDENCE, test: bool = False) -> Outcome:
    """Test the verdicts of a store, and put the certificate on its shelf if they pass.

    Args:
        folder: of the store.
        test: whether to look at the labels at all; else only what is there is counted.
    Raises OSError.
    """
    verdicts = verdicts_of(folder)
    progress = {"verdicts": len(verdicts), "clusters": 0, "needed": accepted_needed(0, delta, confidence)}
    try:
        group = largest_group(verdicts)
        prepared = prepare(group.pairs, group.settings)
        log = TestLog(folder, _digest_of(prepared, delta, confidence), _binding(group.settings))
        if log.number > MOST_TESTS:
            raise NotCertified(f"these settings were tested {MOST_TESTS} times without an end; collect with others")
        level = 1.0 - (1.0 - confidence) / 2 ** (log.number - 1)
        progress = {
            "verdicts": len(verdicts),
            "clusters": int(prepared.eligible.sum()),
            "needed": accepted_needed(0, delta, level),
        }
        note = group.note if log.number == 1 else f"; test {log.number}, at {exactly(level)} confidence{group.note}"
        if too_few(prepared, progress["needed"]):
            raise NotCertified(progress_sentence(prepared, progress["needed"]) + note)
        if not test:
            counted = progress_sentence(prepared, progress["needed"])
            return Outcome(f"{counted}: enough for a test, and none was made since save is off{note}", progress)
        found = calibrate(prepared, delta, level, created=log.enter())
    except NotCertified as error:
        return Outcome(f"not certified: {error}", progress)
    if found.certificate is None:
        return Outcome(f"not certified: {found.sentence}{note}", progress, curve=found.curve)
    path = save(Disk(folder), found.certificate)
    return Outcome(f"{found.sentence}{note}", progress, found.certificate, found.curve, path)


def _digest_of(prepared: Prepared, delta: float, confidence: float) -> str:
    """Tells whether a test is the same as an earlier one."""
    labels = sorted((pair.name, pair.unsafe) for pair in [*prepared.development, *prepared.tested])
    return digest(labels, delta, confidence)


class TestLog:
    """The tests that were made of a store's verdicts for some settings, and the place among them of a further one.

    Args:
        data: digest of what is tested: the same again is no further test.
        binding: digest of the settings.
    """

    def __init__(self, folder: Path, data: str, binding: str):
        self._journal = Journal(folder / TESTS, "the tests", TESTS_BYTES)
        self._test = {"binding": binding, "data": data}
        self._when: float | None = None
        self.number = 1
        for line in self._journal.lines():
            test = line.data or {}
            if test.get("binding") == binding and self._when is None and is_time(test.get("when")):
                self._when = test["when"] if test.get("data") == data else None
                self.number += self._when is None

    def enter(self) -> float:
        """Write the test down. Returns when it was made first, in seconds since the epoch."""
        if self._when is None:
            self._when = time.time()
            with self._journal.locked():
                self._journal.append({**self._test, "when": self._when})
        return self._when


def progress_of(folder: Path) -> dict[str, Any]:
    """What a user interface shows of a store's certificate: a sentence, and counts towards one."""
    outcome = calibrate_store(folder)
    try:
        sentence = standing(folder, largest_group(verdicts_of(folder)).settings).sentence
    except NotCertified:
        sentence = outcome.text
    return {"sentence": sentence, "progress": outcome.progress}
