/** The last decisions of a store with their reasons, and what people say about the hits. */

import { button, element, since } from "./dom.js"
import { picture } from "./entries_view.js"
import * as server from "./server.js"
import { takeApart } from "./status_text.js"
import { text } from "./texts.js"
import { duration, share, value } from "./units.js"

const PAGE = 50

export class DecisionsView {
  /** @param {object} panel as for EntriesView */
  constructor(panel) {
    this.panel = panel
    this.wanted = PAGE
    this.cards = new Map() // id -> {element, made}
    this.list = element("div", { role: "list", "aria-label": text("decisions") })
    this.empty = element("p", { class: "carnator-quiet", hidden: true }, text("noDecisions"))
    this.more = button(text("more"), "more", () => this.showMore(), { hidden: true })
    this.shown = element("span", { class: "carnator-quiet" })
    this.element = element(
      "div",
      { class: "carnator-view carnator-scroll", tabindex: "0" },
      this.empty,
      this.list,
      element("div", { class: "carnator-more" }, this.more, this.shown),
    )
  }

  destroy() {
    this.turn = null
  }

  async refresh() {
    const turn = (this.turn = Symbol())
    const { total, decisions } = await server.decisions(this.panel.store, this.wanted)
    if (turn !== this.turn) return // a later question is on its way
    this.show(decisions)
    this.empty.hidden = total > 0
    this.more.hidden = decisions.length >= total
    this.shown.textContent = total ? text("shownOf", { shown: decisions.length, total }) : ""
  }

  async showMore() {
    this.wanted += PAGE
    await this.panel.attempt(() => this.refresh())
  }

  /** Puts the cards in order; one that says the same as before stays, with its focus and what was opened in it. */
  show(records) {
    const kept = new Map()
    const elements = records.map((record) => {
      const made = JSON.stringify(record)
      const old = this.cards.get(record.id)
      const card = old?.made === made ? old.element : this.card(record, old?.element)
      kept.set(record.id, { element: card, made })
      return card
    })
    const focused = document.activeElement?.closest?.("[data-id]")?.dataset.id
    const action = document.activeElement?.dataset?.action
    this.cards = kept
    elements.forEach((card, index) => {
      if (this.list.children[index] !== card) this.list.insertBefore(card, this.list.children[index] ?? null)
    })
    while (this.list.children.length > elements.length) this.list.lastChild.remove()
    if (focused && action) this.focus(focused, action)
  }

  /** The button of a card that was pressed, or the one that stands in its place now. */
  focus(id, action) {
    const card = this.cards.get(id)?.element
    if (!card || card.contains(document.activeElement)) return
    ;(card.querySelector(`[data-action="${action}"]`) ?? card.querySelector("[data-action]"))?.focus()
  }

  card(record, old) {
    const line = takeApart(record.status)
    const card = element(
      "article",
      { class: "carnator-decision", role: "listitem", "data-id": record.id },
      element(
        "div",
        { class: "carnator-decision-head" },
        badge(record.decision, line?.head),
        element("span", { class: "carnator-quiet" }, since(record.when), times(record)),
      ),
      element("p", {}, line?.rest ?? record.reason),
      record.decision === "hit" ? this.pictures(record) : this.picture(record),
      record.decision === "hit" ? this.verdict(record) : null,
      details(record, old?.querySelector("details")?.open),
    )
    return card
  }

  /** What a run without a hit made, as far as it is stored. */
  picture(record) {
    const url = record.entry_id && server.entryPicture(this.panel.store, record.entry_id)
    return url ? element("div", { class: "carnator-pair" }, figure(url, text("thisVideo"), text("donorGone"))) : null
  }

  pictures(record) {
    const { store } = this.panel
    const donor = donorId(record)
    return element(
      "div",
      { class: "carnator-pair" },
      figure(record.picture && server.decisionPicture(store, record.id), text("thisVideo"), text("noPicture")),
      record.dense_picture ? figure(server.densePicture(store, record.id), text("inFull"), text("noPicture")) : null,
      figure(donor && server.entryPicture(store, donor), text("donorVideo"), text("donorGone")),
    )
  }

  verdict(record) {
    if (record.verdict) {
      const said = text(record.verdict === "safe" ? "saidSafe" : "saidUnsafe")
      return element(
        "div",
        { class: "carnator-verdict", "data-verdict": record.verdict },
        element("span", {}, said),
        button(text("undo"), "undo", () => this.judge(record, () => server.unjudge(this.panel.store, record.id))),
      )
    }
    const say = (safe) => () => this.judge(record, () => server.judge(this.panel.store, record.id, safe))
    return element(
      "div",
      { class: "carnator-verdict", role: "group", "aria-label": text("ask") },
      element("span", {}, text("ask")),
      button(text("safe"), "safe", say(true)),
      button(text("unsafe"), "unsafe", say(false)),
    )
  }

  async judge(record, action) {
    await this.panel.attempt(action)
    await this.panel.refresh()
    this.focus(record.id, "undo")
  }
}

/** The decision in its colour; `head` also tells how much faster it was. */
export function badge(decision, head) {
  const gain = head?.slice(decision.length) ?? ""
  return element("span", { class: "carnator-badge", "data-decision": decision }, text(decision) + gain)
}

function times(record) {
  const parts = [""]
  if (record.seconds) parts.push(text("took", { time: duration(record.seconds) }))
  if (record.seconds_saved > 0) parts.push(text("saved", { time: duration(record.seconds_saved) }))
  return parts.join(" · ")
}

function figure(url, caption, missing) {
  return element("figure", {}, picture(url, caption, missing), element("figcaption", {}, caption))
}

function donorId(record) {
  return record.donor?.id ?? record.donor
}

function details(record, open) {
  const lines = []
  if (donorId(record)) lines.push(text("donorIs", { id: donorId(record).slice(0, 8) }))
  if (record.entry_id) lines.push(text("entryIs", { id: record.entry_id.slice(0, 8) }))
  if (record.similarity != null) lines.push(text("similarity", { value: value(record.similarity) }))
  if (record.region_share != null) lines.push(text("region", { share: share(record.region_share) }))
  if (record.work != null) lines.push(text("work", { share: share(record.work) }))
  const measured = Object.entries(record.discrepancies ?? {}).filter(([, found]) => found != null)
  if (!lines.length && !measured.length) return null
  return element(
    "details",
    { open: Boolean(open) },
    element("summary", {}, text("details")),
    ...lines.map((line) => element("div", { class: "carnator-quiet" }, line)),
    measured.length ? table(measured, record.thresholds ?? {}) : null,
  )
}

function table(measured, thresholds) {
  const cell = (found) => element("td", {}, found == null ? "–" : value(found))
  return element(
    "table",
    {},
    element(
      "thead",
      {},
      element("tr", {}, element("td"), heading(text("measured"), "col"), heading(text("allowed"), "col")),
    ),
    element(
      "tbody",
      {},
      ...measured.map(([family, found]) =>
        element(
          "tr",
          { class: found > thresholds[family] ? "carnator-over" : "" },
          heading(text(family), "row"),
          cell(found),
          cell(thresholds[family]),
        ),
      ),
    ),
  )
}

function heading(said, scope) {
  return element("th", { scope }, said)
}
