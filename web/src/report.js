// The report, as `schemas/report.schema.json` describes it, and what is found in it by name.

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

export const COVERAGE = ["whole", "partial", "failed verify", "failed", "not built"];
export const COVERAGE_WORDS = { whole: "whole", partial: "in part", "failed verify": "failed verify", failed: "failed", "not built": "not built" };
export const COVERAGE_LETTERS = { whole: "W", "failed verify": "V", failed: "F", "not built": "N" };

export const OUTCOME_LETTERS = { built: "B", emitted: "E", restored: "R", current: "C", allowed: "A", skipped: "S", failed: "F", interrupted: "I" };

export function groupedBy(items, key) {
  const groups = new Map();
  for (const item of items) {
    const name = key(item);
    if (groups.has(name)) groups.get(name).push(item);
    else groups.set(name, [item]);
  }
  return groups;
}

/** What came of a step in the last build, else where it stands now. */
export function outcomeOf(step) {
  return step.outcome ?? (step.state === "failed" ? "failed" : step.state === "current" ? "current" : "not run");
}

const STATE_TEXTS = { new: "never built before", failed: "failed before", restorable: "its result was in the store", "out of date": "out of date" };

/** Why the last build ran a step: where it stood before, and what had changed. */
export function runReasons(step) {
  return step.was in STATE_TEXTS && !(step.was === "out of date" && step.because.length) ? [STATE_TEXTS[step.was], ...step.because] : step.because;
}

/** When the last build began with what is a step's own; the last step of an action has the others of it in its time, and begins after them. */
export const ownStart = new Map();
for (const steps of groupedBy(report.steps.filter((step) => step.started !== null && step.ended !== null), (step) => step.action).values()) {
  for (const step of steps) {
    const inside = steps.filter((other) => other !== step && step.id === step.action && other.started >= step.started && other.ended <= step.ended);
    ownStart.set(step.id, Math.max(step.started, ...inside.map((other) => other.ended)));
  }
}

/** The time that the last build spent on a step itself; null where it spent none. */
export function ownTime(step) {
  return ownStart.has(step.id) ? step.ended - ownStart.get(step.id) : null;
}

/** The steps that the last build worked at, longest first. */
export function longestSteps() {
  return report.steps.filter((step) => ownTime(step) !== null).sort((a, b) => Number(ownTime(b)) - Number(ownTime(a)));
}

/** Steps that failed, also those that the recipe allows to. */
export function failedSteps() {
  return report.steps.filter((step) => step.errors.length > 0);
}

export function isAllowed(step) {
  return step.outcome === "allowed";
}

/** Failed steps by their first error, most steps first. */
export function failuresByReason() {
  const groups = groupedBy(failedSteps(), (step) => `${step.errors[0].code} ${step.errors[0].reason ?? step.errors[0].message}`);
  return [...groups.values()].sort((a, b) => b.length - a.length);
}

/** "in 5 outputs", or in how many of them that were published. */
export function outputsSum() {
  const published = report.outputs.filter((output) => output.files.length).length;
  const all = counted(report.outputs.length, "output");
  return published === report.outputs.length ? `in ${all}` : `in ${formatNumber(published)} of ${all}`;
}
