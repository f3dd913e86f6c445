"""The shipped demo workflow as graphs: a request with our sampler, and the same one with KSampler."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

from scripts.testbed.client import Graph
from scripts.testbed.environment import ROOT
from scripts.testbed.workflow import load_workflow

WORKFLOW = ROOT / "workflows" / "carnator_demo.json"
OURS = "CarnatorReuseSampler"
STOCK = "KSampler"

# Nodes that the demo adds to read the results back without loss.
SAVED_LATENT = "carnator_saved_latent"
SAVED_FRAMES = "carnator_saved_frames"


@dataclass(frozen=True)
class DemoGraph:
    """The workflow, loaded once; every method returns a graph of its own."""

    graph: Graph
    stock_inputs: tuple[str, ...]

    @classmethod
    def load(cls, object_info: dict[str, Any]) -> DemoGraph:
        stock_inputs = tuple(
            name for group in object_info[STOCK]["input"].values() for name in group if not name.startswith("_")
        )
        return cls(load_workflow(WORKFLOW, object_info), stock_inputs)

    @property
    def sampler(self) -> str:
        return only_node(self.graph, OURS)

    @property
    def video(self) -> str:
        return only_node(self.graph, "SaveVideo")

    def ours(self, prompt: str, *, steps: int, reuse: bool = True) -> Graph:
        graph = self._request(prompt, steps)
        graph[self.sampler]["inputs"]["reuse"] = reuse
        return self._saving_results(graph, "carnator")

    def stock(self, prompt: str, *, steps: int) -> Graph:
        """The same nodes with KSampler in our sampler's place."""
        graph = self._request(prompt, steps)
        node = graph[self.sampler]
        node["class_type"] = STOCK
        node["inputs"] = {name: node["inputs"][name] for name in self.stock_inputs}
        self._drop_readers_of_our_outputs(graph)
        return self._saving_results(graph, "stock")

    def _request(self, prompt: str, steps: int) -> Graph:
        graph = copy.deepcopy(self.graph)
        inputs = graph[self.sampler]["inputs"]
        inputs["steps"] = steps
        graph[inputs["positive"][0]]["inputs"]["text"] = prompt
        return graph

    def _saving_results(self, graph: Graph, prefix: str) -> Graph:
        latent, frames = [self.sampler, 0], [only_node(graph, "VAEDecode"), 0]
        for node, class_type, inputs in (
            (SAVED_LATENT, "SaveLatent", {"samples": latent}),
            (SAVED_FRAMES, "SaveImage", {"images": frames}),
        ):
            graph[node] = {"class_type": class_type, "inputs": {**inputs, "filename_prefix": prefix}}
        graph[self.video]["inputs"]["filename_prefix"] = prefix
        return graph

    def _drop_readers_of_our_outputs(self, graph: Graph) -> None:
        """Report and evidence have no counterpart in KSampler, nor has what is made from them."""
        lost: set[str] = set()

        def reads_lost(value: Any) -> bool:
            if not isinstance(value, list):
                return False
            return value[0] in lost or (value[0] == self.sampler and value[1] > 0)

        while True:
            found = {
                node
                for node, content in graph.items()
                if any(reads_lost(value) for value in content["inputs"].values())
            }
            if found <= lost:
                break
            lost |= found
        for node in lost:
            del graph[node]


def without_video(graph: Graph) -> Graph:
    """The half of a graph that makes the latent."""
    video = ("VAEDecode", "VAELoader", "CreateVideo", "SaveVideo", "SaveImage")
    return {node: content for node, content in graph.items() if content["class_type"] not in video}


def only_node(graph: Graph, class_type: str) -> str:
    nodes = [node for node, content in graph.items() if content["class_type"] == class_type]
    if len(nodes) != 1:
        raise ValueError(f"expected one {class_type} in {WORKFLOW.name}, found {len(nodes)}")
    return nodes[0]
