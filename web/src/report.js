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
export const COVERAGE = ["whole", "partial", "on the CPU", "failed verify", "failed", "not built"];
export const COVERAGE_WORDS = {
  whole: "whole",
  partial: "partial",
  "on the CPU": "on the CPU",
  "failed verify": "failed verify",
  failed: "failed",
  "not built": "not built",
};
export const COVERAGE_LETTERS = { whole: "W", "on the CPU": "C", "failed verify": "V", failed: "F", "not built": "N" };

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

/** Start of each step's own work. The recorded time of an action's last step includes the other steps, so its own work starts after them. */
/** @type {Map<string, number>} */
export const ownStart = new Map();
/** @typedef {Step & { started: number, ended: number }} StartedStep */
const startedSteps = /** @type {StartedStep[]} */ (report.steps.filter((step) => step.started !== null && step.ended !== null));
for (const steps of groupedBy(startedSteps, (step) => step.action).values()) {
  for (const step of steps) {
    const inside = steps.filter(
      (other) => other !== step && step.id === step.action && other.started >= step.started && other.ended <= step.ended,
    );
    ownStart.set(step.id, Math.max(step.started, ...inside.map((other) => other.ended)));
  }
}

/**
 * Return the time that the last build spent on a step, without other steps of its action. Return null if it did not run.
 * @param {Step} step
 * @returns {number | null}
 */
export function ownTime(step) {
  const start = ownStart.get(step.id);
  return step.ended === null || start === undefined ? null : step.ended - start;
}

/** Return the steps that the last build worked on, longest first. */
export function longestSteps() {
  return report.steps.filter((step) => ownTime(step) !== null).sort((a, b) => Number(ownTime(b)) - Number(ownTime(a)));
}

/** Return the failed steps, including allowed failures. */
export function failedSteps() {
  return report.steps.filter((step) => step.errors.length > 0);
}

/** @param {Step} step */
export function isAllowed(step) {
  return step.outcome === "allowed";
}

/** Return the failed steps grouped by their first error, largest group first. */
export function failuresByReason() {
  const groups = groupedBy(failedSteps(), (step) => `${step.errors[0].code} ${step.errors[0].reason ?? step.errors[0].message}`);
  return [...groups.values()].sort((a, b) => b.length - a.length);
}

/** Describe the number of outputs, and the number of emitted outputs if they differ. */
export function outputsSum() {
  const published = report.outputs.filter((output) => output.files.length).length;
  const all = counted(report.outputs.length, "output");
  return published === report.outputs.length ? `in ${all}` : `in ${formatNumber(published)} of ${all}`;
}
