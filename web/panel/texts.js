/** The texts of the panel and of the nodes' status, in the languages that it speaks. */

import { app } from "../../../scripts/app.js"
import { chinese } from "./texts_zh.js"
import { english } from "./texts_en.js"

export const TABLES = { en: english, zh: chinese }

/** The front end's language, as one that there is a table for. */
export function language() {
  const chosen = String(app.extensionManager?.setting?.get("Comfy.Locale") ?? "en")
  return TABLES[chosen.split("-")[0]] ? chosen.split("-")[0] : "en"
}

/**
 * A text by its key.
 *
 * @param {object} [values] what stands for the {names} in the text.
 */
export function text(key, values = {}) {
  const found = TABLES[language()][key] ?? english[key]
  return found.replace(/\{(\w+)\}/g, (whole, name) => values[name] ?? whole)
}
