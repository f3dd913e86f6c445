/** Carnator in the editor: a status on its nodes, a panel in the sidebar, and ways to put its nodes into a graph. */

import { app } from "../../scripts/app.js"
import { COMMANDS, extendMenu, menuItems, toolbox } from "./panel/first_hit.js"
import { NodeStatus } from "./panel/node_status.js"
import { Panel } from "./panel/panel.js"
import { text } from "./panel/texts.js"

const TAB = "carnator"
let panel = null
let status = null

/** The editor calls this again for the same place whenever it draws its sidebar. */
function render(container) {
  if (panel?.container === container && container.contains(panel.element)) return
  destroy()
  panel = new Panel(container)
}

function destroy() {
  panel?.destroy()
  panel = null
}

function openPanel() {
  if (panel === null) app.extensionManager.command.execute(`Workspace.ToggleSidebarTab.${TAB}`)
}

app.registerExtension({
  name: "comfyuicarnator.panel",
  commands: COMMANDS,
  getNodeMenuItems: menuItems,
  getSelectionToolboxCommands: toolbox,
  beforeRegisterNodeDef(nodeType) {
    if (!app.collectNodeMenuItems) extendMenu(nodeType)
  },
  setup() {
    status = new NodeStatus(openPanel)
    app.extensionManager.registerSidebarTab({
      id: TAB,
      title: text("title"),
      tooltip: text("tooltip"),
      icon: "pi pi-history",
      type: "custom",
      render,
      destroy,
    })
  },
  afterConfigureGraph() {
    status?.restore()
  },
})
