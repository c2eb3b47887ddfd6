import assert from "node:assert/strict";
import { test } from "node:test";
import {
  countBy,
  counted,
  formatBytes,
  formatMoment,
  formatNumber,
  formatPercent,
  formatSeconds,
  formatSignedPercent,
  sum,
} from "../src/amounts.js";

test("sizes have decimal units and one decimal", () => {
  assert.deepEqual([0, 1, 999, 1000, 1500, 1_250_000].map(formatBytes), [
    "0 bytes",
    "1 byte",
    "999 bytes",
    "1.0 kB",
    "1.5 kB",
    "1.2 MB",
  ]);
});

test("numbers are rounded as Python rounds them", () => {
  assert.deepEqual([0.25, 0.35, 2.25, -0.25].map(formatSeconds), ["0.2 s", "0.3 s", "2.2 s", "-0.2 s"]);
});

test("durations have their two largest units", () => {
  assert.deepEqual([0, 59.9, 60, 139.4, 3599.6, 3600, 3900, 93_600].map(formatSeconds), [
    "0.0 s",
    "59.9 s",
    "1 min",
    "2 min 19 s",
    "1 h",
    "1 h",
    "1 h 5 min",
    "26 h",
  ]);
});

test("thousands are separated", () => {
  assert.equal(formatNumber(10_420), "10,420");
  assert.equal(counted(1, "step"), "1 step");
  assert.equal(counted(2000, "step"), "2,000 steps");
});

test("a percentage of nothing is empty", () => {
  assert.equal(formatPercent(1, 0), "");
  assert.equal(formatSignedPercent(1, 8), "+12.5%");
  assert.equal(formatSignedPercent(-1, 8), "-12.5%");
});

test("a moment is shown to the minute", () => {
  assert.equal(formatMoment("2026-11-23T03:50:09Z"), "2026-11-23 03:50 UTC");
  assert.equal(formatMoment("yesterday"), "yesterday");
});

test("items are counted and summed by a key", () => {
  assert.deepEqual(
    [...countBy(["a", "b", "a"], (one) => one)],
    [
      ["a", 2],
      ["b", 1],
    ],
  );
  assert.equal(
    sum([{ size: 1 }, { size: null }], (one) => one.size),
    1,
  );
});
