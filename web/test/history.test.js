import assert from "node:assert/strict";
import { test } from "node:test";

/** @type {any} */ (globalThis).document = {
  getElementById: () => ({ textContent: JSON.stringify({ steps: [], coverage: [], outputs: [], targets: [], history: [] }) }),
};

const { figureTrends, linePoints, placeOf, trend } = await import("../src/history.js");
const { report } = await import("../src/report.js");

test("a line runs from left to right, and the smallest value is at the bottom", () => {
  const points = linePoints([1, 3, 2]);
  assert.deepEqual(
    points.map(([x]) => x),
    [4, 70, 136],
  );
  assert.deepEqual(
    points.map(([, y]) => y),
    [26, 4, 15],
  );
});

test("equal values are a line in the middle", () => {
  assert.deepEqual(
    linePoints([5, 5]).map(([, y]) => y),
    [15, 15],
  );
});

test("a history needs two builds", () => {
  assert.equal(
    trend("Size", (build) => build.seconds, String),
    null,
  );
});

test("a figure of one build has no line, so it takes no place of another figure", () => {
  report.history.push(/** @type {any} */ ({ totals: { figures: [{ figures: { top1: 1 }, on: null, device: null }] } }));
  assert.deepEqual(
    figureTrends("Top 1", "top1", () => true, String),
    [],
  );
  report.history.pop();
});

test("places of different devices differ", () => {
  assert.equal(placeOf({ on: "device", device: "A" }), "device: A");
  assert.equal(placeOf({ on: "emulator", device: "A" }), "emulator: A");
  assert.equal(placeOf({ on: null, device: null }), "any device");
});
