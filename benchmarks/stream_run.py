"""Runs the requests of a stream through a real ComfyUI server; videos are decoded only where that is timed."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from demo.grammar import Scene
from scripts.graphs import SAVED_FRAMES, SAVED_LATENT, DemoGraph, only_node
from scripts.testbed.client import Graph, RunResult
from scripts.testbed.environment import ROOT
from scripts.testbed.server import ComfyServer

STREAMS = ROOT / "demo" / "streams"
WARM_UP_STEPS = 4


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
    """One sampling run: seconds of the sampling node, its latent file and, for ours, the report.

    ``decode_seconds`` are those of VAEDecode, if the video was wanted.
    """

    seconds: float
    latent: Path
    report: dict[str, Any] | None
    decode_seconds: float | None = None

    def equals(self, other: Outcome) -> bool:
        """Bit for bit."""
        return torch.equal(load_file(self.latent)["latent_tensor"], load_file(other.latent)["latent_tensor"])


class StreamRunner:
    """Queues graphs made from the shipped workflow, cut down to what the latent needs."""

    def __init__(self, server: ComfyServer, steps: int, sampler_name: str = "euler"):
        self.server, self.steps, self.sampler_name = server, steps, sampler_name
        self.graphs = DemoGraph.load(server.get("/object_info"))

    def warm_up(self, request: StreamRequest) -> None:
        """Loading models and importing what the nodes need count for nobody."""
        quick = StreamRunner(self.server, WARM_UP_STEPS, self.sampler_name)
        quick.ours(request, {"name": "warm-up"})
        quick.stock(request, decode=True)

    def stock(self, request: StreamRequest, decode: bool = False) -> Outcome:
        return self.run(self.stock_graph(request), decode)

    def stock_graph(self, request: StreamRequest) -> Graph:
        graph = self.graphs.stock(request.prompt, steps=self.steps)
        graph[self.graphs.sampler]["inputs"].update(self._sampling(request))
        return graph

    def ours(
        self,
        request: StreamRequest,
        store: dict[str, Any],
        gate: dict[str, float] | None = None,
        reuse: dict[str, Any] | None = None,
        probe: dict[str, Any] | None = None,
    ) -> Outcome:
        """Run with the workflow's widgets, overridden by what is given."""
        graph = self.graphs.ours(request.prompt, steps=self.steps)
        graph[only_node(graph, "CarnatorCacheStore")]["inputs"].update(store)
        graph[only_node(graph, "CarnatorEarlyProbe")]["inputs"].update(probe or {})
        graph[only_node(graph, "CarnatorCompatibilityGate")]["inputs"].update(gate or {})
        graph[self.graphs.sampler]["inputs"].update({**self._sampling(request), **(reuse or {})})
        return self.run(graph)

    def _sampling(self, request: StreamRequest) -> dict[str, Any]:
        return {"seed": request.seed, "sampler_name": self.sampler_name}

    def run(self, graph: Graph, decode: bool = False) -> Outcome:
        """Queue the part of a graph that makes the latent, and the video too if its decoding is to be timed."""
        wanted = (SAVED_LATENT, SAVED_FRAMES) if decode else (SAVED_LATENT,)
        result: RunResult = self.server.run(_needed(graph, wanted))
        saved = self.server.base.file(result.outputs[SAVED_LATENT]["latents"][0])
        shown = result.outputs.get(self.graphs.sampler, {}).get("carnator")
        decoded = result.node_seconds[only_node(graph, "VAEDecode")] if decode else None
        return Outcome(result.node_seconds[self.graphs.sampler], saved, shown[0] if shown else None, decoded)


def _needed(graph: Graph, outputs: tuple[str, ...]) -> Graph:
    """The part of a graph that some output nodes read."""
    found, open_nodes = set(), list(outputs)
    while open_nodes:
        node = open_nodes.pop()
        if node not in found:
            found.add(node)
            open_nodes += [v[0] for v in graph[node]["inputs"].values() if isinstance(v, list)]
    return {node: content for node, content in graph.items() if node in found}
