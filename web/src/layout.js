// Layout of a graph: Dagre lays out each connected part, and the parts are arranged in rows.

import * as dagre from "@dagrejs/dagre";
import { sum } from "./amounts.js";
import { clusterSum, NODE, nodeLabel } from "./clusters.js";
import { groupedBy } from "./report.js";

const GAP = 24;

/** @typedef {{ x: number, y: number }} Point */
/** @typedef {{ cluster: import("./clusters.js").Cluster, x: number, y: number, width: number, height: number }} Node */
/** @typedef {{ from: import("./clusters.js").Cluster, to: import("./clusters.js").Cluster, points: Point[] }} Line */
/** @typedef {{ width: number, height: number, nodes: Node[], edges: Line[] }} Layout */

/**
 * Return the positions of clusters and edges, from left to right, for a picture that is about `width` pixels wide.
 * @param {import("./clusters.js").Cluster[]} clusters
 * @param {import("./clusters.js").Edge[]} edges
 * @param {number} width
 * @returns {Layout}
 */
export function layoutGraph(clusters, edges, width) {
  const parts = connectedParts(clusters, edges).map(partLayout);
  const area = sum(parts, (part) => (part.width + GAP) * (part.height + GAP));
  const widest = Math.max(width, Math.sqrt(2 * area), ...parts.map((part) => part.width));
  let [x, y, row, right] = [0, 0, 0, 0];
  for (const part of parts.sort((a, b) => b.height - a.height)) {
    if (x && x + part.width > widest) [x, y, row] = [0, y + row + GAP, 0];
    for (const node of part.nodes) Object.assign(node, { x: node.x + x, y: node.y + y });
    for (const edge of part.edges)
      edge.points = edge.points.map((/** @type {Point} */ point) => ({ x: point.x + x, y: point.y + y }));
    [x, row] = [x + part.width + GAP, Math.max(row, part.height)];
    right = Math.max(right, x - GAP);
  }
  return {
    width: right,
    height: y + row,
    nodes: parts.flatMap((part) => part.nodes),
    edges: parts.flatMap((part) => part.edges),
  };
}

/**
 * Return the connected parts of the graph, each with its edges.
 * @param {import("./clusters.js").Cluster[]} clusters
 * @param {import("./clusters.js").Edge[]} edges
 */
function connectedParts(clusters, edges) {
  /** @type {Map<any, any>} */
  const above = new Map(clusters.map((cluster) => [cluster, cluster]));
  const top = (/** @type {any} */ cluster) => {
    while (above.get(cluster) !== cluster) {
      above.set(cluster, above.get(above.get(cluster)));
      cluster = above.get(cluster);
    }
    return cluster;
  };
  for (const { from, to } of edges) above.set(top(from), top(to));
  const edgesOf = groupedBy(edges, ({ from }) => top(from));
  return [...groupedBy(clusters, top)].map(([first, members]) => ({ clusters: members, edges: edgesOf.get(first) ?? [] }));
}

/** @param {{ clusters: import("./clusters.js").Cluster[], edges: import("./clusters.js").Edge[] }} part */
function partLayout({ clusters, edges }) {
  const graph = new dagre.graphlib.Graph();
  graph.setGraph({ rankdir: "LR", nodesep: 12, ranksep: 50, marginx: 6, marginy: 6 });
  graph.setDefaultEdgeLabel(() => ({}));
  for (const cluster of clusters) {
    const letters = Math.max(14, nodeLabel(cluster.name).length, cluster.steps.length > 1 ? clusterSum(cluster).length : 0);
    graph.setNode(cluster.name, { width: letters * NODE.letter + 44, height: NODE.height });
  }
  for (const { from, to } of edges) graph.setEdge(from.name, to.name);
  dagre.layout(graph);
  const { width, height } = graph.graph();
  return {
    width,
    height,
    nodes: clusters.map((cluster) => ({ cluster, ...graph.node(cluster.name) })),
    edges: edges.map(({ from, to }) => ({ from, to, points: graph.edge(from.name, to.name).points })),
  };
}
