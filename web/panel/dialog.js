/** A question that has to be answered before something is deleted. */

import { button, element } from "./dom.js"
import { text } from "./texts.js"

/**
 * @param {HTMLElement} place where the dialog is put while it is open
 * @param {string} title
 * @param {string[]} lines what would happen
 * @param {string} action what the button says that does it
 * @returns {Promise<boolean>}
 */
export function confirm(place, title, lines, action) {
  return new Promise((resolve) => {
    const close = (answer) => () => dialog.close(answer)
    const dialog = element(
      "dialog",
      { class: "carnator-dialog", "aria-labelledby": "carnator-dialog-title" },
      element("h3", { id: "carnator-dialog-title" }, title),
      ...lines.map((line) => element("p", {}, line)),
      element(
        "div",
        { class: "carnator-buttons" },
        button(text("cancel"), "cancel", close("no"), { autofocus: true }),
        button(action, "confirm", close("yes"), { class: "carnator-danger" }),
      ),
    )
    // The editor listens for keys on the whole page: Delete would remove the selected nodes.
    dialog.addEventListener("keydown", (event) => event.stopPropagation())
    dialog.addEventListener("close", () => {
      dialog.remove()
      resolve(dialog.returnValue === "yes")
    })
    place.append(dialog)
    dialog.showModal()
  })
}
