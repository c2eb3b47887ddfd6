import assert from "node:assert/strict";
import { test } from "node:test";

/** @type {any} */ (globalThis).document = {
  getElementById: () => ({ textContent: JSON.stringify({ steps: [], coverage: [], outputs: [], targets: [], build: null }) }),
};
const { worstFirst } = await import("../src/report.js");

test("more failures are worse, and failures are worse than fallback nodes", () => {
  const row = (/** @type {string} */ outcome, nodes = 0) => /** @type {any} */ ({ outcome, fallback_nodes: nodes });
  /** @type {Record<string, any[]>} */
  const items = {
    whole: [row("whole"), row("whole")],
    slow: [row("partial", 900), row("whole")],
    broken: [row("failed"), row("whole")],
    worst: [row("failed"), row("failed")],
    partial: [row("partial", 1), row("whole")],
  };
  const names = worstFirst(Object.keys(items), (name) => items[name]);
  assert.deepEqual(names, ["worst", "broken", "slow", "partial", "whole"]);
});
