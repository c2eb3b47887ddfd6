// The report, described by `schemas/report.schema.json`, with indexes and derived facts.

import { counted, formatNumber } from "./amounts.js";
import { byId } from "./elements.js";

/** @type {import("./report-types.d.ts").Report} */
export const report = JSON.parse(byId("report").textContent);
export const build = report.build;

/** @typedef {import("./report-types.d.ts").Step} Step */
/** @type {Map<string, Step>} */
export const stepById = new Map(report.steps.map((step) => [step.id, step]));
/** @type {Map<string, string[]>} */
export const neededBy = new Map(report.steps.map((step) => [step.id, []]));
for (const step of report.steps) for (const need of step.needs) neededBy.get(need)?.push(step.id);

export const coverageByStep = groupedBy(report.coverage, (row) => row.step);
export const coverageByModel = groupedBy(report.coverage, (row) => row.model);
export const coverageByTarget = groupedBy(report.coverage, (row) => row.target);
export const outputByStep = new Map(report.outputs.map((output) => [output.step, output]));
export const targetByName = new Map(report.targets.map((target) => [target.name, target]));

/** @type {import("./report-types.d.ts").Coverage["outcome"][]} */
export const COVERAGE = ["whole", "partial", "on the CPU", "failed verify", "failed measure", "failed", "not built"];
/** @type {import("./report-types.d.ts").Coverage["outcome"][]} */
export const WORST_COVERAGE = ["failed", "failed verify", "failed measure", "not built", "partial", "on the CPU", "whole"];
export const COVERAGE_WORDS = {
  whole: "whole",
  partial: "partial",
  "on the CPU": "on the CPU",
  "failed verify": "failed verify",
  "failed measure": "failed measure",
  failed: "failed",
  "not built": "not built",
};
export const COVERAGE_LETTERS = {
  whole: "W",
  "on the CPU": "C",
  "failed verify": "V",
  "failed measure": "M",
  failed: "F",
  "not built": "N",
};

/** @type {Record<string, string>} */
export const OUTCOME_LETTERS = {
  built: "B",
  emitted: "E",
  restored: "R",
  current: "C",
  allowed: "A",
  skipped: "S",
  failed: "F",
  interrupted: "I",
};

/**
 * @template T, K
 * @param {Iterable<T>} items
 * @param {(item: T) => K} key
 * @returns {Map<K, T[]>}
 */
export function groupedBy(items, key) {
  const groups = new Map();
  for (const item of items) {
    const name = key(item);
    if (groups.has(name)) groups.get(name).push(item);
    else groups.set(name, [item]);
  }
  return groups;
}

/**
 * Return items by the coverage of their models, worst first: by the number of models with each outcome, then by fallback nodes.
 * @template T
 * @param {Iterable<T>} items
 * @param {(item: T) => import("./report-types.d.ts").Coverage[]} rowsOf
 */
export function worstFirst(items, rowsOf) {
  const known = [...items].map((item) => {
    const rows = rowsOf(item);
    const counts = WORST_COVERAGE.slice(0, -1).map((outcome) => rows.filter((row) => row.outcome === outcome).length);
    return { item, badness: [...counts, rows.reduce((nodes, row) => nodes + (row.fallback_nodes ?? 0), 0)] };
  });
  return known.sort((a, b) => compareLists(b.badness, a.badness)).map(({ item }) => item);
}

/**
 * Compare the first numbers that differ in two lists of equal length.
 * @param {number[]} one
 * @param {number[]} other
 */
function compareLists(one, other) {
  const at = one.findIndex((number, place) => number !== other[place]);
  return at < 0 ? 0 : one[at] - other[at];
}

/**
 * Return the outcome of a step in the last build, or else its state.
 * @param {Step} step
 */
export function outcomeOf(step) {
  return step.outcome ?? (step.state === "failed" ? "failed" : step.state === "current" ? "current" : "not run");
}

/** @type {Record<string, string>} */
const STATE_TEXTS = {
  new: "never built before",
  failed: "failed before",
  restorable: "its result was in the store",
  "out of date": "out of date",
};

/**
 * Return why the last build ran a step: its state before, and the changes.
 * @param {Step} step
 */
export function runReasons(step) {
  const before = step.was && STATE_TEXTS[step.was];
  return before && !(step.was === "out of date" && step.because.length) ? [before, ...step.because] : step.because;
}

/**
 * Start and end of each step's bar in the timeline. The last step of an action follows the action's other steps.
 * @type {Map<string, [number, number]>}
 */
export const stepTimes = new Map();
for (const steps of groupedBy(report.steps, (step) => step.action).values()) {
  let free = 0;
  for (const { id, action, started, ended, work } of steps) {
    if (started === null || ended === null || work === null) continue;
    const start = id === action ? Math.max(started, free, ended - work) : started;
    free = id === action ? ended : Math.min(ended, started + work);
    stepTimes.set(id, [start, free]);
  }
}

/** @typedef {{ name: string, seconds: number, step: Step | null }} Work work of the last build: a step, or a toolchain's environment */

/** Return the work of the last build, longest first. @returns {Work[]} */
export function longestWork() {
  const steps = report.steps.flatMap((step) => (step.work === null ? [] : [{ name: step.id, seconds: step.work, step }]));
  const toolchains = (build?.spans ?? []).filter((span) => span.kind === "toolchain" && !span.failed);
  const spans = toolchains.map((span) => ({ name: `toolchain ${span.name}`, seconds: span.ended - span.started, step: null }));
  return [...steps, ...spans].sort((a, b) => b.seconds - a.seconds);
}

/** Return the failed steps, including allowed failures. */
export function failedSteps() {
  return report.steps.filter((step) => step.errors.length > 0);
}

/** @param {Step} step */
export function isAllowed(step) {
  return step.outcome === "allowed";
}

/** Return the reasons for failures, most frequent reason first, and reasons for allowed failures last. */
export function failuresByReason() {
  return [...report.failures].sort((a, b) => Number(a.allowed) - Number(b.allowed) || b.steps.length - a.steps.length);
}

/** Describe the number of outputs, and the number of emitted outputs if they differ. */
export function outputsSum() {
  const published = report.outputs.filter((output) => output.files.length).length;
  const all = counted(report.outputs.length, "output");
  return published === report.outputs.length ? `in ${all}` : `in ${formatNumber(published)} of ${all}`;
}
