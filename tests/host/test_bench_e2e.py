"""The end-to-end measurement, with a model small enough for a CPU: that each run is what its row says."""

from __future__ import annotations

import dataclasses
import itertools
import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from benchmarks import gpu_e2e
from benchmarks.gpu_e2e import Sweep, measure
from benchmarks.kept_result import KeptResult
from benchmarks.random_models import MODELS
from benchmarks.stand_ins import random_consensus
from carnator_core.options import ReuseOptions
from scripts.testbed.bootstrap import Install
from scripts.testbed.console import Stop

SKIPS = (4, 6, 7)


def result_in(folder: Path, sweep: Sweep, kept: bool = False) -> KeptResult:
    call = {"command": "bench", "date": "today"}
    return KeptResult({"commit": "0", **sweep.head}, call, folder / "out.json", folder / "kept.json" if kept else None)


@pytest.fixture(scope="module")
def measured(comfy: ModuleType, install: Install, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What lies in the file of a whole sweep."""
    folder = tmp_path_factory.mktemp("e2e")
    sweep = Sweep("tiny", 10, (0.2, 0.4), (0.3, 1.0), (0.0, 0.3), SKIPS, change=(0.1,) * 10, profile=True)
    measure(install.comfyui, sweep, result_in(folder, sweep))
    return json.loads((folder / "out.json").read_text())


def test_stock_easycache_a_miss_and_every_region_are_measured(measured: dict[str, Any]) -> None:
    rows = {row["what"]: row for row in measured["rows"]}
    timed = [what for what, row in rows.items() if "seconds" in row]
    cases = itertools.product(("0.3", "1"), ("no step held", "hold 0.3"), ("20%", "40%"))
    hits = [f"hit, region {share}, density {density}, {held}" for density, held, share in cases]
    assert timed == ["stock", "EasyCache, replayed skips", "miss", *hits]
    assert rows["miss"]["steps"] == {"dense": 10}
    first = rows["hit, region 20%, density 0.3, no step held"]
    assert first["steps"]["region"] > 0 and first["attention"].startswith("density 30 %")
    assert (first["asked_region"], first["density"], first["hold"]) == (0.2, 0.3, 0.0)
    assert first["region"] < rows["hit, region 40%, density 0.3, no step held"]["region"]
    assert "dense" in (rows["hit, region 20%, density 1, no step held"]["attention"] or "dense")
    held = rows["hit, region 20%, density 0.3, hold 0.3"]
    assert "hold" not in first["steps"] and held["steps"]["hold"] > 0


def test_a_row_says_what_was_spent_in_our_own_code_and_how_long_each_kind_of_step_took(
    measured: dict[str, Any],
) -> None:
    for row in measured["rows"]:
        if row["what"] == "miss" or row["what"].startswith("hit"):
            assert 0 < row["own_share"] < 1
            assert row["own_share"] == pytest.approx(row["own_seconds"] / row["seconds"], abs=1e-2)
            assert set(row["step_seconds"]) == set(row["steps"])
            spent = sum(row["step_seconds"][kind] * count for kind, count in row["steps"].items())
            assert 0 < spent < row["seconds"]


def test_a_model_with_easycache_is_declined_and_the_row_says_so(measured: dict[str, Any]) -> None:
    (row,) = [row for row in measured["rows"] if row["what"].startswith("EasyCache on a hit")]
    assert "easycache" in row["declined"]


def test_figures_with_decoding_count_the_decoder_in_both_runs(measured: dict[str, Any]) -> None:
    decode, stock = measured["decode_seconds"], measured["rows"][0]
    assert decode > 0 and stock["speedup_with_decode"] == 1.0
    for row in measured["rows"]:
        if "seconds" in row:
            assert row["seconds_with_decode"] == pytest.approx(row["seconds"] + decode, abs=2e-3)
            assert abs(row["speedup_with_decode"] - 1) <= abs(row["speedup"] - 1) + 1e-3


def test_one_step_of_each_kind_is_profiled(measured: dict[str, Any]) -> None:
    steps = measured["profile"]["steps"]
    assert set(steps) == {"check", "region"}
    for found in steps.values():
        assert any("mm" in operation["operation"] for operation in found["operations"])
        costs = [operation["ms"] for operation in found["operations"]]
        assert costs == sorted(costs, reverse=True) and 0 < len(costs) <= 12
        assert sum(costs) <= found["ms"] + 0.1


def test_the_next_call_goes_on_where_the_one_before_was_cut(
    comfy: ModuleType, install: Install, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    monkeypatch.setattr(gpu_e2e, "REFERENCE_TOLERANCE", 1e9)  # other processes share this CPU
    sweep = Sweep("tiny", 6, (0.2, 0.4), (0.5, 1.0))
    none, one = (dataclasses.replace(sweep, seconds=0.0), dataclasses.replace(sweep, regions=(0.2,), densities=(0.5,)))
    names = []
    for step in (none, one, sweep):
        result = result_in(tmp_path, step, kept=True)
        before = json.loads(json.dumps(result.rows))
        measure(install.comfyui, step, result, tmp_path / "stores")
        assert result.rows[: len(before)] == before, "what was measured stays"
        assert json.loads((tmp_path / "out.json").read_text()) == json.loads((tmp_path / "kept.json").read_text())
        names.append([row["what"] for row in result.rows])
    hits = [
        f"hit, region {share}, density {density}, no step held" for density in ("0.5", "1") for share in ("20%", "40%")
    ]
    assert names == [[], ["stock", "miss", hits[0]], ["stock", "miss", *hits]]
    assert len(result.data["calls"]) == 3
    printed = [json.loads(line)["what"] for line in capsys.readouterr().out.splitlines() if line.startswith("{")]
    assert printed == names[-1], "each row is printed once, as one line of JSON"
    monkeypatch.setattr(gpu_e2e, "REFERENCE_TOLERANCE", -1.0)
    with pytest.raises(Stop, match="when stock was measured"):  # the device is another one or was not alone
        measure(install.comfyui, sweep, result_in(tmp_path, sweep, kept=True), tmp_path / "stores")
    assert len(json.loads((tmp_path / "kept.json").read_text())["calls"]) == 3


def test_rows_of_another_commit_or_sweep_are_not_gone_on_with(tmp_path: Path) -> None:
    sweep = Sweep("tiny", 6, (0.2,))
    result_in(tmp_path, sweep, kept=True).write()
    with pytest.raises(Stop, match="another steps"):
        result_in(tmp_path, dataclasses.replace(sweep, steps=7), kept=True)


def test_an_evaluation_that_easycache_cannot_skip_stops_the_measurement(
    comfy: ModuleType, install: Install, tmp_path: Path
) -> None:
    sweep = Sweep("tiny", 6, (0.2,), easycache_skips=(0, 4))
    with pytest.raises(Stop, match=r"EasyCache skipped \[4\], not \[0, 4\]"):
        measure(install.comfyui, sweep, result_in(tmp_path, sweep))


def test_a_random_consensus_gives_masks_of_the_density_that_is_asked_for() -> None:
    consensus = random_consensus(MODELS["tiny"], 64)
    mask = consensus.mask(0, torch.device("cpu"), ReuseOptions(attention_percent=40.0))
    assert consensus.mass.shape == (4, 2, 7, 7)
    assert bool((mask.sum(-1) == 3).all()), "three of seven blocks are the fewest that make 40 %"
    assert not torch.equal(mask[0], mask[1])
