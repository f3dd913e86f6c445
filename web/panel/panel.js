/** The panel in the sidebar: puts the views together and keeps them fresh, without asking while nothing happens. */

import { api } from "../../../scripts/api.js"
import { DecisionsView } from "./decisions_view.js"
import { bar, button, element, iconButton, refreshAges, styles } from "./dom.js"
import { EntriesView } from "./entries_view.js"
import * as server from "./server.js"
import { savings, storeList } from "./stores_view.js"
import { text } from "./texts.js"

const VIEWS = { decisions: DecisionsView, entries: EntriesView }
// A run that ended may have changed a store. The queue's length is told to every browser tab, whichever queued the run.
const EVENTS = ["execution_success", "execution_error", "execution_interrupted", "status", "reconnected"]
const SETTLE_MS = 300 // several events tell of the same run
const AGES_MS = 30000
const STALE_MS = 10000
const WRITTEN_MS = 3000 // what a run stores is written in the background

export class Panel {
  constructor(container) {
    this.container = container
    this.store = null
    this.stores = []
    this.view = null
    this.listeners = new AbortController()
    this.timer = null
    this.message = element("div", { class: "carnator-message", role: "status", "aria-live": "polite" })
    this.summary = element("p", { class: "carnator-savings" }, text("loading"))
    this.storeArea = element("div")
    this.certificate = element("section", { class: "carnator-certificate", "aria-label": text("certificate"), hidden: true })
    this.tabs = this.makeTabs()
    this.place = element("div", { class: "carnator-place", role: "tabpanel", "aria-labelledby": "carnator-tab-decisions" })
    this.body = element("div", { class: "carnator-body", hidden: true }, this.certificate, this.tabs, this.place)
    this.element = element("div", { class: "carnator-panel" }, styles(), this.header(), this.message)
    this.element.append(this.storeArea, this.body)
    // Keys that are meant for a field of the panel must not reach the editor's shortcuts.
    this.element.addEventListener("keydown", (event) => {
      if (event.target.matches("input, select")) event.stopPropagation()
    })
    container.style.height = "100%"
    container.replaceChildren(this.element)
    this.listen()
    this.refresh()
  }

  destroy() {
    this.listeners.abort()
    clearTimeout(this.timer)
    clearInterval(this.ages)
    this.view?.destroy()
    this.element.remove()
  }

  get alive() {
    return !this.listeners.signal.aborted
  }

  header() {
    return element(
      "header",
      {},
      element("h2", {}, text("title")),
      iconButton("pi-refresh", "refresh", () => this.refresh(), { title: text("refresh"), "aria-label": text("refresh") }),
      this.summary,
    )
  }

  makeTabs() {
    const tabs = element("div", { class: "carnator-tabs", role: "tablist" })
    for (const name of Object.keys(VIEWS)) {
      tabs.append(button(text(name), `tab ${name}`, () => this.open(name), { role: "tab", id: `carnator-tab-${name}` }))
    }
    tabs.addEventListener("keydown", (event) => {
      if (event.key !== "ArrowLeft" && event.key !== "ArrowRight") return
      const other = [...tabs.children].find((tab) => tab.getAttribute("aria-selected") === "false")
      other.click()
      other.focus()
    })
    return tabs
  }

  listen() {
    const { signal } = this.listeners
    for (const type of EVENTS) api.addEventListener(type, (event) => this.noticed(event), { signal })
    api.addEventListener("reconnecting", () => this.tell(text("noServer"), true), { signal })
    this.ages = setInterval(() => refreshAges(this.element), AGES_MS)
    this.element.addEventListener("pointerenter", () => this.looked())
  }

  /** Another window may have changed something since. */
  looked() {
    if (Date.now() - this.refreshed > STALE_MS) this.refresh()
  }

  noticed(event) {
    if (event.type === "status") {
      const left = event.detail?.exec_info?.queue_remaining
      const ended = !(left >= this.left) // the first one after the panel was opened may tell of an end too
      this.left = left
      if (!ended) return
    }
    this.refreshSoon()
  }

  refreshSoon() {
    clearTimeout(this.timer)
    this.timer = setTimeout(() => {
      this.refresh()
      this.timer = setTimeout(() => this.refresh(), WRITTEN_MS)
    }, SETTLE_MS)
  }

  // -- what is shown -----------------------------------------------------------------------------------------------

  /** Shows a view for the chosen store. */
  open(name) {
    this.view?.destroy()
    this.view = new VIEWS[name](this)
    this.viewName = name
    for (const tab of this.tabs.children) {
      const chosen = tab.id === `carnator-tab-${name}`
      tab.setAttribute("aria-selected", String(chosen))
      tab.tabIndex = chosen ? 0 : -1
    }
    this.place.setAttribute("aria-labelledby", `carnator-tab-${name}`)
    this.place.replaceChildren(this.view.element)
    return this.attempt(() => this.view.refresh())
  }

  choose(name) {
    this.store = name
    this.tell("")
    this.showStores()
    this.open(this.viewName)
    this.storeArea.querySelector('[aria-checked="true"]')?.focus()
    return this.attempt(() => this.showCertificate())
  }

  /** Asks the server for everything that is in view. */
  async refresh() {
    this.refreshed = Date.now()
    const fine = await this.attempt(async () => {
      this.stores = await server.stores()
      if (!this.alive) return
      if (!this.stores.some((store) => store.name === this.store)) {
        this.store = this.stores.find((store) => store.name === "default")?.name ?? this.stores[0]?.name ?? null
      }
      this.showStores()
      if (this.store === null) return
      if (this.view) await Promise.all([this.view.refresh(), this.showCertificate()])
      else await Promise.all([this.open("decisions"), this.showCertificate()])
    })
    refreshAges(this.element)
    if (fine && this.trouble) this.tell("")
  }

  showStores() {
    const none = this.stores.length === 0
    this.summary.textContent = none ? text("noStores") : savings(this.stores)
    const focused = this.storeArea.contains(document.activeElement)
    this.storeArea.replaceChildren(...(none ? [] : [storeList(this.stores, this.store, (name) => this.choose(name))]))
    if (focused) this.storeArea.querySelector('[aria-checked="true"]')?.focus()
    this.body.hidden = none
  }

  async showCertificate() {
    const { store } = this
    const { sentence, progress } = await server.certificate(store)
    if (store !== this.store) return
    const lines = [element("p", {}, sentence)]
    if (progress?.needed) {
      lines.push(
        bar(progress.clusters / progress.needed),
        element("p", { class: "carnator-quiet" }, text("progress", progress)),
      )
    }
    this.certificate.replaceChildren(...lines)
    this.certificate.hidden = false
  }

  // -- messages ----------------------------------------------------------------------------------------------------

  /** @param {string} said "" takes the message away. @param {boolean} trouble whether it goes when all is well again. */
  tell(said, trouble = false) {
    this.trouble = trouble
    this.message.classList.toggle("carnator-trouble", trouble)
    const dismiss = button("×", "dismiss", () => this.tell(""), { "aria-label": text("dismiss") })
    this.message.replaceChildren(...(said ? [element("span", {}, said), dismiss] : []))
  }

  failed(error) {
    if (!this.alive) return
    if (!(error instanceof server.Trouble)) throw error
    // The server's silence ends by itself; what it refused is to be read.
    this.tell(error.message, error.status === 0)
    this.message.classList.add("carnator-trouble")
  }

  /** Does something; a failure is told. Returns whether it went well. */
  async attempt(action) {
    try {
      await action()
      return true
    } catch (error) {
      this.failed(error)
      return false
    }
  }
}
