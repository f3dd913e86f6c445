"""The gate in its mode "certified": which certificate decides, what it lets through, and what holds without one."""

import json
import logging
import os
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from carnator_core import certificate_shelf
from carnator_core.certificate import BROUGHT, Certificate
from carnator_core.certificate_file import written
from carnator_core.certificate_shelf import FOLDER, NONE_YET, lapse_of, save, standing
from carnator_core.gate import STRICT
from carnator_core.options import GateOptions, Options, ProbeOptions, ReuseOptions, StoreOptions
from carnator_core.reasons import Code, Decision
from carnator_core.risk import Limit
from carnator_core.scale import PAIRS_NEEDED
from carnator_core.session import Session
from carnator_core.settings import LEAST_WORK, LEAST_WORK_ACCEPTED, differing, plan_hash
from carnator_core.store.registry import open_store
from carnator_core.store.verdicts import FILE as VERDICTS
from carnator_core.store.verdicts import Verdict
from support.certificates import a_certificate
from support.fake_host import FakeHost
from support.logs import a_verdict

PROMPT = torch.tensor([1.0, -0.5, 0.8, 0.3, -1.0, 0.6, -0.2, 0.9])
LOCAL = PROMPT + torch.tensor([0.0, 0, 0, 0, 0, 1.5, 0, 0])
OTHER = PROMPT + torch.tensor([0.0, 0, 1.2, 0, 0, 0, 0, 0])
OPEN = GateOptions(*[10.0] * 5)
CERTIFIED = GateOptions(*[0.0] * 5, mode="certified")


def options(gate: GateOptions | None = CERTIFIED, **reuse) -> Options:
    return Options(
        probe=ProbeOptions(min_text_similarity=-1.0),
        gate=gate,
        reuse=ReuseOptions(**{"region_threshold": 0.05, "hold_threshold": 0.0, **reuse}),
    )


def run(root: Path, prompt: torch.Tensor, chosen: Options | None = None) -> tuple[Session, torch.Tensor]:
    host, chosen = FakeHost(), chosen or options()
    one = Session(host.request(prompt), chosen, open_store(root, chosen.store))
    return one, host.run(one, prompt)


@pytest.fixture
def settings(tmp_path: Path) -> dict[str, str]:
    """Of a hit on the only donor of the store in tmp_path."""
    run(tmp_path, PROMPT, options(OPEN))
    hit = run(tmp_path, LOCAL, options(OPEN))[0].report
    assert hit.decision is Decision.HIT
    return {**hit.settings, "near-empty threshold": "0.0005"}


@pytest.fixture
def shipped(tmp_path: Path, monkeypatch) -> Path:
    """The folder of the certificates that the pack brings along, empty."""
    folder = tmp_path / "shipped"
    folder.mkdir()
    monkeypatch.setattr(certificate_shelf, "SHIPPED", folder)
    return folder


def put(root: Path, certificate: Certificate) -> Path:
    return save(open_store(root, Options().store).disk, certificate)


def wide(certificate: Certificate) -> Certificate:
    """With room for everything that the fake host does."""
    return replace(certificate, limit=None, guards=dict.fromkeys(certificate.guards, 10.0))


def test_a_certificate_of_the_requests_settings_decides_and_is_told(tmp_path: Path, settings) -> None:
    certificate = wide(a_certificate(settings))
    put(tmp_path, certificate)
    report = run(tmp_path, LOCAL)[0].report
    assert report.decision is Decision.HIT and report.certified
    assert report.certificate == certificate.sentence()
    assert report.status().endswith(" · certified")
    assert report.thresholds == certificate.limits.gate and report.thresholds.mode == "certified"
    assert plan_hash(report.settings) == plan_hash(certificate.settings)
    assert report.learned_pairs is None, "the scale of the model is no question any more"


def test_the_thresholds_of_the_node_are_not_used(tmp_path: Path, settings) -> None:
    put(tmp_path, wide(a_certificate(settings)))
    closed, opened = (replace(gate, mode="certified") for gate in (CERTIFIED, OPEN))
    first, second = (run(tmp_path, LOCAL, options(gate)) for gate in (closed, opened))
    assert torch.equal(first[1], second[1]) and first[0].report.decision is Decision.HIT


def without_region(settings: dict[str, str]) -> Certificate:
    """All is replayed, so that the whole difference of two prompts shows in the discrepancies."""
    return wide(a_certificate({**settings, "effective region threshold": "9", "near-empty threshold": "9"}))


def test_beyond_the_limit_of_the_score_a_donor_is_refused_by_that_reason(tmp_path: Path, settings) -> None:
    put(tmp_path, replace(without_region(settings), limit=-9.0, path=(Limit(-9.0, 74, 0),), accepted=74))
    one, result = run(tmp_path, LOCAL)
    assert one.report.decision is Decision.MISS and one.report.reason.code is Code.GATE_REJECTED
    assert "times what is certified" in one.report.reason.sentence and one.report.certified
    assert torch.equal(result, FakeHost().dense(LOCAL))


def test_beyond_a_guard_a_donor_is_refused_by_that_family(tmp_path: Path, settings) -> None:
    certificate = without_region(settings)
    put(tmp_path, replace(certificate, guards={**certificate.guards, "state": 1e-6}))
    report = run(tmp_path, LOCAL)[0].report
    assert report.reason.code is Code.GATE_REJECTED and "state (" in report.reason.sentence


def test_the_rules_of_region_and_near_empty_regions_hold_behind_a_certificate(tmp_path: Path, settings) -> None:
    put(tmp_path, wide(a_certificate({**settings, "max region percent": "1.0"})))
    report = run(tmp_path, LOCAL, options(max_region_percent=1.0))[0].report
    assert report.certified and report.reason.code is Code.REGION_TOO_LARGE
    put(tmp_path, wide(a_certificate({**settings, "near-empty threshold": "0"})))
    report = run(tmp_path, PROMPT + 0.02)[0].report
    assert report.certified and report.region_share == 0.0 and "representation (" in report.reason.sentence


def test_the_share_that_decides_is_the_regions_own_however_a_request_ends(tmp_path: Path, settings) -> None:
    """Not that of what is computed, which is filled up to sixteenths: a region of 5 % is near-empty, 1 / 16 is not."""
    hit = run(tmp_path, LOCAL, options(OPEN))[0].report
    miss = run(tmp_path, LOCAL, options(GateOptions(0.0, 0.0, 0.0, 0.0)))[0].report
    assert (hit.decision, miss.decision) == (Decision.HIT, Decision.MISS)
    assert hit.decided_share == pytest.approx(hit.region_history[0][1], abs=1e-4)
    assert miss.decided_share == hit.decided_share < miss.region_share


def test_the_region_threshold_is_the_certificates(tmp_path: Path, settings) -> None:
    put(tmp_path, without_region(settings))
    report = run(tmp_path, LOCAL)[0].report
    assert report.decision is Decision.HIT and report.region_share == 0.0
    assert report.settings["effective region threshold"] == "9"


def test_only_the_cheapest_candidate_is_looked_at(tmp_path: Path, settings) -> None:
    """A second donor that would be accepted does not serve in place of one that is refused, as with thresholds."""
    write = replace(options(OPEN), store=StoreOptions(mode="write"))
    alike = run(tmp_path, LOCAL + 0.02, write)[0].report.entry_id
    usual = run(tmp_path, LOCAL, options(GateOptions(*[10.0] * 4, 0.0)))[0].report
    assert usual.decision is Decision.HIT and usual.donor_id != alike, "the near-empty rule refuses the cheapest"
    assert usual.settings["donor choice"] == LEAST_WORK_ACCEPTED
    put(tmp_path, wide(a_certificate({**settings, "near-empty threshold": "0"})))
    report = run(tmp_path, LOCAL)[0].report
    assert report.certified and report.decision is Decision.MISS and report.donor_id == alike
    assert report.settings["donor choice"] == LEAST_WORK


# -- without one ---------------------------------------------------------------------------------------------------


def learn(root: Path) -> None:
    """Enough unrelated requests for the model's scale."""
    for index in range(6):
        prompt = torch.randn(8, generator=torch.Generator().manual_seed(index))
        host, chosen = FakeHost(seed=index + 1), options(OPEN)
        one = Session(host.request(prompt), chosen, open_store(root, chosen.store))
        host.run(one, prompt)


def test_without_any_certificate_strict_thresholds_hold_on_the_models_own_scale(tmp_path: Path, settings) -> None:
    report = run(tmp_path, LOCAL)[0].report
    assert report.reason.code is Code.LEARNING and report.learned_pairs < PAIRS_NEEDED
    learn(tmp_path)
    report = run(tmp_path, LOCAL)[0].report
    learned = run(tmp_path, LOCAL, options(None))[0].report
    assert report.reason.code is not Code.LEARNING and report.learned_pairs == PAIRS_NEEDED
    for name, limit in report.thresholds.numbers.items():
        assert limit == pytest.approx(learned.thresholds.numbers[name] / 2)
    assert report.certificate == "not certified for these settings (there is no certificate yet)"
    assert not report.certified and f"({report.certificate})" in report.status()


def test_strict_is_half_of_each_default() -> None:
    assert {n: 2 * v for n, v in STRICT.numbers.items()} == pytest.approx(GateOptions().numbers)


def test_a_certificate_of_other_settings_is_told_by_the_fields(tmp_path: Path, settings) -> None:
    put(tmp_path, wide(a_certificate({**settings, "CFG": "5.0", "steps": "30"})))
    put(tmp_path, wide(a_certificate({**settings, "CFG": "5.0", "steps": "30", "attention": "dense"})))
    report = run(tmp_path, LOCAL)[0].report
    assert report.certificate == "not certified for these settings (differs in CFG, steps)"
    assert not report.certified and report.certificate in report.status()
    assert report.thresholds is None or report.thresholds.mode != "certified"


def test_options_that_change_pixels_make_a_certificate_of_no_use(tmp_path: Path, settings) -> None:
    put(tmp_path, wide(a_certificate(settings)))
    assert run(tmp_path, LOCAL)[0].report.certified
    report = run(tmp_path, LOCAL, options(guidance_interval=3))[0].report
    assert report.certificate == "not certified for these settings (differs in guidance interval)"


@pytest.mark.parametrize("trouble", ["edited", "cut short", "empty", "not a number"])
def test_a_bad_file_is_told_and_decides_nothing(tmp_path: Path, settings, trouble: str) -> None:
    path = put(tmp_path, wide(a_certificate(settings)))
    text = path.read_text()
    path.write_text(
        {
            "edited": text.replace('"unsafe": 0', '"unsafe": 1'),
            "cut short": text[:-40],
            "empty": "",
            "not a number": text.replace('"limit": null', '"limit": NaN'),
        }[trouble]
    )
    assert path.read_text() != text
    report = run(tmp_path, LOCAL)[0].report
    assert not report.certified and report.decision is Decision.MISS
    assert path.name in report.certificate and report.certificate in report.status()
    assert ("was changed after it was made" in report.certificate) == (trouble == "edited")


def test_a_good_certificate_serves_beside_a_bad_file(tmp_path: Path, settings, caplog) -> None:
    path = put(tmp_path, wide(a_certificate(settings)))
    path.with_name("bad.json").write_text("{")
    with caplog.at_level(logging.WARNING, logger="carnator"):
        assert run(tmp_path, LOCAL)[0].report.certified
    assert "bad.json: the file is no plain JSON" in caplog.text


@pytest.mark.skipif(os.name != "posix", reason="other systems have no such names and links")
def test_names_and_links_of_any_kind_are_told_in_a_short_text(tmp_path: Path, settings) -> None:
    path = put(tmp_path, wide(a_certificate(settings)))
    (path.parent / "loop.json").symlink_to("loop.json")
    assert run(tmp_path, LOCAL)[0].report.certified
    path.unlink()
    for name in (b"caf\xe9.json", b"two\nlines.json", b"1.json", b"2.json", b"3.json"):
        Path(os.fsdecode(os.fsencode(path.parent) + b"/" + name)).write_text("{")
    said = run(tmp_path, LOCAL)[0].report.certificate
    assert said.encode() and "\n" not in said
    assert said.count("no plain JSON") == 3 and said.endswith("; and 2 other files")


def test_a_shelf_that_cannot_be_read_is_not_said_to_be_empty(tmp_path: Path, settings) -> None:
    (tmp_path / "default" / FOLDER).write_text("no folder")
    assert run(tmp_path, LOCAL)[0].report.certificate.endswith("; certificates: Not a directory")


def test_a_shipped_certificate_serves_a_store_without_one(tmp_path: Path, settings, shipped: Path) -> None:
    certificate = wide(a_certificate({**settings, "software or device": "another"}))
    (shipped / "demo.json").write_bytes(written(certificate))
    report = run(tmp_path, LOCAL)[0].report
    assert report.certified and report.certificate.endswith("measured on other software or another device")
    own = wide(a_certificate(settings, count=200))
    put(tmp_path, own)
    assert run(tmp_path, LOCAL)[0].report.certificate == own.sentence(), "the store's own comes first"


def test_a_shipped_certificate_of_another_model_is_no_news(tmp_path: Path, settings, shipped: Path) -> None:
    other = wide(a_certificate({**settings, "model weights": "of the demo"}))
    (shipped / "demo.json").write_bytes(written(other))
    assert run(tmp_path, LOCAL)[0].report.certificate == NONE_YET
    put(tmp_path, other)
    assert run(tmp_path, LOCAL)[0].report.certificate.endswith("(differs in model weights)"), "somebody put it there"


def test_a_certificate_whose_attention_cannot_be_had_decides_nothing(tmp_path: Path, settings, monkeypatch) -> None:
    """The connectivity that it was measured with may not be stored yet: then the run would attend densely."""
    from carnator_core.attention import AttentionChoice

    put(tmp_path, wide(a_certificate({**settings, "attention used": "consensus by x"})))
    monkeypatch.setattr(AttentionChoice, "expected", property(lambda self: "consensus by x"))
    report = run(tmp_path, LOCAL)[0].report
    assert report.certificate == "not certified for these settings (differs in attention used)"
    assert not report.certified and report.decision is Decision.MISS and report.reason.code is Code.LEARNING
    assert report.learned_pairs == 0, "so that a linked clip teaches"


def test_files_are_read_again_only_after_they_changed(tmp_path: Path, settings, monkeypatch) -> None:
    path = put(tmp_path, wide(a_certificate(settings)))
    read = []
    original = certificate_shelf.read_certificate
    monkeypatch.setattr(certificate_shelf, "read_certificate", lambda p: read.append(p) or original(p))
    for _ in range(3):
        assert run(tmp_path, LOCAL)[0].report.certified
    assert read == [path]
    path.write_text(path.read_text().replace("wording", "wordings") + " ")
    run(tmp_path, LOCAL)
    assert read == [path, path]


def test_every_setting_of_a_request_that_a_certificate_serves_is_its_own(tmp_path: Path, settings) -> None:
    put(tmp_path, wide(a_certificate(settings)))
    found = standing(tmp_path / "default", {**settings, **dict.fromkeys(BROUGHT, "0.77")})
    assert found.certificate is not None
    assert differing(settings, run(tmp_path, LOCAL)[0].report.settings) == []


# -- lapse ---------------------------------------------------------------------------------------------------------


def verdicts(certificate: Certificate, unsafe: int, safe: int = 0, **changes) -> list[Verdict]:
    near = {family: min(certificate.guards.values()) / 10 for family in certificate.guards}
    return [
        a_verdict(
            f"v{i}",
            **{
                "when": certificate.created + 1 + i,
                "safe": i >= unsafe,
                "origin": "audit",
                "target": f"t{i}",
                "donor": f"d{i}",
                "settings": certificate.settings,
                "discrepancies": near,
                **changes,
            },
        )
        for i in range(unsafe + safe)
    ]


SOME = a_certificate()


def test_audits_after_it_bring_a_certificate_down() -> None:
    assert lapse_of(SOME, []) is None and lapse_of(SOME, verdicts(SOME, 3)) is None
    said = lapse_of(SOME, verdicts(SOME, 4))
    assert said.startswith("the certificate of ") and "has lapsed (4 of 4 later verdicts are unsafe" in said
    assert lapse_of(SOME, verdicts(SOME, 4, safe=300)) is not None, "once lapsed, lapsed for good"
    assert lapse_of(SOME, verdicts(SOME, 4, safe=300)[::-1]) is None, "late among so many safe ones they are few"


@pytest.mark.parametrize(
    "changes",
    [
        {"when": 1.0},
        {"settings": {**SOME.settings, "steps": "30"}},
        {"discrepancies": dict.fromkeys(SOME.guards, 5.0)},
        {"discrepancies": {"state": 0.001}},
        {"donor": "one"},
        {"target": "one"},
    ],
    ids=["before it", "other settings", "not accepted by it", "without discrepancies", "one donor", "one request"],
)
def test_other_verdicts_do_not_count_against_it(changes: dict) -> None:
    assert lapse_of(SOME, verdicts(SOME, 30, **changes)) is None


def test_volunteered_verdicts_count_one_by_one_each_pair_once() -> None:
    told = verdicts(SOME, 5, origin="artist", donor="one")
    assert lapse_of(SOME, told) is not None
    assert lapse_of(SOME, told[:1] * 30) is None
    assert lapse_of(SOME, verdicts(SOME, 4, origin="artist")) is None


def test_a_lapsed_certificate_is_not_used_and_the_run_says_so(tmp_path: Path, settings) -> None:
    certificate = replace(wide(a_certificate(settings)), created=time.time() - 60)
    put(tmp_path, certificate)
    store = open_store(tmp_path, Options().store)
    for verdict in verdicts(certificate, 4):
        assert run(tmp_path, LOCAL)[0].report.certified
        store.verdicts.add(verdict)
    report = run(tmp_path, LOCAL)[0].report
    assert not report.certified and report.certificate.startswith("not certified: the certificate of ")
    newer = wide(a_certificate(settings, count=300))
    put(tmp_path, newer)
    assert run(tmp_path, LOCAL)[0].report.certificate == newer.sentence(), "a newer one has verdicts of its own"


def test_a_certificate_from_the_future_is_not_used(tmp_path: Path, settings) -> None:
    """A clock was wrong: no verdict that is given until then would count against it."""
    put(tmp_path, replace(wide(a_certificate(settings)), created=time.time() + 60))
    report = run(tmp_path, LOCAL)[0].report
    assert not report.certified and "which is later than now by this computer's clock" in report.certificate


def test_while_verdicts_cannot_be_read_no_certificate_is_used(tmp_path: Path, settings) -> None:
    put(tmp_path, wide(a_certificate(settings)))
    assert run(tmp_path, LOCAL)[0].report.certified
    (tmp_path / "default" / VERDICTS).mkdir()
    report = run(tmp_path, LOCAL)[0].report
    assert not report.certified and report.certificate == (
        "not certified: the verdicts, which may speak against its certificate, cannot be read: Is a directory"
    )


def test_reports_with_a_certificate_are_plain_json(tmp_path: Path, settings) -> None:
    put(tmp_path, wide(a_certificate(settings)))
    data = json.loads(json.dumps(run(tmp_path, LOCAL)[0].report.to_dict(), allow_nan=False))
    assert data["certified"] is True and data["thresholds"]["mode"] == "certified"
    assert (tmp_path / "default" / FOLDER).is_dir()
