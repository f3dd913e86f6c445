/** Small helpers for building elements. Texts are always text nodes: nothing that comes from a server becomes markup. */

import { ago, moment } from "./units.js"

/**
 * An element.
 *
 * @param {string} tag
 * @param {object} [props] "class"; handlers as functions named like the event; everything else is an attribute:
 *     true = present, false, null and undefined = absent.
 * @param {...(Node|string|null|undefined)} children strings become text nodes, null is left out.
 */
export function element(tag, props = {}, ...children) {
  const made = document.createElement(tag)
  for (const [name, value] of Object.entries(props)) {
    if (typeof value === "function") made.addEventListener(name, value)
    else if (name === "class") made.className = value
    else if (value === true) made.setAttribute(name, "")
    else if (value !== false && value != null) made.setAttribute(name, String(value))
  }
  made.append(...children.filter((child) => child != null))
  return made
}

/** A button of a text or an element; `name` also says what it is for where several look alike, and is how focus finds it again. */
export function button(text, name, click, props = {}) {
  return element("button", { type: "button", "data-action": name, click, ...props }, text)
}

/** A button with one of the front end's icons; say in "title" and "aria-label" what it does. */
export function iconButton(icon, name, click, props) {
  return button(element("i", { class: `pi ${icon}`, "aria-hidden": "true" }), name, click, props)
}

/** A bar that is filled to a part between 0 and 1. What it says has to be said in words beside it. */
export function bar(part) {
  const filled = element("span")
  filled.style.width = `${100 * Math.min(1, part)}%`
  return element("div", { class: "carnator-bar", "aria-hidden": "true" }, filled)
}

/** The element that says how long ago something was; `refreshAges` keeps all of them true. */
export function since(when) {
  return element("time", { datetime: new Date(1000 * when).toISOString(), title: moment(when) }, ago(when))
}

export function refreshAges(root) {
  for (const time of root.querySelectorAll("time")) time.textContent = ago(Date.parse(time.dateTime) / 1000)
}

/** Our style sheet, to be put into an element of ours: the page's head belongs to everybody. */
export function styles() {
  return element("link", { rel: "stylesheet", href: new URL("panel.css", import.meta.url).href })
}
