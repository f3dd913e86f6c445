/**
 * The status of the last run, kept on the nodes that it is about.
 *
 * While a run goes on the front end shows the server's progress texts itself. What it does with them at the end differs
 * between versions, so from then on the decision stands in a small widget of ours. It is never saved with the workflow.
 */

import { api } from "../../../scripts/api.js"
import { badge } from "./decisions_view.js"
import { element, styles } from "./dom.js"
import { find, nodesOf, rootGraph } from "./graphs.js"
import { takeApart } from "./status_text.js"
import { text } from "./texts.js"

const TELLING = new Set(["CarnatorStorePurge", "CarnatorCalibrate"]) // they decide about no request
const NODES = new Set(["CarnatorReuseSampler", "CarnatorApply", "CarnatorReport", ...TELLING])
const WIDGET = "carnator_status"
const ENDS = ["execution_success", "execution_error", "execution_interrupted"]
const LINE_HEIGHT = 17
const LETTER_WIDTH = 6.4
const EDGES = 40

export class NodeStatus {
  /** @param {() => void} openPanel what a click on the decision does */
  constructor(openPanel) {
    this.openPanel = openPanel
    this.running = new Map() // node -> its last text in the run that goes on
    this.last = new Map() // workflow and node -> the line that its last run ended with
    api.addEventListener("progress_text", ({ detail }) => this.heard(String(detail.nodeId), detail.text))
    for (const end of ENDS) {
      // Later: the front end may still be taking its own text away.
      api.addEventListener(end, () => setTimeout(() => this.ended()))
    }
  }

  heard(executionId, line) {
    const node = find(executionId)
    if (!NODES.has(node?.comfyClass)) return
    this.running.set(node, line)
    this.last.delete(place(node))
    this.show(node, null) // what the run before said is no longer true
  }

  ended() {
    for (const [node, line] of this.running) {
      this.last.set(place(node), line)
      this.show(node, line)
    }
    this.running.clear()
  }

  /** Nodes are made anew whenever a workflow comes to the front. */
  restore() {
    for (const node of nodesOf(rootGraph())) {
      const line = NODES.has(node.comfyClass) && this.last.get(place(node))
      if (line) this.show(node, line)
    }
  }

  /** @param {string|null} line null hides it. */
  show(node, line) {
    const parts = line && (TELLING.has(node.comfyClass) ? { rest: line } : takeApart(line))
    const widget = node.widgets?.find((found) => found.name === WIDGET) ?? add(node)
    const told = node.widgets.some((other) => other !== widget && other.value === line)
    widget.element.lastChild.replaceChildren(...(parts ? content(parts, told, this.openPanel) : []))
    widget.element.hidden = !parts
    widget.carnatorLine = parts && (told ? (parts.head ?? "") : line)
    const [width, height] = node.computeSize()
    node.setSize([Math.max(width, node.size[0]), Math.max(height, node.size[1])])
    node.setDirtyCanvas(true, true)
  }
}

function place(node) {
  return `${rootGraph().id} ${node.graph?.id} ${node.id}`
}

function add(node) {
  const line = element("div", { class: "carnator-status" }, styles(), element("div"))
  const widget = node.addDOMWidget(WIDGET, WIDGET, line, {
    serialize: false,
    hideOnZoom: false,
    margin: 4,
    getMinHeight: () => height(widget, node),
    getMaxHeight: () => height(widget, node),
  })
  widget.serialize = false
  return widget
}

/** Estimated: the widget's size is asked for before its text is laid out. */
function height(widget, node) {
  if (!widget?.carnatorLine) return 0
  const letters = Math.max(10, (node.size[0] - EDGES) / LETTER_WIDTH)
  const lines = widget.carnatorLine.split("\n").reduce((sum, line) => sum + Math.ceil(line.length / letters), 0)
  return 16 + LINE_HEIGHT * Math.min(12, lines)
}

/** @param {boolean} told whether the front end still shows the whole line itself. */
function content({ decision, head, rest }, told, openPanel) {
  if (!decision) return told ? [] : [element("span", {}, rest)]
  const opener = element("button", { type: "button", title: text("openPanel"), click: openPanel }, badge(decision, head))
  return told ? [opener] : [opener, " ", element("span", {}, rest)]
}
