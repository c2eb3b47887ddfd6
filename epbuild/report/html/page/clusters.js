// Clusters of steps: as many steps are drawn as one node as it takes for a graph that can be read.

const MOST_NODES = 50;
const MOST_BUCKETS = 40;

/** From fine to coarse: what steps are drawn together. What serves several groups or targets is drawn by its kind. */
const LEVELS = [
  { name: "step", key: (step) => step.id },
  { name: "group and target", key: (step) => (step.group && step.target ? `${step.group} / ${step.target}` : `${step.kind} steps`) },
  { name: "group", key: (step) => step.group ?? `${step.kind} steps` },
  { name: "target", key: (step) => step.target ?? `${step.kind} steps` },
  { name: "kind", key: (step) => `${step.kind} steps` },
];

/** The finest level at which steps are more than one node and not too many; null where there is none. */
function fittingLevel(steps) {
  return LEVELS.find((level) => {
    const nodes = new Set(steps.map(level.key)).size;
    return nodes <= MOST_NODES && (nodes > 1 || steps.length === 1);
  }) ?? null;
}

/** Clusters at a level: {name, steps}, and edges between them. */
function clustered(steps, level) {
  const groups = level ? groupedBy(steps, level.key) : buckets(steps);
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
function buckets(steps) {
  const finest = [...groupedBy(steps, new Set(steps.map(LEVELS[1].key)).size > 1 ? LEVELS[1].key : LEVELS[0].key)];
  const width = Math.ceil(finest.length / MOST_BUCKETS);
  const ranges = new Map();
  for (let at = 0; at < finest.length; at += width) {
    const part = finest.slice(at, at + width);
    ranges.set(part.length > 1 ? `${part[0][0]} … ${part.at(-1)[0]}` : part[0][0], part.flatMap(([, members]) => members));
  }
  return ranges;
}

/** The steps that lead to a step and those that follow it, nearest first, at most as many as can be drawn. */
function around(id) {
  const found = new Set([id]);
  let [before, after] = [[id], [id]];
  while ((before.length || after.length) && found.size < MOST_NODES) {
    before = before.flatMap((at) => stepById.get(at).needs.filter((need) => stepById.has(need) && !found.has(need)));
    after = after.flatMap((at) => neededBy.get(at).filter((next) => !found.has(next)));
    for (const next of [...before, ...after]) if (found.size < MOST_NODES) found.add(next);
  }
  return report.steps.filter((step) => found.has(step.id));
}
