// Overview section: coverage, failures, sizes and time, each with a link to its section.

import { accuracySum, metricTrends } from "./accuracy.js";
import { counted, FIGURE, formatBytes, formatNumber, formatSeconds, sum } from "./amounts.js";
import { coverageSum, logEnd, stepLink, targetLink } from "./details.js";
import { differencesSum } from "./differences.js";
import { add, bytes, count, dash, el, errorCode, limitedList, message, reasonText, seconds } from "./elements.js";
import { trend } from "./history.js";
import { measurementsSum } from "./measurements.js";
import { badge } from "./panel.js";
import {
  build,
  coverageByTarget,
  failedSteps,
  failuresByReason,
  isAllowed,
  longestWork,
  outputsSum,
  report,
  stepById,
  WORST_COVERAGE,
  worstFirst,
} from "./report.js";
import { sharingSum } from "./sizes.js";
import { table, tile } from "./tables.js";

/** @typedef {import("./report-types.d.ts").Target} Target */
/** @typedef {import("./report.js").Step} Step */

/** @param {Element} section */
export function drawOverview(section) {
  const failed = failedSteps();
  const total = sum(report.outputs, (output) => output.size);
  const [slowest] = longestWork();
  add(
    section,
    el(
      "div.tiles",
      {},
      tile("Coverage", "coverage", coverageSum(report.coverage), trend("Whole models", wholeModels, formatNumber)),
      tile("Failed", failed.length ? "failures" : "graph", failedSum(failed)),
      tile(
        "Size",
        "sizes",
        el("div.large", {}, bytes(total)),
        el("p", {}, outputsSum()),
        trend("Size", (one) => one.totals?.size, formatBytes),
      ),
      report.sharing.length ? tile("Sharing", "sharing", sharingSum()) : null,
      build
        ? tile(
            "Time",
            "timeline",
            el("div.large", {}, seconds(build.seconds)),
            slowest ? el("p", {}, "longest: ", seconds(slowest.seconds), ", ", stepLink(slowest.name)) : null,
            trend("Time", (one) => one.seconds, formatSeconds),
          )
        : null,
      tile("Changes", "differences", differencesSum()),
      report.accuracy.length ? tile("Accuracy", "accuracy", accuracySum(), accuracyTrends()) : null,
      report.measurements.length ? tile("Measurements", "measurements", measurementsSum()) : null,
    ),
    table(
      "Targets",
      [
        { head: "Target", cell: (row) => targetLink(row.name), value: (row) => row.name },
        { head: "SoC", cell: (row) => row.soc ?? dash(), value: (row) => row.soc },
        { head: "EPs", cell: (row) => row.eps.map((one) => one.ep.replace("ExecutionProvider", "")).join(", ") },
        ...WORST_COVERAGE.filter((outcome) => outcome === "whole" || report.coverage.some((row) => row.outcome === outcome)).map(
          (outcome) => ({
            head: outcome[0].toUpperCase() + outcome.slice(1),
            numeric: true,
            cell: (/** @type {Target} */ row) => count(coveredAs(row.name, outcome)),
            value: (/** @type {Target} */ row) => coveredAs(row.name, outcome),
          }),
        ),
      ],
      worstFirst(report.targets, (target) => coverageByTarget.get(target.name) ?? []),
      { empty: "The recipe has no targets." },
    ),
    failed.length ? el("h3", { id: "failures" }, "Failures") : "",
    failed.length ? el("div.failures", {}, failuresByReason().slice(0, 30).map(failure)) : "",
    report.warnings.length ? el("h3", {}, "Warnings") : "",
    report.warnings.length
      ? limitedList(report.warnings, (one) => [
          message(one.message),
          " ",
          errorCode(one.code),
          one.where ? ` ${one.where}` : "",
          one.hint ? el("div.hint", {}, message(one.hint)) : null,
        ])
      : "",
  );
}

/** @param {import("./report-types.d.ts").PastBuild} build */
function wholeModels({ totals }) {
  return totals && (totals.coverage.whole ?? 0);
}

/** Return a line for the worst value of each accuracy metric, and for the first task metrics. */
function accuracyTrends() {
  const names = new Set(report.history.flatMap(({ totals }) => Object.keys(totals?.accuracy ?? {})));
  return [
    ...[...names].map((name) => trend(`Lowest ${name}`, ({ totals }) => totals?.accuracy?.[name], FIGURE.format)),
    ...report.accuracy.flatMap(metricTrends).slice(0, 4),
  ];
}

/** @param {Step[]} failed */
function failedSum(failed) {
  const wrong = failed.filter((step) => !isAllowed(step)).length;
  const reasons = report.failures.filter((failure) => !failure.allowed);
  return [
    el("div.large", {}, count(wrong), wrong === 1 ? " step" : " steps"),
    el("p", {}, wrong ? `for ${counted(reasons.length, "reason")}` : `of ${counted(report.steps.length, "step")}`),
    failed.length > wrong ? el("p", {}, "and ", counted(failed.length - wrong, "allowed failure")) : null,
  ];
}

/**
 * @param {string} target
 * @param {import("./report-types.d.ts").Coverage["outcome"]} outcome
 */
function coveredAs(target, outcome) {
  return (coverageByTarget.get(target) ?? []).filter((row) => row.outcome === outcome).length;
}

/** @param {import("./report-types.d.ts").Failure} one */
function failure(one) {
  return el(
    "article.error",
    {},
    el("p", {}, one.allowed ? [badge("allowed", "allowed"), " "] : null, errorCode(one.code)),
    reasonText(one.reason),
    one.hint ? el("p.hint", {}, message(one.hint)) : null,
    limitedList(one.steps, (step) => stepLink(step), 5),
    logEnd(one.steps.map((step) => stepById.get(step)).find((step) => step?.log)),
  );
}
