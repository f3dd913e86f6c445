"""Many runs in one server: hits, misses, interrupts and errors must leave nothing behind.

A few runs by default; `CARNATOR_SOAK_RUNS=50 python3 scripts/test.py tests/workflows/test_soak.py -s` is the long one.
"""

from __future__ import annotations

import itertools
import os
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from scripts.graphs import SAVED_LATENT, DemoGraph, without_video
from scripts.testbed.bootstrap import Install
from scripts.testbed.client import Event, Interrupted, NodeError
from scripts.testbed.server import ComfyServer, has_accelerator
from support.paths import TESTS

RUNS = int(os.environ.get("CARNATOR_SOAK_RUNS", "15"))
WARM = 10  # runs until allocators and caches have what they need
SIZE = {"width": 64, "height": 64, "length": 9}
STEPS, LONG = 8, 40  # long enough that an interrupt comes before the end
PROMPT = "a small red ball drifts left over a meadow in clear weather"
OTHER_WORDS = "over a meadow in clear weather drifts a little red ball to the left"
KINDS = ("miss", "hit", "interrupted miss", "miss", "other words", "failed miss", "miss", "hit", "interrupted hit")
RSS_MB = 24.0  # allowed growth after the warm runs; torch's allocator alone moves by several MB


@pytest.fixture(scope="module")
def soaked(install: Install, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ComfyServer]:
    base = tmp_path_factory.mktemp("soak")
    (base / "custom_nodes").mkdir()
    (base / "custom_nodes" / "soak_nodes").symlink_to(TESTS / "support" / "soak_nodes")
    with ComfyServer(install, base, cpu=not has_accelerator()) as running:
        yield running


@dataclass(frozen=True)
class Row:
    """What one run showed."""

    kind: str
    outcome: str
    held: dict[str, Any] | None
    rss_mb: float
    files: int


class Soak:
    """Makes the graph of each run; a hit repeats the last miss with another widget that leaves the result alone."""

    def __init__(self, server: ComfyServer) -> None:
        self.server, self.graphs = server, DemoGraph.load(server.get("/object_info"))
        self.seed, self._percent = 0, itertools.cycle((59.0, 58.0, 57.0))

    def graph(self, kind: str) -> dict[str, Any]:
        if kind.endswith("miss"):
            self.seed += 1
        steps = LONG if kind == "interrupted miss" else STEPS
        graph = without_video(self.graphs.ours(OTHER_WORDS if kind == "other words" else PROMPT, steps=steps))
        sampler = graph[self.graphs.sampler]["inputs"]
        sampler.update(seed=self.seed, max_region_percent=next(self._percent))
        graph[sampler["latent_image"][0]]["inputs"].update(SIZE)
        loaded = sampler["model"]
        if kind.startswith("failed"):
            graph["fault"] = {"class_type": "SoakFault", "inputs": {"model": loaded, "forward": 4}}
            sampler["model"] = ["fault", 0]
        graph["held"] = {"class_type": "SoakHeld", "inputs": {"model": loaded, "latent": [self.graphs.sampler, 0]}}
        return graph

    def run(self, kind: str) -> Row:
        def interrupt(event: Event) -> None:
            if event.type == "progress" and event.data["value"] == 3:
                self.server.interrupt()

        held, outcome = None, ""
        try:
            result = self.server.run(self.graph(kind), interrupt if kind.startswith("interrupted") else None)
            held = result.outputs["held"]["held"][0]
            outcome = result.outputs[self.graphs.sampler]["carnator"][0]["decision"]
        except Interrupted:
            outcome = "interrupted"
        except NodeError as error:
            assert "the soak test asked for this error" in error.message
            outcome = "failed"
        process = Path(f"/proc/{self.server.process.pid}")
        status = (process / "status").read_text()
        rss = int(status.partition("VmRSS:")[2].split()[0]) / 1024
        return Row(kind, outcome, held, rss, len(list((process / "fd").iterdir())))


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.timeout(60 + 20 * RUNS)
def test_many_runs_leave_nothing_behind(soaked: ComfyServer) -> None:
    soak = Soak(soaked)
    rows = [soak.run(kind) for _, kind in zip(range(RUNS), itertools.cycle(KINDS), strict=False)]
    for number, row in enumerate(rows, 1):
        held = f"{row.held['tensors']} tensors, {row.held['bytes'] / 2**20:.2f} MB" if row.held else ""
        held += f", GPU {row.held['gpu_bytes'] / 2**20:.2f} MB" if row.held and row.held["gpu_bytes"] else ""
        print(f"{number:3d} {row.kind:17s} {row.outcome:12s} RSS {row.rss_mb:7.1f} MB, {row.files} files  {held}")

    expected = {
        "miss": {"miss"}, "hit": {"hit"}, "other words": {"hit", "miss"}, "failed miss": {"failed"},
        "interrupted miss": {"interrupted"}, "interrupted hit": {"interrupted", "hit"},
    }  # fmt: skip
    assert all(row.outcome in expected[row.kind] for row in rows), Counter((r.kind, r.outcome) for r in rows)

    looks = [row.held for row in rows if row.held]
    # One store stays open for the life of the process.
    assert all(held["ours"] == {"Store": 1} for held in looks), [held["ours"] for held in looks]
    first = looks[0]["model"]
    assert all(held["model"] == first for held in looks), [held["model"] for held in looks if held["model"] != first]
    late = [row for row in rows[WARM:] if row.held]
    early = [row for row in rows[:WARM] if row.held]
    for what in ("tensors", "gpu_bytes"):
        assert max(row.held[what] for row in late) <= max(row.held[what] for row in early)
    # Connections of the client come and go; a leak would raise the least number too.
    assert min(row.files for row in rows[-5:]) <= max(row.files for row in rows[:WARM])
    assert max(row.rss_mb for row in rows[WARM:]) <= max(row.rss_mb for row in rows[:WARM]) + RSS_MB


def test_after_all_that_a_miss_is_still_stock(soaked: ComfyServer) -> None:
    graphs = DemoGraph.load(soaked.get("/object_info"))

    def latent(graph: dict[str, Any]) -> torch.Tensor:
        graph = without_video(graph)
        sampler = graph[graphs.sampler]["inputs"]
        sampler["seed"] = 4711
        graph[sampler["latent_image"][0]]["inputs"].update(SIZE)
        return load_file(soaked.base.file(soaked.run(graph).outputs[SAVED_LATENT]["latents"][0]))["latent_tensor"]

    assert torch.equal(latent(graphs.ours(PROMPT, steps=STEPS)), latent(graphs.stock(PROMPT, steps=STEPS)))
