/**
 * The status of the last run, kept on the nodes that it is about.
 *
 * While a run goes on the front end shows the server's progress texts itself. What it does with them at the end differs
 * between versions, so from then on the decision stands in a small widget of ours. It is never saved with the workflow.
 */

import { api } from "../../../scripts/api.js"
import { app } from "../../../scripts/app.js"
import { badge } from "./decisions_view.js"
import { element, useStyles } from "./dom.js"
import { takeApart } from "./status_text.js"
import { text } from "./texts.js"

const NODES = new Set(["CarnatorReuseSampler", "CarnatorApply", "CarnatorReport"])
const WIDGET = "carnator_status"
const ENDS = ["execution_success", "execution_error", "execution_interrupted"]
const LINE_HEIGHT = 17
const LETTER_WIDTH = 6.4
const EDGES = 40

/** @param {() => void} openPanel */
export function watchStatus(openPanel) {
  useStyles(new URL("panel.css", import.meta.url).href)
  const running = new Map() // node -> its last text in the run that goes on
  api.addEventListener("progress_text", ({ detail }) => {
    const node = detail.nodeId && find(String(detail.nodeId))
    if (!node || !NODES.has(node.comfyClass)) return
    running.set(node, detail.text)
    show(node, null, openPanel) // what the run before said is no longer true
  })
  for (const end of ENDS) {
    api.addEventListener(end, () => {
      const ended = [...running]
      running.clear()
      // Later: the front end may still be taking its own text away.
      setTimeout(() => ended.forEach(([node, line]) => show(node, line, openPanel)))
    })
  }
}

/** The node of an execution id, "5" or "12:5" for node 5 in the subgraph of node 12. */
function find(executionId) {
  let graph = app.rootGraph ?? app.graph
  let node = null
  for (const id of executionId.split(":")) {
    node = graph?.getNodeById(Number(id)) ?? graph?.getNodeById(id)
    graph = node?.subgraph
  }
  return node
}

/** @param {string|null} line null hides it. */
function show(node, line, openPanel) {
  const parts = line && takeApart(line)
  const widget = node.widgets?.find((found) => found.name === WIDGET) ?? add(node)
  const told = node.widgets.some((other) => other !== widget && other.value === line)
  widget.element.replaceChildren(...(parts ? content(parts, told, openPanel) : []))
  widget.element.hidden = !parts
  widget.carnatorLine = parts && (told ? parts.head : line)
  const [width, height] = node.computeSize()
  node.setSize([Math.max(width, node.size[0]), Math.max(height, node.size[1])])
  node.setDirtyCanvas(true, true)
}

function add(node) {
  const place = element("div", { class: "carnator-status" })
  const widget = node.addDOMWidget(WIDGET, WIDGET, place, {
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
  const mark = badge(decision, head)
  const opener = element("button", { type: "button", title: text("openPanel"), click: openPanel }, mark)
  return told ? [opener] : [opener, " ", element("span", {}, rest)]
}
