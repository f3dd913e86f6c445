"""The certificate's benchmark on labels with a known answer: what it certifies, compares, refuses and prints."""

from __future__ import annotations

import json
from argparse import Namespace
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks import certificate_job
from benchmarks.certificate_analysis import Labels, as_many, by_kind, certified_by, compared, floor_row, row
from benchmarks.certificate_job import JSON_FIELDS, analysed, last_line, ship
from benchmarks.certificate_stages import Stages
from benchmarks.certificate_tables import sections, tables
from benchmarks.certifying import certify_labels, kept
from benchmarks.clusters import CERTIFICATION, DEVELOPMENT, FRESH, make_clusters
from benchmarks.controls import NOISE_FLOOR
from benchmarks.label_file import LabelFile
from carnator_core.certificate_file import read_certificate
from carnator_core.risk import upper_bound
from carnator_core.signature import Discrepancies
from scripts.testbed.console import Stop
from support.labels import SETTINGS, labels, looks, record, refused

DEV, CERT = Labels(labels(DEVELOPMENT, 200)), Labels(labels(CERTIFICATION, 1000))
CLUSTERS = make_clusters(CERTIFICATION, 6)


def stages(folder: Path, development: list, certification: list, fresh: list = (), floors: list = ()) -> Stages:
    """Of which everything is in the file already, so that nothing runs."""
    file = LabelFile(folder / "labels.jsonl", {}, {"command": "bench", "commit": "abc", "date": "today"})
    file.add([*development, *certification, *fresh, *floors])
    counts = {"development": len(development), "clusters": len(certification), "fresh": len(fresh), "floors": 200}
    return Stages(None, Namespace(**counts, seconds=None, servers=1), None, file)


def test_early_states_that_tell_everything_are_certified_and_text_that_tells_nothing_is_not() -> None:
    found = certify_labels(DEV, CERT, 0.05)
    certificate = found.certificate
    assert certificate is not None and "certified: at most 5%" in found.sentence
    far = np.array([r["discrepancies"]["state"] >= 0.5 for r in CERT.records])
    near = CERT.labelled & ~far
    # The limits are few: what is accepted lies between the strictest and all that is near, and a few of the far ones.
    assert 0.8 * near.sum() < found.accepted.sum() < 1.1 * near.sum() and found.accepted[near].mean() > 0.8
    assert certificate.bound <= 0.05 and certificate.unsafe == CERT.unsafe[found.accepted].sum()
    assert certificate.clusters == len(CERT) and certificate.coverage == pytest.approx(found.accepted.mean())
    assert not certified_by(CERT.by_text, 0.05, 0.9).any()


def test_the_certificate_accepts_by_itself_what_the_analysis_counts() -> None:
    found = certify_labels(DEV, CERT, 0.05)
    accepts = [
        found.certificate.accepts(Discrepancies(**r["discrepancies"]), r["region"]) and "reuse" in r
        for r in CERT.records
    ]
    # A score that is the limit itself may fall on either side by rounding.
    assert (np.array(accepts) != found.accepted).sum() <= 1


def test_the_near_empty_rule_of_the_defaults_is_in_the_certificate() -> None:
    found = certify_labels(DEV, CERT, 0.05)
    assert found.certificate.settings["near-empty threshold"] == "0.0005"
    near_empty = [{**r, "region": 0.01} if "reuse" in r else r for r in CERT.records]
    assert certify_labels(DEV, Labels(near_empty), 0.05).certificate is None  # no representation is that near


def test_a_handful_certifies_nothing_and_says_what_is_missing() -> None:
    few = Labels(CERT.records[:20])
    found = certify_labels(DEV, few, 0.05)
    assert found.certificate is None and not found.accepted.any()
    assert found.sentence.startswith(f"no certificate: {few.labelled.sum()} of at least 45 independent verdicts")
    nothing = Labels([refused(cluster) for cluster in CLUSTERS])
    assert "let no pair through" in certify_labels(nothing, nothing, 0.05).sentence


def test_a_risk_that_is_too_high_certifies_nothing() -> None:
    bad = Labels([record(c, 0.1, unsafe=i % 5 == 0) for i, c in enumerate(make_clusters(CERTIFICATION, 300))])
    found = certify_labels(DEV, bad, 0.05)
    assert found.certificate is None and "nothing passes" in found.sentence
    assert found.score is not None  # to compare with text all the same


def test_labels_that_contradict_each_other_stop_everything() -> None:
    other = [*CERT.records[:-1], record(CLUSTERS[0], 0.1, False, settings={**SETTINGS, "sampler": "uni_pc"})]
    with pytest.raises(Stop, match="settings that differ in: sampler"):
        certify_labels(DEV, Labels(other), 0.05)
    # A refused pair that the rules would let through has no label: it must not count as a safe one.
    let_through = [{**r, "region": 0.3} for r in CERT.records]
    with pytest.raises(Stop, match="was refused with the gate open"):
        certify_labels(DEV, Labels(let_through), 0.05)


def test_a_row_counts_clusters_attributes_and_seconds() -> None:
    made = Labels(
        [
            record(CLUSTERS[0], 0.1, False),
            record(CLUSTERS[1], 0.1, True),  # loses the shape
            record(CLUSTERS[2], 0.1, False, stock=looks(motion=0.1, colour=0.5), reuse=looks(size=0.3, weather=0.2)),
            record(CLUSTERS[3], 0.1, False, stock=looks(shape=0.6), reuse=looks(shape=0.4), seconds=1.0),
            refused(CLUSTERS[4]),
        ]
    )
    found = row("open", made, made.labelled, decode=2.0)
    assert {n: found[n] for n in ("clusters", "accepted", "coverage")} == {
        "clusters": 5,
        "accepted": 4,
        "coverage": 0.8,
    }
    # The third loses size and weather and gains motion and colour; the fourth loses an unclear shape: only plainly.
    assert (found["unsafe"], found["unsafe_plainly"]) == (2, 3)
    assert (found["lost"], found["gained"], found["net"]) == (3, 2, 1)
    assert found["rate"] == 0.5 and found["bound"] == round(upper_bound(2, 4, 0.9), 4)
    # Stock shows 6 + 6 + 4 + 6, of which 1 + 2 + 1 are gone.
    assert found["kept"] == pytest.approx(18 / 22, abs=1e-4)
    assert (found["seconds"], found["seconds_with_decode"]) == (3.25, 5.25)
    assert found["speedup_with_decode"] == 2.0 and found["work"] == 0.5
    nothing = row("closed", made, np.zeros(5, bool), decode=2.0)
    assert nothing["rate"] is nothing["bound"] is nothing["kept"] is nothing["speedup_with_decode"] is None


def test_kinds_add_up_to_all() -> None:
    found = {line["kind"]: line for line in by_kind(CERT, CERT.labelled)}
    kinds = [line for kind, line in found.items() if kind not in ("all", "local edits")]
    for name in ("clusters", "labelled", "unsafe_labelled", "accepted", "unsafe", "lost", "gained", "net"):
        assert sum(line[name] for line in kinds) == found["all"][name], name
    assert found["local edits"]["clusters"] == 400 and found["reword"]["clusters"] == 200
    assert found["all"]["accepted"] == CERT.labelled.sum() and found["all"]["coverage"] == CERT.labelled.mean().round(4)


def test_at_equal_risk_early_states_cover_more_than_text() -> None:
    found = {(line["kind"], line["risk"]): line for line in compared(CERT, CERT.by_gate)}
    line = found["all", 0.05]
    assert line["gate"] > 0.35 > 0.1 > line["text"] and line["low"] > 0.2
    assert line["difference"] == pytest.approx(line["gate"] - line["text"], abs=2e-4)
    assert found["reword", 0.01]["clusters"] == 200
    assert {risk for _, risk in found} == {0.01, 0.02, 0.05}


def test_as_many_as_ties_allow() -> None:
    texts = zip(CLUSTERS, (0.9, 0.8, 0.8, 0.8, 0.7, 0.6), strict=True)
    similar = Labels([record(cluster, 0.1, False, similarity) for cluster, similarity in texts])
    assert [as_many(similar.by_text, count).sum() for count in (0, 1, 2, 3, 4, 6)] == [0, 1, 1, 4, 4, 6]


def test_a_floor_is_judged_by_the_same_rule() -> None:
    made = Labels(
        [record(c, 0.1, False, stock=looks(motion=0.1) if i == 2 else looks()) for i, c in enumerate(CLUSTERS)]
    )

    def floor(number: int, **shown: float) -> dict[str, Any]:
        return {"floor": NOISE_FLOOR, "id": CLUSTERS[number].id, "looks": looks(**shown), "digest": f"other {number}"}

    same = {**floor(3), "digest": f"stock {CLUSTERS[3].id}"}
    found = floor_row(NOISE_FLOOR, [floor(0), floor(1, shape=0.2, size=0.1), floor(2), same], made)
    assert (found["clusters"], found["unsafe"], found["lost"], found["gained"], found["same"]) == (4, 1, 2, 1, 1)
    assert floor_row("none", [], made)["rate"] is None


def test_the_same_certificate_keeps_its_name_from_start_to_start(tmp_path: Path) -> None:
    certificate = certify_labels(DEV, CERT, 0.05).certificate
    path = tmp_path / "certificate.json"
    assert kept(certificate, path) == certificate == read_certificate(path)
    later = replace(certificate, created=certificate.created + 60)
    assert later.id != certificate.id and kept(later, path) == certificate
    other = replace(later, note="of other labels")
    assert kept(other, path) == other == read_certificate(path)
    path.write_text("{}")
    assert kept(later, path) == later == read_certificate(path)


def fresh_records(certificate: Any, count: int = 100) -> list[dict[str, Any]]:
    """Served by the certificate: near ones are hits."""
    found = []
    for made in labels(FRESH, count):
        hit = "reuse" in made and certificate.accepts(Discrepancies(**made["discrepancies"]), made["region"])
        if not hit:
            made.pop("reuse", None)
        found.append({**made, "certificate": certificate.id, "decision": "hit" if hit else "miss"})
    return found


def test_the_whole_analysis_and_its_tables(tmp_path: Path) -> None:
    outcome = certify_labels(DEV, CERT, 0.05)
    fresh = fresh_records(outcome.certificate)
    stale = {**fresh[0], "id": fresh[1]["id"], "certificate": "of an earlier one"}
    floors = [{"floor": NOISE_FLOOR, "id": c.id, "looks": looks(), "digest": "other"} for c in CLUSTERS]
    ready = stages(tmp_path, DEV.records, CERT.records, [*fresh[:1], stale, *fresh[2:]], floors)
    result = analysed(ready, outcome, 0.05)
    hits = [r for i, r in enumerate(fresh) if r["decision"] == "hit" and i != 1]
    assert result["fresh"]["clusters"] == 99 and result["fresh"]["accepted"] == len(hits)  # not the stale one
    assert result["labels"] == {DEVELOPMENT: 200, CERTIFICATION: 1000, FRESH: 100}
    assert result["certified_text"] is None
    rates = {"certified": 0.6, "false": 0.08, "coverage": 0.4}
    simulation = {
        "repetitions": 10, "rows": [{"world": "a world", "procedure": "certificate", **rates}],
        "simulated_false_rate": 0.08, "naive_false_rate": 0.4,
    }  # fmt: skip
    line = last_line(result | {"simulation": simulation})
    assert tuple(line) == JSON_FIELDS
    certificate = outcome.certificate
    assert line["n_accepted"] == certificate.accepted and line["unsafe"] == certificate.unsafe
    assert line["bound"] == certificate.bound and line["coverage"] == round(certificate.coverage, 4)
    assert line["text_only_coverage"] == 0.0  # nothing at that risk
    assert (line["fresh_n"], line["naive_false_rate"]) == (len(hits), 0.4)
    whole = {
        **json.loads(json.dumps(result)), "simulation": simulation, "command": "bench", "commit": "0123456789abc",
        "device": "CPU", "date": "today", "servers": 1, "steps": 20, "sampler": "euler",
    }  # fmt: skip
    whole["labels"]["runs"] = [{"commit": "abcdefabcdef"}]
    (tmp_path / "certificate_gpu.json").write_text(json.dumps(whole), encoding="utf-8")
    text = "\n".join(sections(tmp_path))
    assert outcome.sentence in text and "commit abcdefabc" in text
    assert "| a world | certificate | 60.00% | 8.00% | 40.00% |" in text
    head, _, row_of_score, row_of_fresh = [
        [cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines() if line.startswith("|")
    ][:4]
    shown = dict(zip(head, row_of_score, strict=True))
    assert shown["accepted n"] == str(certificate.accepted) and shown["at most"] == f"{certificate.bound:.2%}"
    assert "log representation" in shown["accepts"]
    assert dict(zip(head, row_of_fresh, strict=True))["accepted n"] == str(len(hits))
    assert "| another seed | 6 | 0 |" in text and "| unrelated | 100 |" in text
    assert sections(tmp_path / "nowhere") == []
    (tmp_path / "certificate_fp32_cpu.json").write_text(json.dumps(whole), encoding="utf-8")
    headings = [part.splitlines()[0] for part in sections(tmp_path) if part.startswith("##")]
    assert headings == ["## Certificate of the gate", "## Certificate of the gate, float32 weights"]


def test_without_a_certificate_the_last_line_has_nulls_and_the_tables_say_why(tmp_path: Path) -> None:
    development, few = DEV.records[:20], CERT.records[:20]
    outcome = certify_labels(Labels(development), Labels(few), 0.05)
    result = analysed(stages(tmp_path, development, few), outcome, 0.05)
    simulation = {"simulated_false_rate": 0.08, "naive_false_rate": 0.4}
    line = last_line(result | {"simulation": simulation})
    assert {n for n, value in line.items() if value is None} == {
        "n_accepted", "unsafe", "bound", "coverage", "text_only_coverage", "fresh_n", "fresh_unsafe"
    }  # fmt: skip
    assert line["delta"] == 0.05 and line["simulated_false_rate"] == 0.08
    text = tables({**result, "simulation": None})
    assert outcome.sentence in text and "nothing was certified" in text


def test_an_unfinished_set_certifies_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ready = stages(tmp_path, DEV.records, CERT.records)
    path = tmp_path / "certificate.json"
    assert certificate_job.certified(ready, 0.05, path).certificate is not None
    cut = stages(tmp_path / "cut", DEV.records, CERT.records[:-1])
    cut.clusters[CERTIFICATION].append(make_clusters(CERTIFICATION, 1000)[-1])
    assert certificate_job.certified(cut, 0.05, path) is None
    assert "999 of 1000 certification clusters are labelled" in capsys.readouterr().err


def test_only_a_whole_measurement_at_the_usual_rate_is_shipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(certificate_job, "SHIPPED", tmp_path / "certificates")
    options = Namespace(quick=False, sampler="euler", steps=20, fp32=False)
    certificate = certify_labels(DEV, CERT, 0.05).certificate
    ship(certificate, options)
    assert read_certificate(tmp_path / "certificates" / "demo_euler_20_steps.json") == certificate
    ship(certificate, Namespace(**{**vars(options), "fp32": True}))
    assert (tmp_path / "certificates" / "demo_euler_20_steps_fp32.json").is_file()
    with pytest.raises(Stop, match="no certificate to ship"):
        ship(None, options)
    for other, asked in ((certificate, Namespace(**{**vars(options), "quick": True})),
                         (certify_labels(DEV, CERT, 0.1).certificate, options)):  # fmt: skip
        with pytest.raises(Stop, match="only a whole measurement at a rate of 0.05 is shipped"):
            ship(other, asked)


def test_the_simulation_tells_a_valid_procedure_from_a_naive_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(certificate_job, "REPETITIONS", 40)
    found = certificate_job.simulated()
    assert found["simulated_false_rate"] < 0.25 < found["naive_false_rate"]
    assert {row["procedure"] for row in found["rows"]} >= {"certificate", certificate_job.NAIVE}
    monkeypatch.setattr(certificate_job, "most_that_may_be_false", lambda repetitions: 0.0)
    with pytest.raises(Stop, match="of the certificates false"):
        certificate_job.simulated()
