import assert from "node:assert/strict";
import { test } from "node:test";

/**
 * Return `groups` times two compile steps and the share step that needs them.
 * @param {number} groups
 */
function stepsOf(groups) {
  return Array.from({ length: groups }, (_, at) => `g${at}`).flatMap((group) => {
    const compiles = ["a", "b"].map((name) => ({
      id: `compile:${group}/t/${name}`,
      kind: "compile",
      group,
      target: "t",
      needs: [],
    }));
    return [...compiles, { id: `share:${group}/t`, kind: "share", group, target: "t", needs: compiles.map(({ id }) => id) }];
  });
}

/** @type {any[]} */
const steps = stepsOf(100).map((step) => ({
  ...step,
  action: step.id,
  state: "current",
  outcome: null,
  started: null,
  ended: null,
  errors: [],
}));
const report = { steps, coverage: [], accuracy: [], outputs: [], targets: [], build: null };
globalThis.document = /** @type {any} */ ({ getElementById: () => ({ textContent: JSON.stringify(report) }) });
const { MAX_NODES, clusterSteps, fittingLevel, nodeLabel, stepsAround } = await import("../src/clusters.js");

test("few steps are drawn one by one", () => {
  const level = fittingLevel(steps.slice(0, 6));
  assert.equal(level?.name, "step");
  const { clusters, edges } = clusterSteps(steps.slice(0, 6), level);
  assert.equal(clusters.length, 6);
  assert.equal(edges.length, 4);
});

test("many steps are drawn by what they have in common", () => {
  assert.equal(fittingLevel(steps)?.name, "kind");
  const { clusters, edges } = clusterSteps(steps, fittingLevel(steps));
  assert.deepEqual(
    clusters.map(({ name }) => name),
    ["compile steps", "share steps"],
  );
  assert.equal(edges.length, 1);
});

test("steps that no level fits are drawn in ranges of names", () => {
  const { clusters } = clusterSteps(steps, null);
  assert.ok(clusters.length <= MAX_NODES);
  assert.equal(
    clusters.reduce((total, cluster) => total + cluster.steps.length, 0),
    steps.length,
  );
});

test("the steps around a step are its needs and those that need it", () => {
  assert.deepEqual(
    stepsAround("compile:g0/t/a").map(({ id }) => id),
    ["compile:g0/t/a", "share:g0/t"],
  );
});

test("the middle of a long name is left out", () => {
  assert.equal(nodeLabel("short"), "short");
  assert.ok(nodeLabel("x".repeat(80)).length < 40);
});
