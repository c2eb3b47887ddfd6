// Clusters of steps: as many steps are drawn as one node as it takes for a graph that can be read.

import { counted, formatNumber } from "./amounts.js";
import { groupedBy, neededBy, outcomeOf, report, stepById } from "./report.js";

export const MAX_NODES = 50;
const MAX_RANGES = 40;

/** From fine to coarse: what steps are drawn together. What serves several groups or targets is drawn by its kind. */
export const LEVELS = [
  { name: "step", key: (step) => step.id },
  { name: "group and target", key: (step) => (step.group && step.target ? `${step.group} / ${step.target}` : `${step.kind} steps`) },
  { name: "group", key: (step) => step.group ?? `${step.kind} steps` },
  { name: "target", key: (step) => step.target ?? `${step.kind} steps` },
  { name: "kind", key: (step) => `${step.kind} steps` },
];

/** The finest level at which steps are more than one node and not too many; null where there is none. */
export function fittingLevel(steps) {
  return LEVELS.find((level) => {
    const nodes = new Set(steps.map(level.key)).size;
    return nodes <= MAX_NODES && (nodes > 1 || steps.length === 1);
  }) ?? null;
}

/** Clusters at a level: {name, steps}, and edges between them. */
export function clusterSteps(steps, level) {
  const groups = level ? groupedBy(steps, level.key) : nameRanges(steps);
  const clusters = [...groups].map(([name, members]) => ({ name, steps: members }));
  const clusterOf = new Map(clusters.flatMap((cluster) => cluster.steps.map((step) => [step.id, cluster])));
  const edges = new Map();
  for (const step of steps) {
    for (const need of step.needs) {
      const [from, to] = [clusterOf.get(need), clusterOf.get(step.id)];
      if (from && from !== to) edges.set(`${from.name}\n${to.name}`, { from, to });
    }
  }
  return { clusters, edges: [...edges.values()] };
}

/** Where no level fits: the groups (or steps) in ranges of their names, in order. */
function nameRanges(steps) {
  const finest = [...groupedBy(steps, new Set(steps.map(LEVELS[1].key)).size > 1 ? LEVELS[1].key : LEVELS[0].key)];
  const width = Math.ceil(finest.length / MAX_RANGES);
  const ranges = new Map();
  for (let at = 0; at < finest.length; at += width) {
    const part = finest.slice(at, at + width);
    ranges.set(part.length > 1 ? `${part[0][0]} … ${part[part.length - 1][0]}` : part[0][0], part.flatMap(([, members]) => members));
  }
  return ranges;
}

/** The steps that lead to a step and those that follow it, nearest first, at most as many as can be drawn. */
export function stepsAround(id) {
  const found = new Set([id]);
  let [before, after] = [[id], [id]];
  while ((before.length || after.length) && found.size < MAX_NODES) {
    before = before.flatMap((at) => (stepById.get(at)?.needs ?? []).filter((need) => stepById.has(need) && !found.has(need)));
    after = after.flatMap((at) => (neededBy.get(at) ?? []).filter((next) => !found.has(next)));
    for (const next of [...before, ...after]) if (found.size < MAX_NODES) found.add(next);
  }
  return report.steps.filter((step) => found.has(step.id));
}

export const NODE = { height: 40, letter: 6.6, most: 34 };

/** How many steps a cluster has, and how many of them failed. */
export function clusterSum({ steps }) {
  const failed = steps.filter((step) => outcomeOf(step) === "failed").length;
  return counted(steps.length, "step") + (failed ? `, ${formatNumber(failed)} failed` : "");
}

/** The name of a node, short enough: its middle is left out. */
export function nodeLabel(name) {
  return name.length <= NODE.most ? name : `${name.slice(0, NODE.most / 2 - 2)}…${name.slice(-NODE.most / 2)}`;
}
