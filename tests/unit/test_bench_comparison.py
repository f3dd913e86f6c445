"""Rows and files of the comparisons, from records made by hand."""

from __future__ import annotations

import json

import pytest

from benchmarks.comparison import to_json
from benchmarks.rows import JSON_FIELDS, flat, last_line, row, summarise
from benchmarks.variants import ANY_DONOR, DEFAULT, window


def record(number: int, kind: str, **runs: dict) -> dict:
    """Stock took 10 s and decoding 2 s; stock shows all but the motion."""
    return {
        "id": f"r{number}", "kind": kind, "stock_seconds": 10.0, "decode_seconds": 2.0, "stock_wrong": ["motion"],
        "runs": {{"default": DEFAULT, "open": ANY_DONOR}.get(name, name): run for name, run in runs.items()},
    }  # fmt: skip


def miss() -> dict:
    return {"decision": "miss", "seconds": 10.0, "wrong": ["motion"]}


def hit(seconds: float, wrong: list[str], similarity: float = 0.9, state: float = 0.1, **more: object) -> dict:
    found = {"representation": 0.01, "residual": 0.1, "dynamics": 1.0, "state": state}
    return {
        "decision": "hit", "seconds": seconds, "wrong": wrong, "similarity": similarity, "region": 0.3,
        "discrepancies": found, **more,
    }  # fmt: skip


RECORDS = [
    record(0, "base", default=miss(), open=miss(), easy=hit(8.0, ["motion"])),
    record(
        1, "shape", default=hit(4.0, ["motion"]), easy=hit(8.0, ["motion"]),
        open=hit(4.0, ["motion"], psnr=30.0, ssim=None, attention="density 50 %"),
    ),
    record(
        2, "weather", default=miss(), open=hit(2.0, ["weather", "size"], 0.8, state=0.5, attention="dense: set"),
        easy=hit(8.0, ["motion", "size"]),
    ),
]  # fmt: skip


def test_a_row_compares_hits_with_stock_and_all_requests_with_misses_included() -> None:
    found = row(ANY_DONOR, flat(RECORDS, ANY_DONOR))
    assert found == {
        "variant": ANY_DONOR,
        "n_requests": 3,
        "hit_rate": pytest.approx(2 / 3, abs=1e-4),
        "assist_rate": 0.0,
        "sparse_rate": 0.5,
        "dit_seconds_hit": 3.0,
        "e2e_seconds_hit": 5.0,
        "dit_seconds_all": pytest.approx(16 / 3, abs=1e-4),
        "e2e_seconds_all": pytest.approx(22 / 3, abs=1e-4),
        "dit_speedup_hit": pytest.approx((10 / 4 + 10 / 2) / 2, abs=1e-4),
        "e2e_speedup_hit": pytest.approx((12 / 6 + 12 / 4) / 2, abs=1e-4),
        "e2e_speedup_all": pytest.approx(36 / (12 + 6 + 4), abs=1e-4),
        # Stock shows 5 of 6 twice; the second hit lost two of them. Showing the motion that stock lacks wins nothing.
        "attributes_kept": pytest.approx(8 / 10),
        "attributes_right": 0.75,
        "stock_attributes": pytest.approx(10 / 12, abs=1e-4),
        "unsafe_hits": 1,
        "unsafe_rate": 0.5,
        # At the rate p, at most one of two is unsafe with probability 1 - p * p = 0.1.
        "unsafe_upper": pytest.approx(0.9**0.5, abs=1e-4),
        "psnr": 30.0,
        "ssim": None,
        "work": None,
        "psnr_whole": None,
    }


def test_a_row_without_hits_gives_no_number_about_them() -> None:
    found = row(DEFAULT, flat(RECORDS[:1], DEFAULT))
    assert found["hit_rate"] == 0.0 and found["e2e_speedup_all"] == 1.0
    gone = ("dit_speedup_hit", "e2e_speedup_hit", "attributes_kept", "stock_attributes", "unsafe_rate")
    assert all(found[name] is None for name in gone)
    assert row(DEFAULT, [])["hit_rate"] is None


def test_the_summary_also_compares_on_what_the_default_accepts() -> None:
    found = summarise(RECORDS)
    assert [r["variant"] for r in found["rows"]] == [DEFAULT, ANY_DONOR, "easy"]
    same = {r["variant"]: r for r in found["rows_on_default_hits"]}
    assert {r["n_requests"] for r in same.values()} == {1}
    assert same["easy"]["dit_speedup_hit"] == 1.25 and same["easy"]["unsafe_rate"] == 0.0
    assert found["signature_auc"] == 1.0  # the gate's score is higher for the unsafe hit
    assert found["text_auc"] == 1.0
    assert found["matching_text_similarity"] == pytest.approx(0.85)  # accepts one, as the default does
    matched = found["text_at_equal_acceptance"]
    assert matched["hit_rate"] == pytest.approx(1 / 3, abs=1e-4)
    assert matched["unsafe_hits"] == 0  # the unsafe one's text is further away


def test_without_the_gate_switched_off_there_is_no_separation() -> None:
    records = [{**r, "runs": {DEFAULT: r["runs"][DEFAULT]}} for r in RECORDS]
    found = summarise(records)
    assert found["signature_auc"] is None and found["text_auc"] is None and "separation" not in found


def test_the_file_is_json_with_a_line_for_each_record() -> None:
    text = to_json({"commit": "abc", **summarise(RECORDS)}, RECORDS)
    assert json.loads(text) == {"commit": "abc", **summarise(RECORDS), "records": RECORDS}
    assert len([line for line in text.splitlines() if '"id":"r' in line]) == len(RECORDS)


def test_assists_count_as_hits_and_are_told_apart() -> None:
    records = [record(0, "base", default=miss()), record(1, "weather", default={**hit(5.0, []), "decision": "assist"})]
    found = row(DEFAULT, flat(records, DEFAULT))
    assert (found["hit_rate"], found["assist_rate"], found["dit_speedup_hit"]) == (0.5, 0.5, 2.0)


def test_losses_are_told_by_kind_of_edit() -> None:
    losses = {line["variant"]: line for line in summarise(RECORDS)["losses"]}
    assert list(losses[DEFAULT]) == ["variant", "base", "shape", "weather", "local edits", "all"]
    assert losses[DEFAULT]["base"] is None and losses[DEFAULT]["weather"] is None
    assert losses[DEFAULT]["shape"] == {"unsafe": 0, "hits": 1, "upper": 0.9}
    assert losses["easy"]["weather"] == {"unsafe": 1, "hits": 1, "upper": 1.0}
    assert losses["easy"]["all"]["hits"] == 3 and losses["easy"]["local edits"]["hits"] == 1


def test_the_stock_sampler_is_a_line_of_its_own() -> None:
    found = summarise(RECORDS)
    stock = found["stock"]
    assert (stock["dit_seconds_hit"], stock["e2e_seconds_all"], stock["dit_speedup_hit"]) == (10.0, 12.0, 1.0)
    assert stock["attributes_right"] == pytest.approx(5 / 6, abs=1e-4) and stock["unsafe_rate"] == 0.0
    assert found["stock_on_default_hits"]["n_requests"] == 1


def test_random_masks_that_nobody_drew_give_no_row() -> None:
    def rows(*drawn: int) -> list[str]:
        runs = [hit(4.0, [], masks_drawn=count) for count in drawn]
        records = [record(i, "shape", default=miss(), random=run) for i, run in enumerate(runs)]
        return [line["variant"] for line in summarise(records)["rows"]]

    assert rows(0, 0) == [DEFAULT]
    assert rows(0, 3) == [DEFAULT, "random"]  # the first hit may have had nothing to compute


def test_the_last_line_holds_what_was_promised_and_no_more() -> None:
    line = last_line(summarise(RECORDS))
    assert list(line) == ["rows", "signature_auc", "text_auc"]
    assert all(tuple(r) == JSON_FIELDS for r in line["rows"])
    assert json.loads(json.dumps(line)) == line


@pytest.mark.parametrize(("blocks", "span"), [(5, (3, 4)), (11, (2, 4)), (15, (2, 5)), (20, (1, 5)), (25, (1, 6))])
def test_windows_scale_to_the_six_blocks_of_the_demo_model(blocks: int, span: tuple[int, int]) -> None:
    from carnator_core.options import ReuseOptions
    from carnator_core.plan import LayerWindow

    found = LayerWindow.of(ReuseOptions(**window(blocks)), depth=6)
    assert (found.first, found.stop) == span
