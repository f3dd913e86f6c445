"""The end-to-end measurement, with a model small enough for a CPU: that each run is what its row says."""

from __future__ import annotations

import itertools
from types import ModuleType
from typing import Any

import pytest
import torch

from benchmarks.gpu_e2e import Sweep, measure, random_consensus
from benchmarks.random_models import MODELS
from carnator_core.options import ReuseOptions
from scripts.testbed.bootstrap import Install
from scripts.testbed.console import Stop

SKIPS = (4, 6, 7)


@pytest.fixture(scope="module")
def measured(comfy: ModuleType, install: Install) -> dict[str, Any]:
    sweep = Sweep("tiny", 10, (0.2, 0.4), (0.3, 1.0), (0.0, 0.3), SKIPS, change=(0.1,) * 10, profile=True)
    return measure(install.comfyui, sweep)


def test_stock_easycache_a_miss_and_every_region_are_measured(measured: dict[str, Any]) -> None:
    rows = {row["what"]: row for row in measured["rows"]}
    timed = [what for what, row in rows.items() if "seconds" in row]
    cases = itertools.product(("20%", "40%"), ("0.3", "1"), ("no step held", "hold 0.3"))
    hits = [f"hit, region {share}, density {density}, {held}" for share, density, held in cases]
    assert timed == ["stock", "EasyCache, replayed skips", "miss", *hits]
    assert rows["miss"]["steps"] == {"dense": 10}
    assert rows[hits[0]]["steps"]["region"] > 0
    assert rows[hits[0]]["region"] < rows[hits[4]]["region"]
    assert rows[hits[0]]["attention"].startswith("density 30 %")
    assert "dense" in (rows[hits[2]]["attention"] or "dense")
    assert "hold" not in rows[hits[0]]["steps"] and rows[hits[1]]["steps"]["hold"] > 0


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
        costs = [operation["cpu_ms"] for operation in found["operations"]]
        assert costs == sorted(costs, reverse=True) and 0 < len(costs) <= 25


def test_an_evaluation_that_easycache_cannot_skip_stops_the_measurement(comfy: ModuleType, install: Install) -> None:
    with pytest.raises(Stop, match=r"EasyCache skipped \[4\], not \[0, 4\]"):
        measure(install.comfyui, Sweep("tiny", 6, (0.2,), easycache_skips=(0, 4)))


def test_a_random_consensus_gives_masks_of_the_density_that_is_asked_for() -> None:
    consensus = random_consensus(MODELS["tiny"], 64)
    mask = consensus.mask(0, torch.device("cpu"), ReuseOptions(attention_percent=40.0))
    assert consensus.mass.shape == (4, 2, 7, 7)
    assert bool((mask.sum(-1) == 3).all()), "three of seven blocks are the fewest that make 40 %"
    assert not torch.equal(mask[0], mask[1])
