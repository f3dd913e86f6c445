"""From a graph of stock nodes to a first hit, in two front ends and both ways in which they draw nodes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import expect

from scripts.graphs import OURS, STOCK
from scripts.testbed.browser import Editor
from scripts.testbed.workflow import to_graph
from scripts.workflow_job.builder import Workflow
from scripts.workflow_job.first_hit import stock_demo
from support.browser import Drawn, screenshot

APPLY = "CarnatorApply"
HERE, BACK = "Reuse with Carnator", "Back to KSampler"
TITLE = "My sampler"
# With videos as small as these and few steps the model's learned scale allows other words, and no other colour.
SMALL = {"width": 128, "height": 128, "length": 9}
OTHER_WORDS = "a big blue cube drifts left over a city in fog"
STEPS = {"canvas": 10, "vue": 12}  # both share a server, and a setting is learned once

# Shows the sampler's cfg on the node of its subgraph: by its id, or by an input of the subgraph.
SHOW_CFG = """(id) => {
    const host = window.app.graph._nodes.find((node) => node.subgraph);
    if ("proxyWidgets" in host.properties) host.properties.proxyWidgets = [[id, "cfg"]];
    else {
        const node = host.subgraph.getNodeById(Number(id));
        const input = node.inputs.find((slot) => slot.name === "cfg");
        host.subgraph.addInput("cfg", "FLOAT").connect(input, node);
    }
}"""
SHOWN = """() => window.app.graph._nodes.find((node) => node.subgraph).widgets
    .map(({ name, value }) => [name, value])"""
# Puts a reroute node on the link of an input.
PUT_REROUTE = """([id, name]) => {
    const { graph } = window.app, node = graph.getNodeById(Number(id));
    const reroute = window.LiteGraph.createNode("Reroute");
    const slot = node.inputs.findIndex((input) => input.name === name), link = graph.getLink(node.inputs[slot].link);
    graph.add(reroute);
    graph.getNodeById(link.origin_id).connect(link.origin_slot, reroute, 0);
    reroute.connect(0, node, slot);
}"""
EXECUTE = "(command) => window.app.extensionManager.command.execute(command)"
# Front ends lay out new nodes, and write down what changed, some frames later.
SETTLE = """async (frames) => {
    for (let last, same = 0; same < frames; same++) {
        await new Promise(requestAnimationFrame);
        const now = JSON.stringify(window.app.graph.serialize());
        if (now !== last) same = 0;
        last = now;
    }
}"""
QUIET_FRAMES = 10
# The nodes as the front end has written them down for undo, those in subgraphs too.
WRITTEN = """() => {
    const { nodes, definitions } = window.app.extensionManager.workflow.activeWorkflow.changeTracker.activeState;
    const all = [nodes, ...(definitions?.subgraphs ?? []).map((graph) => graph.nodes)].flat();
    return JSON.stringify(all.map(({ id, type }) => [id, type]));
}"""


@dataclass(frozen=True)
class Stock:
    """A page, and the demo's graph of stock nodes for it."""

    page: Editor
    workflow: dict[str, Any]
    info: dict[str, Any]
    name: str  # of the case

    @property
    def has_entries(self) -> bool:
        """Whether extensions have entries in the menu of a node."""
        return self.name != "own-vue"

    def load(self) -> str:
        """Returns the KSampler's id."""
        self.page.load(self.workflow)
        self.settle()
        return self.page.node_id(STOCK)

    def settle(self) -> None:
        self.page.page.evaluate(SETTLE, QUIET_FRAMES)

    def changing(self, action: Callable[[], object]) -> None:
        """Does something that is one step for undo, and waits until the front end has written that down."""
        before = self.page.page.evaluate(WRITTEN)
        action()
        self.page.page.wait_for_function(f"(before) => ({WRITTEN})() !== before", arg=before)
        self.settle()

    def choose(self, node: str, entry: str) -> None:
        """Takes an entry of a node's menu, or the same from its toolbox."""
        pos = self.page.page.evaluate("(id) => [...window.app.graph.getNodeById(Number(id)).pos]", node)
        self.page.view(700 - 0.8 * pos[0], 300 - 0.8 * pos[1], 0.8)
        self.page.open_menu(node)
        if self.has_entries:
            button = self.page.page.get_by_text(entry, exact=True)
        else:
            self.page.page.keyboard.press("Escape")
            icon = "pi-history" if entry == HERE else "pi-undo"
            button = self.page.page.locator(f".selection-toolbox button:has(.{icon})")
        self.changing(button.click)

    def reuse_in_workflow(self) -> None:
        self.page.page.evaluate(EXECUTE, "Carnator.ReuseInWorkflow")

    def undo(self) -> None:
        keys = ("Control", "z")
        self.changing(lambda: [self.page.page.keyboard.down(key) for key in keys])
        for key in reversed(keys):  # one front end reads keys a frame later, and writes down when Control comes up
            self.page.page.keyboard.up(key)

    def kept(self) -> list[dict[str, Any]]:
        """The nodes as they are saved. One front end moves and scales all of them whenever it loads a graph."""
        nodes = self.page.page.evaluate("() => window.app.graph.serialize().nodes")
        moving = () if self.has_entries else ("pos", "size")
        return [{name: value for name, value in node.items() if name not in moving} for node in nodes]

    def by_hand(self, sampler: str, made: str, clip: list[Any] | None) -> dict[str, Any]:
        """The queued graph with our sampler in KSampler's place: equal values and links, defaults for the rest."""
        graph = to_graph(self.workflow, self.info)
        stock = graph.pop(sampler)["inputs"]
        groups = self.info[OURS]["input"]
        specs = {**groups["required"], **groups["optional"]}
        defaults = {name: spec[1]["default"] for name, spec in specs.items() if "default" in (spec[1:] or [{}])[0]}
        graph[made] = {"class_type": OURS, "inputs": {**defaults, **stock, **({"clip": clip} if clip else {})}}
        return reading_from(graph, sampler, made)


def reading_from(graph: dict[str, Any], old: str, new: str) -> dict[str, Any]:
    """The graph with links from one node replaced by links from another one."""
    for node in graph.values():
        node["inputs"] = {
            name: [new, value[1]] if isinstance(value, list) and value[0] == old else value
            for name, value in node["inputs"].items()
        }
    return graph


def queued(page: Editor) -> dict[str, Any]:
    return {n: {"class_type": c["class_type"], "inputs": c["inputs"]} for n, c in page.graph().items()}


@pytest.fixture(scope="module")
def stock(drawn: Drawn) -> Stock:
    info = drawn.server.get("/object_info")
    flow = Workflow("first_hit", info)
    stock_demo(flow)
    return Stock(drawn.page, flow.to_dict(), info, drawn.name)


def test_an_entry_puts_our_sampler_in_place_and_one_undo_takes_it_back(stock: Stock, artifacts: Path) -> None:
    page = stock.page
    sampler = stock.load()
    graph, kept = queued(page), stock.kept()
    stock.choose(sampler, HERE)
    screenshot(page.page, artifacts, f"first-hit-{stock.name}")
    made = page.node_id(OURS)
    clip = graph[graph[sampler]["inputs"]["positive"][0]]["inputs"]["clip"]
    assert queued(page) == stock.by_hand(sampler, made, clip)
    expect(page.page.get_by_text("Its seed stays as it is").first).to_be_visible()
    stock.undo()
    assert queued(page) == graph
    assert stock.kept() == kept

    stock.choose(sampler, HERE)
    stock.choose(page.node_id(OURS), BACK)
    again = page.node_id(STOCK)
    expected = reading_from(graph, sampler, again)
    expected[again] = expected.pop(sampler)
    assert queued(page) == expected


def test_title_place_and_look_stay(stock: Stock) -> None:
    page = stock.page
    sampler = stock.load()
    look = """(type) => {
        const { pos, title, mode, color, bgcolor } = window.app.graph._nodes.find((node) => node.type === type);
        return { pos: [...pos].map(Math.round), title, mode, color, bgcolor };
    }"""
    page.page.evaluate(
        """([id, title]) => {
            const look = { title, mode: 4, color: "#323", bgcolor: "#535" };
            const node = Object.assign(window.app.graph.getNodeById(Number(id)), look);
            node.outputs[0].links.push(99999); // as in workflows that an editor has saved wrongly
        }""",
        [sampler, TITLE],
    )
    before = page.page.evaluate(look, STOCK)
    stock.changing(stock.reuse_in_workflow)
    assert page.page.evaluate(look, OURS) == before
    assert before["title"] == TITLE
    assert page.page.evaluate("(id) => window.app.graph.getNodeById(Number(id)) ?? null", sampler) is None


@pytest.mark.parametrize("prompts_too", [False, True], ids=["alone", "with-prompts"])
def test_a_sampler_in_a_subgraph_keeps_what_feeds_it_and_what_reads_it(stock: Stock, prompts_too: bool) -> None:
    page = stock.page
    sampler = stock.load()
    page.page.evaluate(
        """(types) => {
            const inside = window.app.graph._nodes.filter((node) => types.includes(node.type));
            window.app.graph.convertToSubgraph(new Set(inside));
        }""",
        [STOCK, "CLIPTextEncode"] if prompts_too else [STOCK],
    )
    stock.settle()
    page.page.evaluate(SHOW_CFG, sampler)
    graph, shown = queued(page), page.page.evaluate(SHOWN)
    assert any(name.endswith("cfg") and value == 5 for name, value in shown)
    old = next(node for node in graph if node.endswith(f":{sampler}"))
    stock.changing(stock.reuse_in_workflow)
    after = queued(page)
    assert [value for _, value in page.page.evaluate(SHOWN)] == [value for _, value in shown]
    made = next(node for node, content in after.items() if content["class_type"] == OURS)
    assert made.split(":")[0] == old.split(":")[0]
    clip = after[made]["inputs"].pop("clip", None)
    assert clip == (graph[graph[old]["inputs"]["positive"][0]]["inputs"]["clip"] if prompts_too else None)
    said = "The first run also learns your model" if prompts_too else "No text encoder was found in this graph"
    expect(page.page.get_by_text(said).first).to_be_visible()
    taken = {name: after[made]["inputs"][name] for name in graph[old]["inputs"]}
    assert taken == graph[old]["inputs"]
    expected = reading_from(graph, old, made)
    del expected[old], after[made]
    assert after == expected


def test_apply_is_put_before_the_model_input_of_other_samplers(stock: Stock, artifacts: Path) -> None:
    page = stock.page
    flow = Workflow("other_samplers", stock.info)
    model = flow.node("UNETLoader", 0, unet_name="carnator_demo_wan.safetensors")
    clip = flow.node("CarnatorDemoTextEncoder", 0)
    text = flow.node("CLIPTextEncode", 1, clip=clip[0], text="a small red ball")
    latent = flow.node("EmptyHunyuanLatentVideo", 1)
    prompts = {"positive": text[0], "negative": text[0]}
    advanced = flow.node("KSamplerAdvanced", 2, model=model[0], latent_image=latent[0], **prompts)
    guider = flow.node("CFGGuider", 2, model=model[0], **prompts)
    custom = flow.node(
        "SamplerCustomAdvanced", 3, noise=flow.node("RandomNoise", 2)[0], guider=guider[0],
        sampler=flow.node("KSamplerSelect", 2)[0], latent_image=latent[0],
        sigmas=flow.node("BasicScheduler", 2, model=model[0])[0],
    )  # fmt: skip
    for sampler in (advanced, custom):
        flow.node("SaveLatent", 4, samples=sampler[0])
    flow.node("SamplerCustom", 3)
    page.load(flow.to_dict())
    page.page.evaluate(PUT_REROUTE, [custom.data["id"], "guider"])
    stock.settle()
    graph = queued(page)
    stock.changing(stock.reuse_in_workflow)
    screenshot(page.page, artifacts, f"first-hit-{stock.name}-apply")
    expect(page.page.get_by_text("no model is linked to the sampler").first).to_be_visible()
    after = queued(page)
    added = [node for node in after if node not in graph]
    assert [after[node]["class_type"] for node in added] == [APPLY, APPLY]
    for reader in (advanced, guider):
        node = str(reader.data["id"])
        apply = after[node]["inputs"]["model"][0]
        added.remove(apply)
        assert after[apply]["inputs"]["model"] == graph[node]["inputs"]["model"]
        graph[node]["inputs"]["model"] = [apply, 0]
    assert {node: content for node, content in after.items() if content["class_type"] != APPLY} == graph
    page.page.evaluate(PUT_REROUTE, [advanced.data["id"], "model"])
    stock.settle()
    stock.reuse_in_workflow()
    stock.settle()
    assert queued(page) == after


def test_reroutes_and_a_seed_from_outside_stay(stock: Stock) -> None:
    page = stock.page
    sampler = stock.load()
    page.page.evaluate(
        """(id) => {
            const { app, LiteGraph } = window, node = app.graph.getNodeById(Number(id));
            for (const link of [node.inputs[0].link, node.outputs[0].links[0]])
                app.graph.createReroute([40, 40], app.graph.getLink(link));
            const seed = LiteGraph.createNode("PrimitiveInt");
            app.graph.add(seed);
            seed.connect(0, node, node.inputs.findIndex((input) => input.name === "seed"));
        }""",
        sampler,
    )
    count = "() => [window.app.graph.reroutes.size, window.app.graph.floatingLinks.size]"
    graph = queued(page)
    stock.changing(stock.reuse_in_workflow)
    assert page.page.evaluate(count) == [2, 0]
    made = page.node_id(OURS)
    after = queued(page)
    assert {name: after[made]["inputs"][name] for name in graph[sampler]["inputs"]} == graph[sampler]["inputs"]
    assert isinstance(graph[sampler]["inputs"]["seed"], list)
    expect(page.page.get_by_text("Its seed comes from another node").first).to_be_visible()


def test_front_ends_that_ask_no_extension_get_the_entry_as_well(stock: Stock) -> None:
    page = stock.page
    sampler = stock.load()
    entries = page.page.evaluate(
        """async (id) => {
            const found = (await (await fetch("/extensions")).json()).find((file) => file.endsWith("/first_hit.js"));
            const { extendMenu } = await import(found);
            const node = window.app.graph.getNodeById(Number(id));
            class Older extends node.constructor {}
            extendMenu(Older);
            const options = [];
            Older.prototype.getExtraMenuOptions.call(node, window.app.canvas, options);
            return options.map((option) => option?.content);
        }""",
        sampler,
    )
    assert entries[0] == HERE


def test_the_first_run_learns_and_the_second_is_a_hit(stock: Stock, artifacts: Path) -> None:
    page = stock.page
    sampler = stock.load()
    page.set_widget(sampler, "steps", STEPS[stock.name.split("-")[-1]])
    for side, size in SMALL.items():
        page.set_widget(page.node_id("EmptyHunyuanLatentVideo"), side, size)
    stock.choose(sampler, HERE)
    made = page.node_id(OURS)
    page.dismiss_alerts()
    page.run()
    first = page.output(made)["text"][0]
    assert first.startswith("miss: ") and "learned this model from 5 short probes" in first
    page.set_widget(page.node_titled("Prompt"), "text", OTHER_WORDS)
    page.run()
    assert page.output(made)["text"][0].startswith("hit ")
    screenshot(page.page, artifacts, f"first-hit-{stock.name}-hit")
