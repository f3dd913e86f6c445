"""Records and verdicts for tests of the logs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from carnator_core.reasons import Code, Decision, Reason
from carnator_core.report import Report
from carnator_core.signature import Discrepancies
from carnator_core.store.history import Record
from carnator_core.store.verdicts import Verdict

JPEG = b"\xff\xd8\xff\xe0 a small picture"


def a_record(decision: Decision = Decision.HIT, **changes: Any) -> Record:
    """What a run of this decision leaves."""
    report = Report(
        decision=decision,
        reason=Reason.of(Code.REUSED if decision is Decision.HIT else Code.STORE_EMPTY),
        discrepancies=Discrepancies(0.01, None, 0.2, 0.3),
        region_share=0.2,
        decided_share=0.25,
        donor_id="d0" if decision is Decision.HIT else None,
        donor_created=1700000000.0,
        similarity=0.97,
        steps={"dense": 4, "region": 16},
        seconds=10.0,
        dense_step_seconds=1.0,
        work=0.4,
        request_id="r0",
        settings={"steps": "20"},
    )
    return replace(Record.of(report.to_dict(), report.status(), report.seconds_saved), **changes)


def a_verdict(name: str = "v0", **changes: Any) -> Verdict:
    found = {"representation": 0.01, "residual": None, "dynamics": 0.2, "state": 0.3}
    verdict = Verdict(
        name,
        1700000000.5,
        "r0",
        "d0",
        True,
        "artist",
        None,
        None,
        0.97,
        found,
        0.25,
        0.4,
        {"steps": "20"},
        {"state": 1.0},
    )
    return replace(verdict, **changes)


def cut(path: Path, size: int) -> None:
    """Leave only the first bytes of a file, as a crash may."""
    with open(path, "r+b") as file:
        file.truncate(size)
