// Clusters of steps. They keep the graph small enough to read.

import { counted, formatNumber } from "./amounts.js";
import { groupedBy, neededBy, outcomeOf, report, stepById } from "./report.js";

/** @typedef {import("./report.js").Step} Step */
/** @typedef {{ name: string, key: (step: Step) => string }} Level */
/** @typedef {{ name: string, steps: Step[] }} Cluster */
/** @typedef {{ from: Cluster, to: Cluster }} Edge */

export const MAX_NODES = 50;
const MAX_RANGES = 40;

/** Levels of clustering, from fine to coarse. Steps that serve several groups or targets are clustered by kind. */
/** @type {Level[]} */
export const LEVELS = [
  { name: "step", key: (step) => step.id },
  {
    name: "group and target",
    key: (step) => (step.group && step.target ? `${step.group} / ${step.target}` : `${step.kind} steps`),
  },
  { name: "group", key: (step) => step.group ?? `${step.kind} steps` },
  { name: "target", key: (step) => step.target ?? `${step.kind} steps` },
  { name: "kind", key: (step) => `${step.kind} steps` },
];

/**
 * Return the finest level with more than one node and at most MAX_NODES, or null.
 * @param {Step[]} steps
 */
export function fittingLevel(steps) {
  return (
    LEVELS.find((level) => {
      const nodes = new Set(steps.map(level.key)).size;
      return nodes <= MAX_NODES && (nodes > 1 || steps.length === 1);
    }) ?? null
  );
}

/**
 * Return the clusters at a level, and the edges between them.
 * @param {Step[]} steps
 * @param {Level | null} level
 */
export function clusterSteps(steps, level) {
  const groups = level ? groupedBy(steps, level.key) : nameRanges(steps);
  const clusters = [...groups].map(([name, members]) => ({ name, steps: members }));
  const clusterOf = new Map(clusters.flatMap((cluster) => cluster.steps.map((step) => [step.id, cluster])));
  const edges = new Map();
  for (const step of steps) {
    for (const need of step.needs) {
      const [from, to] = [clusterOf.get(need), clusterOf.get(step.id)];
      if (from && to && from !== to) edges.set(`${from.name}\n${to.name}`, { from, to });
    }
  }
  return { clusters, edges: [...edges.values()] };
}

/**
 * Return ranges of group names or step names, for plans that are too large for every level.
 * @param {Step[]} steps
 * @returns {Map<string, Step[]>}
 */
function nameRanges(steps) {
  const finest = [...groupedBy(steps, new Set(steps.map(LEVELS[1].key)).size > 1 ? LEVELS[1].key : LEVELS[0].key)];
  const width = Math.ceil(finest.length / MAX_RANGES);
  const ranges = new Map();
  for (let at = 0; at < finest.length; at += width) {
    const part = finest.slice(at, at + width);
    ranges.set(
      part.length > 1 ? `${part[0][0]} … ${part[part.length - 1][0]}` : part[0][0],
      part.flatMap(([, members]) => members),
    );
  }
  return ranges;
}

/**
 * Return a step with up to MAX_NODES steps around it, nearest first.
 * @param {string} id
 */
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

/**
 * Describe the number of steps in a cluster, and the number of failed steps.
 * @param {Cluster} cluster
 */
export function clusterSum({ steps }) {
  const failed = steps.filter((step) => outcomeOf(step) === "failed").length;
  return counted(steps.length, "step") + (failed ? `, ${formatNumber(failed)} failed` : "");
}

/**
 * Shorten a long name by removing its middle.
 * @param {string} name
 */
export function nodeLabel(name) {
  return name.length <= NODE.most ? name : `${name.slice(0, NODE.most / 2 - 2)}…${name.slice(-NODE.most / 2)}`;
}
