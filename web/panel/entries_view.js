/** The entries of a store: look at, pin, delete, and delete what is old. */

import { confirm } from "./dialog.js"
import { element, iconButton, since } from "./dom.js"
import * as server from "./server.js"
import { text } from "./texts.js"
import { age, bytes, duration } from "./units.js"
import { VirtualList } from "./virtual_list.js"

const ORDERS = ["newest", "largest", "most_used", "least_used"]
const ROW_HEIGHT = 84
const DEFAULT_DAYS = 30

export class EntriesView {
  /**
   * @param {object} panel
   * @param {string} panel.store name of the store
   * @param {(text: string) => void} panel.tell
   * @param {(error: Error) => void} panel.failed
   * @param {(action: () => Promise<void>) => Promise<boolean>} panel.attempt tells a failure
   * @param {() => Promise<void>} panel.refresh everything, after a change
   */
  constructor(panel) {
    this.panel = panel
    this.order = ORDERS[0]
    this.list = new VirtualList({
      rowHeight: ROW_HEIGHT,
      label: text("entries"),
      load: (offset, limit) => this.load(offset, limit),
      row: (entry) => this.row(entry),
      failed: panel.failed,
    })
    this.empty = element("p", { class: "carnator-quiet", hidden: true }, text("noEntries"))
    this.element = element("div", { class: "carnator-view" }, this.tools(), this.empty, this.list.element)
  }

  destroy() {
    this.list.destroy()
  }

  async refresh() {
    await this.list.refresh()
    this.empty.hidden = this.list.total > 0
  }

  async load(offset, limit) {
    const { total, entries } = await server.entries(this.panel.store, offset, limit, this.order)
    return { total, items: entries }
  }

  tools() {
    const orders = element("select", { "aria-label": text("order"), change: () => this.sort(orders.value) })
    for (const order of ORDERS) orders.append(element("option", { value: order }, text(order)))
    const days = element("input", { type: "number", min: "0", max: "3650", value: DEFAULT_DAYS, required: true })
    return element(
      "div",
      { class: "carnator-tools" },
      orders,
      element(
        "form",
        { class: "carnator-purge", "aria-label": text("purge"), submit: (event) => this.purge(event, days) },
        element("label", {}, text("purgeBefore"), days, text("purgeAfter")),
        element("button", { type: "submit", "data-action": "purge" }, text("purgeAsk")),
      ),
    )
  }

  sort(order) {
    this.order = order
    this.list.element.scrollTop = 0
    return this.panel.attempt(() => this.refresh())
  }

  row(entry) {
    const size = entry.size?.replaceAll("x", "×") ?? ""
    const label = text("entryLabel", { age: age(entry.created), size: size || "?", bytes: bytes(entry.bytes) })
    const used = entry.hits
      ? text("entryUse", { hits: entry.hits, time: duration(entry.seconds_saved) })
      : text("entryUnused")
    const pinText = text(entry.pinned ? "unpin" : "pin")
    return element(
      "div",
      { class: "carnator-entry", "data-id": entry.id, "aria-label": label },
      picture(entry.picture && server.entryPicture(this.panel.store, entry.id), label),
      element(
        "div",
        { class: "carnator-entry-text" },
        element("span", {}, since(entry.created)),
        element("span", { class: "carnator-quiet" }, [bytes(entry.bytes), size].filter(Boolean).join(" · ")),
        element("span", { class: "carnator-quiet", title: used }, used),
      ),
      element(
        "div",
        { class: "carnator-entry-buttons" },
        iconButton("pi-thumbtack", "pin", () => this.pin(entry), {
          title: `${pinText}. ${text("pinHelp")}`,
          "aria-pressed": String(entry.pinned),
          "aria-label": `${pinText}: ${label}`,
        }),
        iconButton("pi-trash", "remove", () => this.remove(entry), {
          title: text("remove"),
          "aria-label": `${text("remove")}: ${label}`,
        }),
      ),
    )
  }

  pin(entry) {
    return this.change(() => server.pin(this.panel.store, entry.id, !entry.pinned))
  }

  async remove(entry) {
    const lines = [text("removeBody", { bytes: bytes(entry.bytes), hits: entry.hits })]
    if (entry.pinned) lines.unshift(text("removePinned"))
    if (!(await confirm(this.element, text("removeTitle"), lines, text("remove")))) return
    await this.change(async () => {
      await server.remove(this.panel.store, entry.id)
      this.panel.tell(text("removed", { bytes: bytes(entry.bytes) }))
    })
  }

  async purge(event, days) {
    event.preventDefault()
    if (!days.reportValidity()) return
    const { store } = this.panel
    const asked = Number(days.value)
    await this.change(async () => {
      const found = await server.purge(store, asked, false)
      if (!found.count) return this.panel.tell(text("purgeNothing"))
      const lines = [text("purgeBody", { bytes: bytes(found.bytes) })]
      if (found.pinned) lines.push(text("purgePinned", { count: found.pinned }))
      if (found.in_use) lines.push(text("purgeInUse", { count: found.in_use }))
      const title = text("purgeTitle", { count: found.count })
      if (!(await confirm(this.element, title, lines, text("remove")))) return
      const done = await server.purge(store, asked, true)
      this.panel.tell(text("purged", { count: done.count, bytes: bytes(done.bytes) }))
    })
  }

  /** Does something on the server and shows what is there then, whether it went well or not. */
  async change(action) {
    let failure = null
    try {
      await action()
    } catch (error) {
      failure = error
    }
    await this.panel.refresh()
    if (failure) this.panel.failed(failure)
  }
}

/** A picture of a fixed place, or what stands there without one. */
export function picture(url, label, missing = text("noPicture")) {
  const place = element("div", { class: "carnator-picture" })
  const title = text("previewColours")
  const without = () => place.replaceChildren(element("span", { class: "carnator-quiet" }, missing))
  if (url) place.append(element("img", { src: url, alt: label, title, loading: "lazy", decoding: "async", error: without }))
  else without()
  return place
}
