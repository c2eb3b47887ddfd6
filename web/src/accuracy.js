// Accuracy section: the figures of each output of each verified model, and their limits.

import { countBy, counted, FIGURE } from "./amounts.js";
import { stepLink, targetLink } from "./details.js";
import { add, count, dash, el, figure } from "./elements.js";
import { figureTrends, isOfModel } from "./history.js";
import { badge } from "./panel.js";
import { report } from "./report.js";
import { table } from "./tables.js";

/** @typedef {import("./report-types.d.ts").Accuracy} Accuracy */
/** @type {Accuracy["outcome"][]} */
const PASSED = ["passed", "failed", "unjudgeable"];
const METRIC = "metric "; // the beginning of `output` in rows of task metrics

export function accuracySum() {
  const counts = countBy(report.accuracy, (row) => row.outcome);
  const shown = PASSED.filter((outcome) => counts.get(outcome));
  return el(
    "p.sum",
    {},
    shown.map((outcome, place) => [place ? ", " : "", count(counts.get(outcome)), ` ${outcome}`]),
  );
}

/**
 * Return lines of the task metric in a row. Return none for rows of outputs.
 * @param {Accuracy} row
 */
export function metricTrends(row) {
  const name = row.output?.startsWith(METRIC) ? row.output.slice(METRIC.length) : null;
  if (name === null) return [];
  const what = `${name} of ${row.group} / ${row.member} for ${row.target}`;
  return figureTrends(what, name, (past) => past.kind === "metrics" && isOfModel(past, row), FIGURE.format);
}

/** @param {Element} section */
export function drawAccuracy(section) {
  if (!report.accuracy.length) {
    add(section, el("p.empty", {}, "The recipe has no `verify` section, or no build has compared outputs yet."));
    return;
  }
  const names = [...new Set(report.accuracy.flatMap((row) => [...Object.keys(row.figures), ...Object.keys(row.limits)]))];
  const rows = [...report.accuracy].sort((a, b) => PASSED.indexOf(b.outcome) - PASSED.indexOf(a.outcome));
  add(
    section,
    accuracySum(),
    table(
      "Figures of each output (outputs that did not pass are listed first)",
      [
        {
          head: "Model",
          cell: (row) => stepLink(row.step, `${row.group} / ${row.member}`),
          value: (row) => `${row.group} ${row.member}`,
        },
        { head: "Target", cell: (row) => targetLink(row.target), value: (row) => row.target },
        { head: "Output", cell: (row) => row.output ?? dash(), value: (row) => row.output },
        {
          head: "Outcome",
          cell: (row) => [badge(row.outcome, row.outcome), row.reason ? el("p.reason", {}, row.reason) : null, metricTrends(row)],
          value: (row) => row.outcome,
        },
        ...names.map((name) => ({
          head: name,
          numeric: true,
          cell: (/** @type {Accuracy} */ row) => [
            figure(row.figures[name]),
            row.limits[name] === undefined ? null : el("span.limit", {}, ", limit ", figure(row.limits[name])),
          ],
          value: (/** @type {Accuracy} */ row) => row.figures[name],
        })),
        {
          head: "Compared",
          cell: (row) =>
            [
              row.on,
              row.reference ? `with ${row.reference}` : null,
              row.evidence && `inputs: ${row.evidence}`,
              row.samples === null ? null : counted(row.samples, "sample"),
            ]
              .filter(Boolean)
              .join("; "),
        },
      ],
      rows,
      { most: 25 },
    ),
  );
}
