/** Walks over the graphs of the open workflow. */

import { app } from "../../../scripts/app.js"

export function rootGraph() {
  return app.rootGraph ?? app.graph
}

/** The node of an execution id, "5" or "12:5" for node 5 in the subgraph of node 12. */
export function find(executionId) {
  let graph = rootGraph()
  let node = null
  for (const id of executionId.split(":")) {
    node = graph?.getNodeById(Number(id)) ?? graph?.getNodeById(id)
    graph = node?.subgraph
  }
  return node
}

/** All nodes of a graph and of the subgraphs in it; those of a subgraph that is used twice come twice. */
export function* nodesOf(graph) {
  for (const node of graph?.nodes ?? []) {
    yield node
    if (node.subgraph) yield* nodesOf(node.subgraph)
  }
}
