/** A scrolling list of rows of one height, of which only those in view exist. */

import { element } from "./dom.js"

const PAGE = 50
const MARGIN = 4 // rows kept above and below what is in view, so that the Tab key finds the next one

export class VirtualList {
  /**
   * @param {object} options
   * @param {number} options.rowHeight in pixels
   * @param {string} options.label for screen readers
   * @param {(offset: number, limit: number) => Promise<{total: number, items: object[]}>} options.load
   * @param {(item: object) => HTMLElement} options.row
   * @param {(error: Error) => void} options.failed told when scrolling to a page fails
   */
  constructor({ rowHeight, label, load, row, failed }) {
    Object.assign(this, { rowHeight, load, row, failed })
    this.total = 0
    this.items = new Map() // index -> item, as far as loaded
    this.rows = new Map() // index -> {element, made}: the rows that exist, and what they were made from
    this.asked = new Set() // pages that were asked for since the last refresh
    this.generation = 0
    this.space = element("div", { class: "carnator-list-space", role: "list", "aria-label": label })
    this.element = element("div", { class: "carnator-list", tabindex: "0", scroll: () => this.draw() }, this.space)
    this.observer = new ResizeObserver(() => this.draw())
    this.observer.observe(this.element)
  }

  destroy() {
    this.generation += 1
    this.observer.disconnect()
  }

  /** Loads anew what is in view; what is shown stays until then. Raises what loading raises. */
  async refresh() {
    const generation = (this.generation += 1)
    this.asked.clear()
    const pages = new Set(this.view().map((index) => Math.floor(index / PAGE)))
    const found = await Promise.all([...pages].map((page) => this.fetch(page)))
    if (generation !== this.generation) return
    this.items.clear()
    found.forEach((items) => this.keep(items))
    this.draw()
  }

  async fetch(page) {
    this.asked.add(page)
    const { total, items } = await this.load(page * PAGE, PAGE)
    return { total, items, first: page * PAGE }
  }

  keep({ total, items, first }) {
    this.total = total
    items.forEach((item, i) => this.items.set(first + i, item))
  }

  async fill(page) {
    const { generation } = this
    try {
      const found = await this.fetch(page)
      if (generation !== this.generation) return
      this.keep(found)
      this.draw()
    } catch (error) {
      if (generation !== this.generation) return
      this.asked.delete(page) // scrolling asks again
      this.failed(error)
    }
  }

  /** First and last index that ought to exist. */
  view() {
    const { scrollTop, clientHeight } = this.element
    const first = Math.max(0, Math.floor(scrollTop / this.rowHeight) - MARGIN)
    return [first, Math.floor((scrollTop + clientHeight) / this.rowHeight) + MARGIN]
  }

  draw() {
    this.space.style.height = `${this.total * this.rowHeight}px`
    const [first, end] = this.view()
    const last = Math.min(this.total - 1, end)
    for (const index of [...this.rows.keys()]) {
      if (index < first || index > last) this.drop(index)
    }
    let previous = null
    for (let index = first; index <= last; index += 1) previous = this.place(index, previous) ?? previous
  }

  drop(index) {
    const { element } = this.rows.get(index)
    if (element.contains(document.activeElement)) this.element.focus({ preventScroll: true })
    element.remove()
    this.rows.delete(index)
  }

  /** Makes the row exist as its item says, behind `previous`, which is also the order for the Tab key. */
  place(index, previous) {
    const old = this.rows.get(index)
    const item = this.items.get(index)
    if (item === undefined) {
      const page = Math.floor(index / PAGE)
      if (!this.asked.has(page)) this.fill(page)
      return old?.element
    }
    const made = JSON.stringify(item)
    if (old?.made === made) return old.element
    const focused = old?.element.contains(document.activeElement) && document.activeElement.dataset.action
    const fresh = this.row(item)
    fresh.setAttribute("role", "listitem")
    fresh.setAttribute("aria-setsize", this.total)
    fresh.setAttribute("aria-posinset", index + 1)
    fresh.style.top = `${index * this.rowHeight}px`
    if (old) old.element.replaceWith(fresh)
    else if (previous) previous.after(fresh)
    else this.space.prepend(fresh)
    this.rows.set(index, { element: fresh, made })
    if (focused) (fresh.querySelector(`[data-action="${focused}"]`) ?? this.element).focus()
    return fresh
  }
}
