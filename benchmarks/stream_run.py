"""Runs the requests of a stream through a real ComfyUI server, latents only."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from demo.grammar import Scene
from scripts.graphs import SAVED_LATENT, DemoGraph, only_node
from scripts.testbed.client import Graph, RunResult
from scripts.testbed.environment import ROOT
from scripts.testbed.server import ComfyServer

STREAMS = ROOT / "demo" / "streams"


@dataclass(frozen=True)
class StreamRequest:
    """One line of a stream file."""

    id: str
    cluster: str
    kind: str
    prompt: str
    scene: Scene
    seed: int
    base: str | None


def load_stream(name: str, clusters: int | None = None, skip: int = 0) -> list[StreamRequest]:
    """Requests in arrival order, of ``clusters`` clusters (all if None) after the first ``skip``.

    Exact repeats of an earlier request are left out: ComfyUI itself answers them, and they would flatter us.
    """
    items = json.loads((STREAMS / f"{name}.json").read_text(encoding="utf-8"))
    wanted = list(dict.fromkeys(item["cluster"] for item in items))[skip:][:clusters]
    first = {(item["prompt"], item["seed"]): item for item in reversed(items) if item["cluster"] in wanted}
    return [StreamRequest(**{**item, "scene": Scene(**item["scene"])}) for item in items if item in first.values()]


@dataclass(frozen=True)
class Outcome:
    """One sampling run: seconds of the sampling node, its latent file and, for ours, the report."""

    seconds: float
    latent: Path
    report: dict[str, Any] | None

    def equals(self, other: Outcome) -> bool:
        """Bit for bit."""
        return torch.equal(load_file(self.latent)["latent_tensor"], load_file(other.latent)["latent_tensor"])


class StreamRunner:
    """Queues graphs made from the shipped workflow, cut down to what the latent needs."""

    def __init__(self, server: ComfyServer, steps: int):
        self.server, self.steps = server, steps
        self.graphs = DemoGraph.load(server.get("/object_info"))

    def stock(self, request: StreamRequest) -> Outcome:
        graph = self.graphs.stock(request.prompt, steps=self.steps)
        graph[self.graphs.sampler]["inputs"]["seed"] = request.seed
        return self._run(graph)

    def ours(
        self,
        request: StreamRequest,
        store: dict[str, Any],
        gate: dict[str, float] | None = None,
        reuse: dict[str, Any] | None = None,
    ) -> Outcome:
        """Run with the workflow's widgets, overridden by what is given."""
        graph = self.graphs.ours(request.prompt, steps=self.steps)
        graph[only_node(graph, "CarnatorCacheStore")]["inputs"].update(store)
        graph[only_node(graph, "CarnatorCompatibilityGate")]["inputs"].update(gate or {})
        graph[self.graphs.sampler]["inputs"].update({"seed": request.seed, **(reuse or {})})
        return self._run(graph)

    def _run(self, graph: Graph) -> Outcome:
        result: RunResult = self.server.run(_needed(graph, SAVED_LATENT))
        saved = self.server.base.file(result.outputs[SAVED_LATENT]["latents"][0])
        shown = result.outputs.get(self.graphs.sampler, {}).get("carnator")
        return Outcome(result.node_seconds[self.graphs.sampler], saved, shown[0] if shown else None)


def _needed(graph: Graph, output: str) -> Graph:
    """The part of a graph that one output node reads."""
    found, open_nodes = set(), [output]
    while open_nodes:
        node = open_nodes.pop()
        if node not in found:
            found.add(node)
            open_nodes += [v[0] for v in graph[node]["inputs"].values() if isinstance(v, list)]
    return {node: content for node, content in graph.items() if node in found}
