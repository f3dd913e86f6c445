"""Report: plain data for files and one line for people."""

import dataclasses
import json
import math
import time

import pytest

from carnator_core.options import GateOptions
from carnator_core.reasons import Code, Decision, Reason
from carnator_core.report import Report, summary
from carnator_core.signature import Discrepancies


def a_hit() -> Report:
    return Report(
        decision=Decision.HIT,
        reason=Reason.of(Code.REUSED),
        discrepancies=Discrepancies(0.01, None, 0.2, 0.3),
        thresholds=GateOptions(),
        region_share=0.256,
        region_history=[(1, 0.25), (5, 0.3)],
        donor_id="abc",
        donor_created=time.time() - 7300,
        similarity=0.97,
        steps={"dense": 4, "region": 10, "check": 4, "replay": 2},
        seconds=10.0,
        dense_step_seconds=1.25,
    )


@pytest.mark.parametrize("report", [Report(), a_hit(), Report(decision=Decision.DECLINED, reason=Reason.of(Code.OFF))])
def test_a_report_is_plain_json_and_has_a_version(report: Report) -> None:
    data = json.loads(json.dumps(report.to_dict(), allow_nan=False))
    assert data["version"] == 1
    assert data["decision"] == report.decision.value
    assert data["reason_code"] == report.reason.code.value
    assert data["reason"] == report.reason.sentence


@pytest.mark.parametrize("number", [math.inf, math.nan])
def test_numbers_that_json_has_no_word_for_are_left_out(number: float) -> None:
    """Another node may give any number for a threshold, and a text encoder may fail for a prompt."""
    report = dataclasses.replace(
        a_hit(),
        thresholds=dataclasses.replace(GateOptions(), state=math.inf),
        discrepancies=Discrepancies(number, None, 0.2, 0.3),
        similarity=number,
    )
    data = json.loads(json.dumps(report.to_dict(), allow_nan=False))
    assert data["thresholds"]["state"] is data["donor"]["similarity"] is data["discrepancies"]["representation"] is None
    lines = summary("hit", {**data, "samplings": 1}).splitlines()
    assert {"donor abc", "dynamics 0.2 of 2 allowed", "state 0.3 (no limit)"} <= set(lines)


def test_a_donor_of_a_computer_whose_clock_is_ahead_has_no_negative_age() -> None:
    report = dataclasses.replace(a_hit(), donor_created=time.time() + 7000)
    assert "donor 0 s ago" in report.status()


def test_what_a_hit_saved_is_told_and_never_negative() -> None:
    hit = a_hit()
    assert hit.seconds_saved == 1.25 * 20 - 10.0
    assert dataclasses.replace(hit, decision=Decision.ASSIST).seconds_saved == hit.seconds_saved
    assert dataclasses.replace(hit, decision=Decision.MISS).seconds_saved == 0.0
    assert dataclasses.replace(hit, seconds=100.0).seconds_saved == 0.0
    assert dataclasses.replace(hit, dense_step_seconds=None).seconds_saved == 0.0


def test_hits_and_misses_report_the_same_names() -> None:
    assert a_hit().to_dict().keys() == Report().to_dict().keys()


def test_the_report_of_a_hit_tells_its_donor_its_distances_and_its_thresholds() -> None:
    data = a_hit().to_dict()
    assert data["donor"]["id"] == "abc"
    assert data["donor"]["similarity"] == 0.97
    assert data["donor"]["age_seconds"] == pytest.approx(7300, abs=1)
    assert data["discrepancies"] == {"representation": 0.01, "residual": None, "dynamics": 0.2, "state": 0.3}
    assert data["thresholds"] == dataclasses.asdict(GateOptions())


def test_a_report_without_a_donor_has_none() -> None:
    data = Report().to_dict()
    assert data["donor"] is None and data["discrepancies"] is None and data["thresholds"] is None


def test_the_speed_up_is_extrapolated_from_the_runs_own_dense_steps() -> None:
    assert a_hit().estimated_speedup == pytest.approx(1.25 * 20 / 10.0)
    assert Report(seconds=3.0).estimated_speedup is None
    assert Report(dense_step_seconds=1.0).estimated_speedup is None


def test_the_status_of_a_hit_is_one_line_with_speed_up_age_and_region() -> None:
    assert a_hit().status() == "hit 2.5× · donor 2 h ago · region 26%"


def test_the_status_of_a_hit_with_the_noise_of_another_seed_names_that_seed() -> None:
    report = a_hit()
    report.donor_seed = (1 << 64) - 1
    assert report.status() == f"hit 2.5× · donor 2 h ago · with the donor's seed {2**64 - 1} · region 26%"
    assert json.loads(json.dumps(report.to_dict()))["donor_seed"] == (1 << 64) - 1


def test_the_status_of_a_miss_is_the_decision_and_the_reason() -> None:
    assert Report().status() == "miss: no earlier request in this store yet"


def test_the_status_tells_why_nothing_was_stored() -> None:
    status = Report(store_note="not stored: disk full").status()
    assert status == "miss: no earlier request in this store yet (not stored: disk full)"


@pytest.mark.parametrize(("seconds", "text"), [(5, "5 s"), (90, "2 min"), (7200, "2 h"), (3 * 86400, "3 d")])
def test_ages_are_told_in_the_unit_a_person_would_choose(seconds: float, text: str) -> None:
    report = a_hit()
    report.donor_created = time.time() - seconds - 0.01
    assert f"donor {text} ago" in report.status()
