"""Runs the requests of a stream through a real ComfyUI server; videos are decoded only where that is timed."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from demo.grammar import Scene
from scripts.graphs import OURS, SAVED_FRAMES, SAVED_LATENT, DemoGraph, only_node
from scripts.testbed.client import Graph, RunResult
from scripts.testbed.environment import ROOT
from scripts.testbed.server import ComfyServer

from . import saved_mask

STREAMS = ROOT / "demo" / "streams"
WARM_UP_STEPS = 4
SAVED_EVIDENCE = "bench_saved_evidence"


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

    @classmethod
    def of(cls, item: dict[str, Any]) -> StreamRequest:
        """From ``demo.streams.request``."""
        return cls(**{**item, "scene": Scene(**item["scene"])})


def load_stream(name: str, clusters: int | None = None, skip: int = 0) -> list[StreamRequest]:
    """Requests in arrival order, of ``clusters`` clusters (all if None) after the first ``skip``.

    Exact repeats of an earlier request are left out: ComfyUI itself answers them, and they would flatter us.
    """
    items = json.loads((STREAMS / f"{name}.json").read_text(encoding="utf-8"))
    wanted = list(dict.fromkeys(item["cluster"] for item in items))[skip:][:clusters]
    first = {(item["prompt"], item["seed"]): item for item in reversed(items) if item["cluster"] in wanted}
    return [StreamRequest.of(item) for item in items if item in first.values()]


@dataclass(frozen=True)
class Outcome:
    """One sampling run: seconds of the sampling node, its latent file and, for ours, the report.

    ``decode_seconds`` are those of VAEDecode, if the video was wanted. ``evidence`` is the file of the sampler's MASK
    of that name, if the runner keeps it; ``outputs`` is what every node showed.
    """

    seconds: float
    latent: Path
    report: dict[str, Any] | None
    decode_seconds: float | None = None
    evidence: Path | None = None
    outputs: dict[str, dict[str, Any]] = field(default_factory=dict)

    def equals(self, other: Outcome) -> bool:
        """Bit for bit."""
        return torch.equal(load_file(self.latent)["latent_tensor"], load_file(other.latent)["latent_tensor"])

    def remove_files(self) -> None:
        self.latent.unlink()
        if self.evidence is not None:
            self.evidence.unlink()


class StreamRunner:
    """Queues graphs made from the shipped workflow, cut down to what the latent needs.

    With ``keep_evidence`` the region of our runs is saved too, by a node that the server must have.
    """

    def __init__(self, server: ComfyServer, steps: int, sampler_name: str = "euler", keep_evidence: bool = False):
        self.server, self.steps, self.sampler_name = server, steps, sampler_name
        self.keep_evidence = keep_evidence
        object_info = server.get("/object_info")
        self.graphs = DemoGraph.load(object_info)
        self._evidence_output = object_info[OURS]["output_name"].index("evidence")

    def warm_up(self, request: StreamRequest) -> None:
        """Loading models and importing what the nodes need count for nobody."""
        # In other steps than those measured: what it has done once the server answers from its cache.
        steps = WARM_UP_STEPS + (self.steps == WARM_UP_STEPS)
        quick = StreamRunner(self.server, steps, self.sampler_name, self.keep_evidence)
        quick.ours(request, {"name": "warm-up"})
        quick.stock(request, decode=True)

    def stock(self, request: StreamRequest, decode: bool = False) -> Outcome:
        return self.run(self.stock_graph(request), decode)

    def stock_graph(self, request: StreamRequest) -> Graph:
        graph = self.graphs.stock(request.prompt, steps=self.steps)
        graph[self.graphs.sampler]["inputs"].update(self._sampling(request))
        return graph

    def ours(self, request: StreamRequest, *widgets: dict[str, Any] | None) -> Outcome:
        """Run ``ours_graph`` of the same arguments."""
        return self.run(self.ours_graph(request, *widgets))

    def ours_graph(
        self,
        request: StreamRequest,
        store: dict[str, Any],
        gate: dict[str, float] | None = None,
        reuse: dict[str, Any] | None = None,
        probe: dict[str, Any] | None = None,
    ) -> Graph:
        """The workflow with its widgets overridden by what is given."""
        graph = self.graphs.ours(request.prompt, steps=self.steps)
        graph[only_node(graph, "CarnatorCacheStore")]["inputs"].update(store)
        graph[only_node(graph, "CarnatorEarlyProbe")]["inputs"].update(probe or {})
        graph[only_node(graph, "CarnatorCompatibilityGate")]["inputs"].update(gate or {})
        graph[self.graphs.sampler]["inputs"].update({**self._sampling(request), **(reuse or {})})
        if self.keep_evidence:
            mask = [self.graphs.sampler, self._evidence_output]
            graph[SAVED_EVIDENCE] = {"class_type": saved_mask.NODE, "inputs": {"mask": mask}}
        return graph

    def _sampling(self, request: StreamRequest) -> dict[str, Any]:
        return {"seed": request.seed, "sampler_name": self.sampler_name}

    def run(self, graph: Graph, decode: bool = False) -> Outcome:
        """Queue the part of a graph that makes the latent, and the video too if its decoding is to be timed."""
        wanted = [name for name in (SAVED_LATENT, SAVED_EVIDENCE) if name in graph]
        result: RunResult = self.server.run(_needed(graph, [*wanted, SAVED_FRAMES] if decode else wanted))
        saved = self.server.base.file(result.outputs[SAVED_LATENT]["latents"][0])
        shown = result.outputs.get(self.graphs.sampler, {}).get("carnator")
        decoded = result.node_seconds[only_node(graph, "VAEDecode")] if decode else None
        masks = result.outputs.get(SAVED_EVIDENCE, {}).get("masks")
        evidence = self.server.base.file(masks[0]) if masks else None
        seconds = result.node_seconds[self.graphs.sampler]
        return Outcome(seconds, saved, shown[0] if shown else None, decoded, evidence, result.outputs)


def _needed(graph: Graph, outputs: list[str]) -> Graph:
    """The part of a graph that some output nodes read."""
    found, open_nodes = set(), list(outputs)
    while open_nodes:
        node = open_nodes.pop()
        if node not in found:
            found.add(node)
            open_nodes += [v[0] for v in graph[node]["inputs"].values() if isinstance(v, list)]
    return {node: content for node, content in graph.items() if node in found}
