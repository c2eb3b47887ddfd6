// The report, as `schemas/report.schema.json` describes it, and what is found in it by name.

const report = JSON.parse(byId("report").textContent);
const build = report.build;

const stepById = new Map(report.steps.map((step) => [step.id, step]));
const neededBy = new Map(report.steps.map((step) => [step.id, []]));
for (const step of report.steps) for (const need of step.needs) neededBy.get(need)?.push(step.id);

const coverageByStep = groupedBy(report.coverage, (row) => row.step);
const coverageByModel = groupedBy(report.coverage, (row) => row.model);
const coverageByTarget = groupedBy(report.coverage, (row) => row.target);
const accuracyByStep = groupedBy(report.accuracy, (row) => row.step);
const outputByStep = new Map(report.outputs.map((output) => [output.step, output]));
const targetByName = new Map(report.targets.map((target) => [target.name, target]));

const COVERAGE = ["whole", "partial", "failed verify", "failed", "not built"];
const COVERAGE_WORDS = { whole: "whole", partial: "in part", "failed verify": "failed verify", failed: "failed", "not built": "not built" };
const COVERAGE_LETTERS = { whole: "W", "failed verify": "V", failed: "F", "not built": "N" };

const OUTCOMES = ["built", "emitted", "restored", "current", "allowed", "skipped", "interrupted", "failed"];
const OUTCOME_LETTERS = { built: "B", emitted: "E", restored: "R", current: "C", allowed: "A", skipped: "S", failed: "F", interrupted: "I" };

function groupedBy(items, key) {
  const groups = new Map();
  for (const item of items) {
    const name = key(item);
    if (groups.has(name)) groups.get(name).push(item);
    else groups.set(name, [item]);
  }
  return groups;
}

/** What came of a step in the last build, else where it stands now. */
function standing(step) {
  return step.outcome ?? (step.state === "failed" ? "failed" : step.state === "current" ? "current" : "not run");
}

function standingLetter(step) {
  return OUTCOME_LETTERS[standing(step)] ?? "–";
}

const WAS = { new: "never built before", failed: "failed before", restorable: "its result was in the store", "out of date": "out of date" };

/** Why the last build ran a step: where it stood before, and what had changed. */
function whyRan(step) {
  return step.was in WAS && !(step.was === "out of date" && step.because.length) ? [WAS[step.was], ...step.because] : step.because;
}

/** When the last build began with what is a step's own; the last step of an action has the others of it in its time, and begins after them. */
const ownStart = new Map();
for (const steps of groupedBy(report.steps.filter((step) => step.started !== null && step.ended !== null), (step) => step.action).values()) {
  for (const step of steps) {
    const inside = steps.filter((other) => other !== step && step.id === step.action && other.started >= step.started && other.ended <= step.ended);
    ownStart.set(step.id, Math.max(step.started, ...inside.map((other) => other.ended)));
  }
}

/** The time that the last build spent on a step itself; null where it spent none. */
function spent(step) {
  return ownStart.has(step.id) ? step.ended - ownStart.get(step.id) : null;
}

/** The steps that the last build worked at, longest first. */
function longest() {
  return report.steps.filter((step) => spent(step) !== null).sort((a, b) => spent(b) - spent(a));
}

/** Steps that failed, also those that the recipe allows to. */
function failures() {
  return report.steps.filter((step) => step.errors.length > 0);
}

function allowed(step) {
  return step.outcome === "allowed";
}

/** Failed steps by their first error, most steps first. */
function failuresByReason() {
  const groups = groupedBy(failures(), (step) => `${step.errors[0].code} ${step.errors[0].reason ?? step.errors[0].message}`);
  return [...groups.values()].sort((a, b) => b.length - a.length);
}
