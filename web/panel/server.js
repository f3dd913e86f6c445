/** The panel's questions to the server. Every failure becomes a Trouble with a sentence for a person. */

import { api } from "../../../scripts/api.js"
import { text } from "./texts.js"

const MOST = 200 // decisions in one answer of the server
const SENTENCES = { 404: "gone", 507: "full" }

/** @property {number} status of the answer; 0 = there was none. */
export class Trouble extends Error {
  constructor(status, sentence) {
    super(sentence)
    this.status = status
  }
}

async function ask(path, method = "GET", body = undefined) {
  let answer
  try {
    const headers = method === "GET" ? {} : { "Content-Type": "application/json" }
    answer = await api.fetchApi(path, { method, headers, body: body && JSON.stringify(body), cache: "no-store" })
  } catch {
    throw new Trouble(0, text("noServer"))
  }
  let data
  try {
    data = await answer.json()
  } catch {
    data = null // a page of the server itself, such as the one for a path it does not know
  }
  if (answer.ok && data) return data
  const reason = data?.error ?? `${answer.status} ${answer.statusText}`
  if (answer.status === 404 && !data?.error) throw new Trouble(404, text("noPanel"))
  throw new Trouble(answer.status, text(SENTENCES[answer.status] ?? "refused", { reason }))
}

const of = (store) => `/carnator/stores/${encodeURIComponent(store)}`
const entry = (store, id) => `${of(store)}/entries/${encodeURIComponent(id)}`
const decision = (store, id) => `${of(store)}/decisions/${encodeURIComponent(id)}`

export const stores = async () => (await ask("/carnator/stores")).stores
export const certificate = (store) => ask(`${of(store)}/certificate`)

export const entries = (store, offset, limit, order) =>
  ask(`${of(store)}/entries?${new URLSearchParams({ offset, limit, order })}`)
export const pin = (store, id, pinned) => ask(`${entry(store, id)}/pin`, "POST", { pinned })
export const remove = (store, id) => ask(entry(store, id), "DELETE", {})
export const purge = (store, days, confirm) =>
  ask(`${of(store)}/purge`, "POST", { older_than_days: days, confirm })


/** The newest decisions, as many pages of them as it takes. */
export async function decisions(store, count) {
  const offsets = Array.from({ length: Math.ceil(count / MOST) }, (_, page) => page * MOST)
  const pages = await Promise.all(
    offsets.map((offset) => {
      const query = new URLSearchParams({ offset, limit: Math.min(MOST, count - offset) })
      return ask(`${of(store)}/decisions?${query}`)
    }),
  )
  // One that was made in between stands on two pages.
  const found = new Map(pages.flatMap((page) => page.decisions).map((decision) => [decision.id, decision]))
  return { total: pages[0].total, decisions: [...found.values()] }
}

export const judge = (store, id, safe) => ask(`${decision(store, id)}/verdict`, "POST", { safe })
export const unjudge = (store, id) => ask(`${decision(store, id)}/verdict`, "DELETE", {})

export const entryPicture = (store, id) => api.apiURL(`${entry(store, id)}/picture`)
export const decisionPicture = (store, id) => api.apiURL(`${decision(store, id)}/picture`)
export const densePicture = (store, id) => api.apiURL(`${decision(store, id)}/dense`)
