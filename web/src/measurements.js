// Measurements section: load time, latency and memory of each measured model, with the limits of the recipe.

import { counted } from "./amounts.js";
import { stepLink, targetLink } from "./details.js";
import { add, bytes, dash, el, figure } from "./elements.js";
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
/** @type {Record<Measurement["on"], string>} */
const PLACES = { device: "device", emulator: "emulator", cpu: "CPU" };

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
        { head: "Measured on", cell: place, value: place },
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

/** @param {Measurement} row */
function place(row) {
  return row.device === null ? PLACES[row.on] : `${PLACES[row.on]}: ${row.device}`;
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
  ];
}
