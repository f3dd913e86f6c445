/** Sizes, times and shares as people read them. */

import { language, text } from "./texts.js"

const UNITS = ["B", "kB", "MB", "GB", "TB"]
const SPANS = [
  ["days", 86400],
  ["hours", 3600],
  ["minutes", 60],
]

function number(value, digits) {
  return new Intl.NumberFormat(language(), { maximumFractionDigits: digits }).format(value)
}

/** @param {number} count bytes; a budget of 8 GB is 8e9 of them. */
export function bytes(count) {
  let size = count
  let unit = 0
  while (size >= 1000 && unit < UNITS.length - 1) {
    size /= 1000
    unit += 1
  }
  return `${number(size, size < 10 && unit > 1 ? 1 : 0)} ${UNITS[unit]}`
}

/** A span of time in its largest unit; from a minute on with one more digit where that says something. */
export function duration(seconds) {
  for (const [key, size] of SPANS) {
    if (seconds >= size) return text(key, { n: number(seconds / size, seconds < 10 * size ? 1 : 0) })
  }
  return text("seconds", { n: number(seconds, seconds < 10 ? 1 : 0) })
}

/** How long ago, in whole units. @param {number} when seconds since 1970. */
export function age(when) {
  const seconds = Math.max(0, Date.now() / 1000 - when)
  for (const [key, size] of SPANS) {
    if (seconds >= size) return text(key, { n: Math.floor(seconds / size) })
  }
  return text("seconds", { n: Math.floor(seconds) })
}

/** "5 min ago", or "just now". */
export function ago(when) {
  return Date.now() / 1000 - when < 5 ? text("now") : text("ago", { age: age(when) })
}

export function moment(when) {
  return new Date(when * 1000).toLocaleString(language())
}

export function share(part) {
  return new Intl.NumberFormat(language(), { style: "percent" }).format(part)
}

export function value(found) {
  return new Intl.NumberFormat(language(), { maximumSignificantDigits: 3 }).format(found)
}
