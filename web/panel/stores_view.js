/** The stores with their sizes, and what all of them saved. */

import { bar, element } from "./dom.js"
import { text } from "./texts.js"
import { bytes, duration } from "./units.js"

const NEARLY_FULL = 0.9

/** One sentence about all stores. */
export function savings(stores) {
  const hits = stores.reduce((sum, store) => sum + store.hits, 0)
  const seconds = stores.reduce((sum, store) => sum + store.seconds_saved, 0)
  return hits ? text("savedTotal", { time: duration(seconds), hits }) : text("savedNothing")
}

/**
 * @param {object[]} stores as the server lists them
 * @param {string} chosen name of the one that is shown below
 * @param {(name: string) => void} choose
 */
export function storeList(stores, chosen, choose) {
  const list = element("div", { class: "carnator-stores", role: "radiogroup", "aria-label": text("stores") })
  for (const store of stores) list.append(storeRow(store, store.name === chosen, choose))
  list.addEventListener("keydown", (event) => {
    const step = { ArrowDown: 1, ArrowRight: 1, ArrowUp: -1, ArrowLeft: -1 }[event.key]
    if (!step) return
    event.preventDefault()
    const at = stores.findIndex((store) => store.name === chosen)
    choose(stores[(at + step + stores.length) % stores.length].name)
  })
  return list
}

function storeRow(store, chosen, choose) {
  const used = bytes(store.bytes)
  const budget = store.budget_bytes
  const size = budget ? text("ofBudget", { used, budget: bytes(budget) }) : text("noBudget", { used })
  const filled = bar(budget ? store.bytes / budget : 0)
  filled.classList.toggle("carnator-nearly-full", Boolean(budget) && store.bytes > NEARLY_FULL * budget)
  return element(
    "button",
    {
      type: "button",
      class: "carnator-store",
      role: "radio",
      "aria-checked": String(chosen),
      tabindex: chosen ? "0" : "-1",
      "data-action": `store ${store.name}`,
      click: () => choose(store.name),
    },
    element("span", { class: "carnator-store-name" }, store.name),
    element("span", { class: "carnator-store-size" }, size),
    filled,
    element("span", { class: "carnator-quiet" }, text("counts", { entries: store.entries, hits: store.hits })),
    store.error ? element("span", { class: "carnator-store-error" }, store.error) : null,
  )
}
