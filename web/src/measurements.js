// Measurements section: load time, latency and memory of each measured model, with the limits of the recipe.

import { counted, FIGURE, formatBytes } from "./amounts.js";
import { stepLink, targetLink } from "./details.js";
import { add, bytes, dash, el, figure } from "./elements.js";
import { figureTrends, isOfModel, placeOf } from "./history.js";
import { badge } from "./panel.js";
import { report } from "./report.js";
import { table } from "./tables.js";

/** @typedef {import("./report-types.d.ts").Measurement} Measurement */
/** @type {Record<string, string>} headings of columns, by the names of figures */
const FIGURES = {
  load_ms: "Load, ms",
  "latency_ms.first": "First run, ms",
  "latency_ms.p50": "p50, ms",
  "latency_ms.p95": "p95, ms",
  peak_memory: "Peak memory",
};
/** @type {Record<string, string>} figures in the overview */
const LARGEST = {
  "latency_ms.p50": "Slowest p50 in ms",
  load_ms: "Slowest load in ms",
  peak_memory: "Largest peak memory",
};

/**
 * @param {Measurement} row
 * @param {string} name
 */
function isAbove(row, name) {
  return row.figures[name] > row.limits[name];
}

/** @param {Measurement} row */
function countAbove(row) {
  return Object.keys(row.limits).filter((name) => isAbove(row, name)).length;
}

/** Return the number of measured models, and lines of the largest figures. */
export function measurementsSum() {
  const above = report.measurements.filter(countAbove).length;
  return [
    el("p.sum", {}, counted(report.measurements.length, "model"), above ? `, ${above} above a limit` : null),
    Object.entries(LARGEST).map(([name, what]) => figureTrends(what, name, isMeasured, formatOf(name))),
  ];
}

/** @param {import("./history.js").PastFigures} row */
function isMeasured(row) {
  return row.kind === "measurement";
}

/** @param {string} name */
function formatOf(name) {
  return name === "peak_memory" ? formatBytes : FIGURE.format;
}

/** @param {Element} section */
export function drawMeasurements(section) {
  if (!report.measurements.length) {
    add(section, el("p.empty", {}, "The recipe has no `measure`, or no build has measured models yet."));
    return;
  }
  const rows = [...report.measurements].sort((a, b) => countAbove(b) - countAbove(a));
  const above = rows.filter(countAbove).length;
  add(
    section,
    above ? el("p.sum", {}, `${counted(above, "model")} above a limit`) : null,
    table(
      "Figures of each model (models above a limit are listed first). Figures of different devices cannot be compared.",
      [
        {
          head: "Model",
          cell: (row) => stepLink(row.step, `${row.group} / ${row.member}`),
          value: (row) => `${row.group} ${row.member}`,
        },
        { head: "Target", cell: (row) => targetLink(row.target), value: (row) => row.target },
        { head: "Measured on", cell: placeOf, value: placeOf },
        ...Object.entries(FIGURES).map(([name, head]) => ({
          head,
          numeric: true,
          cell: (/** @type {Measurement} */ row) => figureAndLimit(row, name),
          value: (/** @type {Measurement} */ row) => row.figures[name],
        })),
      ],
      rows,
      { most: 25 },
    ),
  );
}

/**
 * @param {Measurement} row
 * @param {string} name
 */
function figureAndLimit(row, name) {
  const format = name === "peak_memory" ? bytes : figure;
  const limit = row.limits[name];
  return [
    row.figures[name] === undefined ? dash() : format(row.figures[name]),
    limit === undefined ? null : el("span.limit", {}, ", limit ", format(limit)),
    isAbove(row, name) ? [" ", badge("above", "failed")] : null,
    figureTrends(
      FIGURES[name],
      name,
      (past) => isMeasured(past) && isOfModel(past, row) && placeOf(past) === placeOf(row),
      formatOf(name),
      false,
    ),
  ];
}
