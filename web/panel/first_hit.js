/**
 * From a stock graph to one that reuses: entries in the menus of sampler nodes, and a command for a whole workflow.
 *
 * A new node is linked before the old one goes, so that reroutes and primitives on its links stay as they are.
 */

import { app } from "../../../scripts/app.js"
import { nodesOf, rootGraph } from "./graphs.js"
import { text } from "./texts.js"

const STOCK = "KSampler"
const OURS = "CarnatorReuseSampler"
const APPLY = "CarnatorApply"
const PATCHED = new Set(["KSamplerAdvanced", "SamplerCustom", "SamplerCustomAdvanced"])
const GAP = 50
const LAYOUT_FRAMES = 3
const TOAST_MS = 12000

const command = (id, label, icon, action) => ({ id: `Carnator.${id}`, label: () => text(label), icon, function: action })
const REUSE = command("ReuseSampler", "reuseSelected", "pi pi-history", () => reuseAll(selected()))
const BACK = command("BackToKSampler", "backSelected", "pi pi-undo", () => {
  const ours = selected().filter(isOurs)
  if (ours.length === 0) tell("warn", ["noneOfOurs"])
  else edit(() => ours.flatMap(back))
})
const REUSE_IN_WORKFLOW = command("ReuseInWorkflow", "reuseInWorkflow", "pi pi-history", () =>
  reuseAll([...new Set(nodesOf(rootGraph()))]),
)

export const COMMANDS = [REUSE, BACK, REUSE_IN_WORKFLOW]

/** Commands for the toolbox over a selected node: some front ends' menus have no entries of extensions. */
export function toolbox(item) {
  if (canReuse(item)) return [REUSE.id]
  return isOurs(item) ? [BACK.id] : []
}

/** Entries for the menu of a node, as LiteGraph wants them. */
export function menuItems(node) {
  if (canReuse(node)) return [{ content: text("reuseHere"), callback: () => edit(() => reuse(node)) }]
  if (isOurs(node)) return [{ content: text("backToStock"), callback: () => edit(() => back(node)) }]
  return []
}

/** The same for front ends that do not ask extensions for such entries. */
export function extendMenu(nodeType) {
  const before = nodeType.prototype.getExtraMenuOptions
  nodeType.prototype.getExtraMenuOptions = function (canvas, options) {
    const more = before?.apply(this, arguments)
    options.unshift(...menuItems(this))
    return more
  }
}

function selected() {
  return [...app.canvas.selectedItems]
}

function isOurs(item) {
  return item.comfyClass === OURS
}

function canReuse(node) {
  if (node.comfyClass === STOCK) return true
  if (!PATCHED.has(node.comfyClass)) return false
  const place = modelInput(node)
  return place === null || originOf(place.node, place.slot)?.comfyClass !== APPLY
}

function reuseAll(nodes) {
  const samplers = nodes.filter(canReuse)
  if (samplers.length === 0) tell("warn", ["noSampler"])
  else edit(() => samplers.flatMap(reuse))
}

/** @returns {string[]} keys of the texts that tell what was done */
function reuse(node) {
  return node.comfyClass === STOCK ? replaceStock(node) : applyBefore(node)
}

function replaceStock(node) {
  const clip = textEncoderLink(node)
  const made = replace(node, OURS)
  if (made === null) return ["notReplaced"]
  if (clip) feed(clip, made, slotOf(made, "clip"))
  const seed = linkOf(made, slotOf(made, "seed")) ? "seedLinked" : "seedStays"
  return ["replaced", seed, clip ? "secondRun" : "noClip"]
}

function back(node) {
  const made = replace(node, STOCK)
  if (made === null) return ["notReplaced"]
  const control = made.widgets.find((widget) => widget.name === "control_after_generate")
  if (control) control.value = "fixed" // as it was on ours; stock nodes start with a new seed for every run
  return ["backAgain"]
}

/** One step for undo, which ends when new nodes are laid out, then a message of what was done. */
async function edit(action) {
  app.canvas.emitBeforeChange()
  let said
  try {
    said = action()
    app.canvas.setDirty(true, true)
    for (let frame = 0; frame < LAYOUT_FRAMES; frame++) await new Promise(requestAnimationFrame)
  } finally {
    app.canvas.emitAfterChange()
  }
  tell(said.includes("notReplaced") || said.includes("noModel") ? "warn" : "info", [...new Set(said)])
}

function tell(severity, keys) {
  const detail = keys.map((key) => text(key)).join(" ")
  app.extensionManager.toast.add({ severity, summary: text("title"), detail, life: TOAST_MS })
}

// -- a node in the place of another -----------------------------------------------------------------------------------

/** Puts a new node in the place of one with the same inputs and the same first output; null if its links cannot move. */
function replace(node, type) {
  const { graph } = node
  const made = window.LiteGraph.createNode(type)
  made.pos = [...node.pos]
  made.setSize([Math.max(node.size[0], made.size[0]), made.size[1]])
  if (node.title !== node.constructor.title) made.title = node.title
  for (const name of ["mode", "color", "bgcolor"]) if (node[name] !== undefined) made[name] = node[name]
  made.flags = { ...node.flags }
  for (const widget of made.widgets) {
    const same = node.widgets.find((other) => other.name === widget.name)
    if (same) widget.value = same.value
  }
  graph.add(made)
  for (const [slot, input] of node.inputs.entries()) {
    const link = linkOf(node, slot)
    const target = slotOf(made, input.name)
    if (!link || target < 0) continue
    feed(link, made, target)
    if (linkOf(made, target)) continue
    graph.remove(made)
    return null
  }
  for (const id of [...(node.outputs[0].links ?? [])]) {
    const link = graph.getLink(id)
    if (!link) continue // saved workflows may name links that they do not hold
    const reader = graph.getNodeById(link.target_id)
    if (reader) made.connect(0, reader, link.target_slot, link.parentId)
    else graph.outputs[link.target_slot].connect(made.outputs[0], made, link.parentId)
  }
  moveShown(node, made)
  graph.remove(node)
  return made
}

/** Some front ends keep by the node's id which of its widgets stand on the subgraph's own node. */
function moveShown(node, made) {
  for (const host of nodesOf(rootGraph())) {
    const shown = host.properties?.proxyWidgets
    if (host.subgraph !== node.graph || !Array.isArray(shown)) continue
    host.properties.proxyWidgets = shown.map(([id, ...rest]) => [String(id) === String(node.id) ? String(made.id) : id, ...rest])
  }
}

// -- Apply before a sampler -------------------------------------------------------------------------------------------

function applyBefore(sampler) {
  const { graph } = sampler
  const place = modelInput(sampler)
  const link = place && linkOf(place.node, place.slot)
  if (!link) return ["noModel"]
  const apply = window.LiteGraph.createNode(APPLY)
  apply.pos = [place.node.pos[0], place.node.pos[1] - apply.size[1] - GAP]
  while (graph.nodes.some((node) => overlap(node, apply))) apply.pos = [apply.pos[0], apply.pos[1] - GAP]
  graph.add(apply)
  feed(link, apply, slotOf(apply, "model"))
  if (!linkOf(apply, slotOf(apply, "model"))) {
    graph.remove(apply)
    return ["notReplaced"]
  }
  apply.connect(0, place.node, place.slot)
  return ["applied", "fiveRuns"]
}

/** Where a sampler takes its MODEL: {node, slot} of its own or of its guider's input, null if there is none. */
function modelInput(node) {
  const slot = node.inputs.findIndex((input) => input.type === "MODEL")
  if (slot >= 0) return { node, slot }
  const guider = originOf(node, slotOf(node, "guider"))
  return guider ? modelInput(guider) : null
}

function overlap(one, other) {
  return [0, 1].every(
    (axis) =>
      one.pos[axis] < other.pos[axis] + other.size[axis] + GAP && other.pos[axis] < one.pos[axis] + one.size[axis] + GAP,
  )
}

// -- links ------------------------------------------------------------------------------------------------------------

function slotOf(node, name) {
  return node.inputs.findIndex((input) => input.name === name)
}

function linkOf(node, slot) {
  const id = node.inputs[slot]?.link
  return id == null ? null : node.graph.getLink(id)
}

/** The node that feeds an input, reroutes aside; null if it is not linked or fed by the subgraph's own inputs. */
function originOf(node, slot) {
  const link = linkOf(node, slot)
  const origin = link ? (node.graph.getNodeById(link.origin_id) ?? null) : null
  return origin?.type === "Reroute" ? originOf(origin, 0) : origin
}

/** Lets a link's origin feed one more input. The origin may be an input of the subgraph. */
function feed(link, node, slot) {
  const { graph } = node
  const origin = graph.getNodeById(link.origin_id)
  if (origin) origin.connect(link.origin_slot, node, slot, link.parentId)
  else graph.inputs[link.origin_slot].connect(node.inputs[slot], node, link.parentId)
}

/** The link into the CLIP input that is nearest upstream of the sampler's positive prompt. */
function textEncoderLink(sampler) {
  const seen = new Set()
  const waiting = [originOf(sampler, slotOf(sampler, "positive"))]
  for (const node of waiting) {
    if (node === null || seen.has(node)) continue
    seen.add(node)
    const slot = node.inputs.findIndex((input) => input.type === "CLIP" && input.link != null)
    if (slot >= 0) return linkOf(node, slot)
    waiting.push(...node.inputs.map((_, other) => originOf(node, other)))
  }
  return null
}
