"""Runs the series, each prompt with our sampler and with KSampler, and reads the results back."""

from __future__ import annotations

import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from safetensors.torch import load_file

from demo.grammar import Scene
from demo.scorer import Scorer
from scripts.graphs import OURS, SAVED_FRAMES, SAVED_LATENT, DemoGraph
from scripts.testbed.client import Graph, RunResult
from scripts.testbed.console import Stop, say
from scripts.testbed.server import ComfyServer

from .series import Request

WARM_UP_STEPS = 2


@dataclass
class Clip:
    """What one run produced."""

    seconds: float  # the sampling node
    total_seconds: float  # the whole prompt
    latent: torch.Tensor
    frames: torch.Tensor  # [F, H, W, 3] in 0..1
    video: Path
    output: dict[str, Any]  # what the sampling node showed


@dataclass
class Row:
    """One request of the series with both results."""

    request: Request
    ours: Clip
    stock: Clip
    right: dict[str, bool]
    stock_right: dict[str, bool]
    finished: float  # time.time() when our run ended: how a donor is found by its age

    @property
    def report(self) -> dict[str, Any]:
        return self.ours.output["carnator"][0]

    @property
    def decision(self) -> str:
        return self.report["decision"]

    @property
    def speedup(self) -> float:
        return self.stock.seconds / self.ours.seconds

    @property
    def identical(self) -> bool:
        return torch.equal(self.ours.latent, self.stock.latent)


class SeriesRunner:
    def __init__(self, server: ComfyServer, steps: int, out: Path) -> None:
        info = server.get("/object_info")
        if OURS not in info:
            raise Stop(f"the server has no node {OURS}; see {server.base.log}.")
        self.server = server
        self.steps = steps
        self.out = out
        self.graphs = DemoGraph.load(info)
        self.scorer = Scorer.load()

    def run(self, series: Sequence[Request]) -> list[Row]:
        # Loading the model must not count for the request that happens to come first.
        self.server.run(self.graphs.stock("warm-up", steps=WARM_UP_STEPS))
        rows = []
        for number, request in enumerate(series, 1):
            say(f"  {number}/{len(series)} {request.label}: ", end="")  # a row takes a while
            rows.append(self._row(number, request))
            self._announce(rows[-1])
        return rows

    def off_is_identical(self, row: Row) -> bool:
        """The request once more with reuse switched off, now that the store is full: stock, bit for bit."""
        graph = self.graphs.ours(row.request.prompt, steps=self.steps, reuse=False)
        return torch.equal(self._latent(self.server.run(graph)), row.stock.latent)

    def _row(self, number: int, request: Request) -> Row:
        runs = {
            "carnator": self.graphs.ours(request.prompt, steps=self.steps),
            "stock": self.graphs.stock(request.prompt, steps=self.steps),
        }
        # The order alternates, so that neither side always finds the warmer machine.
        order = list(runs) if number % 2 else list(reversed(runs))
        clips: dict[str, Clip] = {}
        finished = 0.0
        for name in order:
            clips[name] = self._clip(runs[name], f"{number:02d}_{name}")
            if name == "carnator":
                finished = time.time()
        ours, stock = clips["carnator"], clips["stock"]
        right, stock_right = self._score(ours, request.scene), self._score(stock, request.scene)
        return Row(request, ours, stock, right, stock_right, finished)

    def _clip(self, graph: Graph, name: str) -> Clip:
        result = self.server.run(graph)
        sampler = self.graphs.sampler
        video = self.out / f"{name}.mp4"
        shutil.copyfile(self._files(result, self.graphs.video, "images")[0], video)
        return Clip(
            seconds=result.node_seconds[sampler],
            total_seconds=result.seconds,
            latent=self._latent(result),
            frames=_read_frames(self._files(result, SAVED_FRAMES, "images")),
            video=video,
            output=result.outputs.get(sampler, {}),
        )

    def _latent(self, result: RunResult) -> torch.Tensor:
        return load_file(self._files(result, SAVED_LATENT, "latents")[0])["latent_tensor"]

    def _files(self, result: RunResult, node: str, key: str) -> list[Path]:
        return [self.server.base.file(item) for item in result.outputs[node][key]]

    def _score(self, clip: Clip, scene: Scene) -> dict[str, bool]:
        return {name: bool(right) for name, right in self.scorer.score(clip.frames, scene).items()}

    def _announce(self, row: Row) -> None:
        say(f"{row.decision} ({row.ours.seconds:.1f} s, KSampler {row.stock.seconds:.1f} s)")


def find_donor(row: Row, rows: Sequence[Row]) -> Row | None:
    """The earlier request whose work was reused. Stores keep no prompts by default: then its age tells."""
    donor = row.report.get("donor")
    earlier = [other for other in rows if other.finished < row.finished]
    if not donor or not earlier:
        return None
    same_prompt = [other for other in earlier if other.request.prompt == donor.get("prompt")]
    if same_prompt:
        return same_prompt[-1]
    made = row.finished - row.ours.total_seconds - donor["age_seconds"]
    return min(earlier, key=lambda other: abs(other.finished - made))


def evidence_picture(row: Row, server: ComfyServer) -> Image.Image | None:
    items = row.ours.output.get("images") or []
    return Image.open(server.base.file(items[0])).convert("RGB") if items else None


def _read_frames(files: list[Path]) -> torch.Tensor:
    return torch.stack([torch.from_numpy(np.array(Image.open(file).convert("RGB"))) for file in files]).float() / 255
