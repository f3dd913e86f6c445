"""The documentation's tables and pictures of whole runs at full size, from results made by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks import e2e_tables, plot, tables


def result(model: str = "Wan2.2-5B, small", steps: int = 50, **more: Any) -> dict[str, Any]:
    """Stock takes 100 s; a hit the faster, the smaller its region and density."""
    rows = [
        {"what": "stock", "seconds": 100.0, "speedup": 1.0, "speedup_with_decode": 1.0, "peak_gb": 15.0},
        {"what": "EasyCache, replayed skips", "seconds": 44.0, "speedup": 2.27, "speedup_with_decode": 2.1},
        {"what": "EasyCache on a hit", "declined": "declined: easycache"},
    ]
    for density in (0.5, 0.2, 1.0):
        for region in (0.6, 0.05):
            seconds = 20 + 10 * region + 4 * density
            rows.append({"what": f"hit, region {region:.0%}, density {density:g}, hold 0.5", "seconds": seconds,
                         "speedup": round(100 / seconds, 3), "speedup_with_decode": 2.5, "own_share": 0.0081,
                         "peak_gb": 15.7, "extra_gb": 0.7, "asked_region": region, "density": density,
                         "hold": 0.5})  # fmt: skip
    head = {"commit": "0123456789ab", "device": "H200", "torch": "2.11", "model": model, "steps": steps}
    calls = [{"command": "bench one", "date": "yesterday"}, {"command": "bench one", "date": "today"}]
    return {**head, "calls": calls, "rows": rows, **more}


def write(folder: Path, name: str, content: dict[str, Any]) -> None:
    (folder / f"h200_e2e_{name}.json").write_text(json.dumps(content), encoding="utf-8")


def test_a_sweep_is_shown_at_a_glance_and_run_by_run(tmp_path: Path) -> None:
    write(tmp_path, "5b", result())
    text = "\n".join(e2e_tables.sections(tmp_path))
    assert "| region | density 0.2 | density 0.5 | density 1 |" in text
    assert "| 5% | 4.70 | 4.44 | 4.08 |" in text and text.index("| 5% |") < text.index("| 60% |")
    assert "| hit, region 60%, density 0.2, hold 0.5 | 26.8 | 3.73 | 2.5 | 1.64 | 0.8% | 15.7 | 0.7 |" in text
    assert "| EasyCache on a hit | declined |" in text
    assert "`bench one` (2 calls), commit 012345678, H200, torch 2.11, today" in text


def test_the_longest_runs_of_a_model_come_first_and_the_readme_speaks_of_them(tmp_path: Path) -> None:
    write(tmp_path, "14b", result("Wan2.1-14B, other", 20))
    write(tmp_path, "5b_20", result(steps=20))
    write(tmp_path, "5b", result(steps=50))
    titles = [(found["model"], found["steps"]) for found in e2e_tables.load(tmp_path)]
    assert titles == [("Wan2.1-14B, other", 20), ("Wan2.2-5B, small", 50), ("Wan2.2-5B, small", 20)]
    sentence = e2e_tables.in_short(tmp_path, 0.5)
    assert "Wan2.2-5B, small, random weights, 50 steps on an H200" in sentence
    assert "take 3.6 to 4.4 times less time" in sentence and "regions of 5 and 60 %" in sentence


def test_the_file_that_was_measured_before_regions_had_a_field_of_their_own_is_read_too() -> None:
    old = json.loads((tables.RESULTS / "h200_e2e_5b.json").read_text(encoding="utf-8"))
    without = [{k: v for k, v in row.items() if k != "asked_region"} for row in old["rows"]]
    regions = {row["asked_region"] for row in e2e_tables.hits({**old, "rows": without})}
    assert {0.15, 0.3} <= regions
    assert e2e_tables._origin({k: v for k, v in {**old, "command": "bench", "date": "then"}.items() if k != "calls"})


def test_without_results_there_is_no_section(tmp_path: Path) -> None:
    assert e2e_tables.sections(tmp_path) == []


def test_a_picture_shows_a_line_per_density_and_number_of_steps(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    plot.speed_by_region([result(steps=50), result(steps=20), result("Wan2.1-14B, other", 20)], tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["h200_e2e_14b.png", "h200_e2e_5b.png"]
    assert (tmp_path / "h200_e2e_5b.png").read_bytes().startswith(b"\x89PNG")


def test_without_matplotlib_there_is_a_sentence_and_no_picture(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "matplotlib.figure", None)
    plot.speed_by_region([result()], tmp_path)
    assert list(tmp_path.iterdir()) == [] and "matplotlib is not installed" in capsys.readouterr().err
