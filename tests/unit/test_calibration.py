"""Calibration: which verdicts of a store count together, what a test leaves behind, and what trying again costs."""

import json
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest

from carnator_core.calibration import MOST_TESTS, calibrate_store, largest_group, progress_of
from carnator_core.certificate_file import read_certificate
from carnator_core.certificate_shelf import FOLDER, NONE_YET, standing
from carnator_core.certify import NotCertified, prepare
from carnator_core.settings import LEAST_WORK_ACCEPTED
from carnator_core.signature import FAMILIES
from carnator_core.store.verdicts import FILE, Verdict
from support.certificates import some_settings
from support.logs import a_verdict

SETTINGS = some_settings()
GATE = {**dict.fromkeys(FAMILIES, 1.0), "near_empty_representation": 0.0005, "mode": "thresholds"}


def some_verdicts(count: int = 100, unsafe: int = 0, prefix: str = "", **changes) -> list[Verdict]:
    """Of independent pairs; the unsafe ones are those farthest from their donors."""
    distances = np.exp(np.random.default_rng(count).normal(-4.0, 0.7, (count, len(FAMILIES))))
    bad = set(np.argsort(np.log(distances).sum(axis=1))[count - unsafe :].tolist())
    return [
        a_verdict(
            f"{prefix}v{i}",
            **{
                "when": 1700000000.0 + i,
                "target": f"{prefix}t{i}",
                "donor": f"{prefix}d{i}",
                "safe": i not in bad,
                "settings": SETTINGS,
                "discrepancies": dict(zip(FAMILIES, distances[i].tolist(), strict=True)),
                "accepted_by": GATE,
                **changes,
            },
        )
        for i in range(count)
    ]


def log(root: Path, verdicts: list[Verdict]) -> Path:
    """All lines in one go: adding one by one syncs each."""
    with open(root / FILE, "a", encoding="utf-8") as file:
        file.writelines(json.dumps(asdict(verdict)) + "\n" for verdict in verdicts)
    return root


def files(root: Path) -> list[Path]:
    return sorted((root / FOLDER).glob("*.json"))


# -- which verdicts count together ---------------------------------------------------------------------------------


def test_a_verdict_becomes_a_pair_with_all_that_it_says() -> None:
    (verdict,) = some_verdicts(1, unsafe=1, kind="colour", family="f", share=0.4, similarity=0.9, work=0.5)
    (pair,) = largest_group([verdict]).pairs
    assert pair.unsafe and (pair.target, pair.donor, pair.family, pair.kind) == ("t0", "d0", "f", "colour")
    assert (pair.share, pair.similarity, pair.work, pair.accepted_by) == (0.4, 0.9, 0.5, GATE)
    assert pair.discrepancies.as_dict() == verdict.discrepancies


def test_the_last_verdict_on_a_pair_stands() -> None:
    first, second = some_verdicts(2)
    again = replace(first, id="again", safe=False)
    assert [pair.unsafe for pair in largest_group([first, second, again]).pairs] == [True, False]


def test_the_largest_group_of_equal_settings_is_taken_and_the_others_are_told() -> None:
    other = {**SETTINGS, "CFG": "5.0", "steps": "30"}
    group = largest_group([*some_verdicts(5, prefix="x", settings=other), *some_verdicts(8)])
    assert group.settings == SETTINGS and len(group.pairs) == 8
    assert "the verdicts are of 2 settings (they differ in CFG, steps), this is the largest group" in group.note


def test_the_largest_group_is_the_one_with_the_most_clusters() -> None:
    other = {**SETTINGS, "CFG": "5.0"}
    group = largest_group([*some_verdicts(9, prefix="x", settings=other, donor="one"), *some_verdicts(3)])
    assert group.settings == SETTINGS


def test_other_software_makes_no_other_group() -> None:
    mixed = [replace(v, settings={**SETTINGS, "software or device": str(i)}) for i, v in enumerate(some_verdicts(6))]
    group = largest_group(mixed)
    assert len(group.pairs) == 6 and group.note == "" and group.settings["software or device"] == "5"


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"settings": {}}, "do not tell their settings"),
        ({"settings": {**SETTINGS, "donor choice": LEAST_WORK_ACCEPTED}}, "a cheaper donor was refused"),
        ({"accepted_by": {**GATE, "mode": "certified"}}, "a certificate accepted"),
    ],
)
def test_verdicts_that_a_certificate_could_not_speak_of_are_left_out_and_told(changes: dict, said: str) -> None:
    out = some_verdicts(4, prefix="x", **changes)
    group = largest_group([*some_verdicts(3), *out])
    assert len(group.pairs) == 3 and f"4 where {said}" in group.note
    with pytest.raises(NotCertified, match="no verdicts yet that a certificate could be made of"):
        largest_group(out)


# -- tests ---------------------------------------------------------------------------------------------------------


def test_a_store_without_verdicts_says_so(tmp_path: Path) -> None:
    found = calibrate_store(tmp_path, test=True)
    assert found.text.startswith("not certified: there are no verdicts yet") and files(tmp_path) == []
    assert found.progress == {"verdicts": 0, "clusters": 0, "needed": 45}
    assert list(tmp_path.iterdir()) == [], "looking leaves nothing"


def test_too_few_verdicts_say_how_many_are_missing_and_are_no_test(tmp_path: Path) -> None:
    found = calibrate_store(log(tmp_path, some_verdicts(40)), test=True)
    have = found.progress["clusters"]
    assert found.text.startswith(f"not certified: {have} of at least 45 independent verdicts") and 20 < have < 40
    assert not (tmp_path / FOLDER).exists()


def test_without_save_no_label_is_looked_at(tmp_path: Path) -> None:
    found = calibrate_store(log(tmp_path, some_verdicts(100)))
    assert "enough for a test" in found.text and found.curve == [] and found.certificate is None
    assert not (tmp_path / FOLDER).exists()


def test_verdicts_that_pass_put_a_certificate_on_the_shelf(tmp_path: Path) -> None:
    found = calibrate_store(log(tmp_path, some_verdicts(120)), test=True)
    assert found.text.startswith("certified: at most 5% of accepted reuse is unsafe, at 90% confidence")
    assert files(tmp_path) == [found.saved] and read_certificate(found.saved) == found.certificate
    assert standing(tmp_path, SETTINGS).certificate == found.certificate
    data = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    assert data["certificate"]["accepted"] == found.certificate.accepted and data["curve"]


def test_verdicts_that_do_not_pass_say_why_and_leave_no_certificate(tmp_path: Path) -> None:
    turned = [replace(v, safe=i % 4 > 0) for i, v in enumerate(some_verdicts(160))]
    found = calibrate_store(log(tmp_path, turned), test=True)
    assert found.text.startswith("not certified: nothing passes: ") and found.curve
    assert files(tmp_path) == [] and standing(tmp_path, SETTINGS).sentence == NONE_YET


@pytest.mark.parametrize("limit", [None, "", "wide", [0.1], True])
def test_a_threshold_that_is_no_number_is_as_good_as_none(tmp_path: Path, limit) -> None:
    """As the history writes one that is infinite, or as somebody's editor left it."""
    edited = [replace(v, accepted_by={**GATE, "state": limit}) for v in some_verdicts(100)]
    infinite = [replace(v, accepted_by={**GATE, "state": 1e9}) for v in some_verdicts(100)]
    found = largest_group(edited), largest_group(infinite)
    assert [prepare(group.pairs, SETTINGS).score.guards.tolist() for group in found] == [
        prepare(found[1].pairs, SETTINGS).score.guards.tolist()
    ] * 2


def test_verdicts_that_cannot_be_read_are_not_said_to_be_none(tmp_path: Path) -> None:
    (tmp_path / FILE).mkdir()
    for look in (calibrate_store, progress_of):
        with pytest.raises(IsADirectoryError):
            look(tmp_path)


def test_the_same_verdicts_again_are_the_same_test(tmp_path: Path) -> None:
    log(tmp_path, some_verdicts(120))
    first, second = calibrate_store(tmp_path, test=True), calibrate_store(tmp_path, test=True)
    assert first.certificate == second.certificate and first.saved == second.saved and len(files(tmp_path)) == 1


def test_each_further_test_is_made_at_half_the_error(tmp_path: Path) -> None:
    log(tmp_path, some_verdicts(100))
    assert calibrate_store(tmp_path, test=True).certificate.confidence == 0.9
    log(tmp_path, some_verdicts(30, prefix="more"))
    second = calibrate_store(tmp_path, test=True)
    assert second.certificate.confidence == pytest.approx(0.95) and "test 2, at 95% confidence" in second.text
    log(tmp_path, some_verdicts(1, prefix="last"))
    third = calibrate_store(tmp_path)
    assert third.progress["needed"] == 72 and "test 3, at 97.5% confidence" in third.text
    assert calibrate_store(tmp_path, confidence=0.8, test=True).certificate.confidence == pytest.approx(0.95)


def test_after_too_many_tests_there_is_no_further_one(tmp_path: Path) -> None:
    log(tmp_path, some_verdicts(400))
    for number in range(MOST_TESTS):
        log(tmp_path, some_verdicts(1, prefix=f"again{number}"))
        assert calibrate_store(tmp_path, confidence=0.8, test=True).curve
    log(tmp_path, some_verdicts(1, prefix="last"))
    found = calibrate_store(tmp_path, confidence=0.8, test=True)
    assert found.curve == [] and found.text.startswith("not certified: these settings were tested 16 times")


def test_a_late_test_claims_no_certainty(tmp_path: Path) -> None:
    log(tmp_path, some_verdicts(600))
    for number in range(9):
        found = calibrate_store(log(tmp_path, some_verdicts(1, prefix=f"again{number}")), delta=0.5, test=True)
    assert "at 99.9609375% confidence" in found.certificate.sentence() and "test 9, at 99.9609375%" in found.text
    assert replace(found.certificate, delta=0.0549).sentence().startswith("certified: at most 5.49% of")


def test_a_test_of_other_settings_costs_nothing(tmp_path: Path) -> None:
    calibrate_store(log(tmp_path, some_verdicts(100)), test=True)
    other = some_verdicts(150, prefix="x", settings={**SETTINGS, "CFG": "5.0"})
    assert calibrate_store(log(tmp_path, other), test=True).certificate.confidence == 0.9


def test_a_damaged_log_of_tests_is_skipped_line_by_line(tmp_path: Path) -> None:
    calibrate_store(log(tmp_path, some_verdicts(100)), test=True)
    tests = tmp_path / FOLDER / "tests.jsonl"
    tests.write_bytes(b"{\n[1]\n" + tests.read_bytes() + b'{"binding": 1}\nnoise')
    log(tmp_path, some_verdicts(30, prefix="more"))
    assert calibrate_store(tmp_path, test=True).certificate.confidence == pytest.approx(0.95)


# -- for a user interface ------------------------------------------------------------------------------------------


def test_progress_counts_towards_a_certificate_and_tells_the_one_in_force(tmp_path: Path) -> None:
    assert progress_of(tmp_path)["progress"] == {"verdicts": 0, "clusters": 0, "needed": 45}
    log(tmp_path, some_verdicts(30))
    found = progress_of(tmp_path)
    assert found["progress"]["verdicts"] == 30 and 15 < found["progress"]["clusters"] < 30
    assert found["sentence"] == NONE_YET
    log(tmp_path, some_verdicts(100, prefix="more"))
    certificate = calibrate_store(tmp_path, test=True).certificate
    assert progress_of(tmp_path)["sentence"] == certificate.sentence()
