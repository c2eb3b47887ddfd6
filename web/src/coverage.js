// Coverage section: a matrix of models and targets. Each cell has a letter or a number in addition to its color, and opens details.

import { formatAddress } from "./addresses.js";
import { counted, formatBytes, formatNumber, formatSeconds } from "./amounts.js";
import { coverageSum } from "./details.js";
import { add, detailLink, el, linkButton } from "./elements.js";
import { COVERAGE_LETTERS, COVERAGE_WORDS, coverageByModel, coverageByTarget, report, worstFirst } from "./report.js";

const MAX_MODELS = 100;
/** @type {Record<string, [number, number]>} rows down and columns to the right */
const ARROWS = { ArrowDown: [1, 0], ArrowUp: [-1, 0], ArrowRight: [0, 1], ArrowLeft: [0, -1] };

/** @typedef {import("./report-types.d.ts").Coverage} Coverage */
/** @typedef {Array<Array<HTMLElement | null>>} Grid rows of links or null */

const COMPLETE = new Set(["whole", "on the CPU"]);

/** @param {Element} section */
export function drawCoverage(section) {
  const known = report.targets.map((target) => target.name).filter((name) => coverageByTarget.has(name));
  const targets = worstFirst(known, (name) => coverageByTarget.get(name) ?? []);
  if (!targets.length) {
    add(section, el("p.empty", {}, "The recipe compiles no models."));
    return;
  }
  const place = el("div");
  const only = el("input", { type: "checkbox", change: () => fillMatrix(place, targets, only.checked, MAX_MODELS) });
  add(
    section,
    coverageSum(report.coverage),
    el(
      "p.legend",
      {},
      el("span", {}, cellKey("whole", "W"), " whole"),
      el("span", {}, cellKey("partial", "3"), " fallback nodes"),
      el("span", {}, cellKey("on-the-CPU", "C"), " on the CPU"),
      el("span", {}, cellKey("failed-verify", "V"), " failed verify"),
      el("span", {}, cellKey("failed-measure", "M"), " failed measure"),
      el("span", {}, cellKey("failed", "F"), " failed"),
      el("span", {}, cellKey("not-built", "N"), " not built"),
      el("label", {}, only, " show only models with incomplete coverage"),
    ),
    place,
  );
  fillMatrix(place, targets, false, MAX_MODELS);
}

/**
 * @param {string} kind
 * @param {string} text
 */
function cellKey(kind, text) {
  return el("span", { class: `cell ${kind}`, "aria-hidden": "true" }, text);
}

/**
 * @param {Element} place
 * @param {string[]} targets
 * @param {boolean} onlyPartial
 * @param {number} most
 */
function fillMatrix(place, targets, onlyPartial, most) {
  const models = worstFirst(coverageByModel, ([, rows]) => rows).filter(
    ([, rows]) => !onlyPartial || rows.some((row) => !COMPLETE.has(row.outcome)),
  );
  const shown = models.slice(0, most);
  const names = targets.map((name) => detailLink(name, { target: name }));
  /** @type {Grid} */
  const grid = [[null, ...names]];
  const lines = shown.map(([model, rows]) => {
    const byTarget = new Map(rows.map((row) => [row.target, row]));
    const name = detailLink(model, { model });
    const cells = targets.map((target) => {
      const row = byTarget.get(target);
      return row ? matrixCell(row) : null;
    });
    grid.push([name, ...cells]);
    return el(
      "tr",
      {},
      el("th", { scope: "row" }, name),
      cells.map((cell) => el("td", {}, cell)),
    );
  });
  const whole = el(
    "table.matrix",
    {},
    el("caption", {}, el("span", {}, "Coverage of each model for each target, worst first")),
    el(
      "thead",
      {},
      el(
        "tr",
        {},
        el("td"),
        names.map((name) => el("th", { scope: "col" }, name)),
      ),
    ),
    el("tbody", {}, lines),
  );
  whole.classList.toggle("several", targets.length > 3);
  whole.classList.toggle("many", targets.length > 10);
  addCellKeys(whole, grid);
  place.replaceChildren(
    el("div.scroll", {}, whole),
    models.length ? "" : el("p.empty", {}, "All models are whole for all targets."),
    models.length > most
      ? el(
          "p.more",
          {},
          `${formatNumber(most)} of ${formatNumber(models.length)} `,
          linkButton(`Show ${formatNumber(Math.min(most, models.length - most))} more`, () =>
            fillMatrix(place, targets, onlyPartial, 2 * most),
          ),
        )
      : "",
  );
}

/** @param {Coverage} row */
function matrixCell(row) {
  const outside = row.fallback_nodes ?? 0;
  const text = row.outcome === "partial" ? formatNumber(outside) : COVERAGE_LETTERS[row.outcome];
  const words = row.outcome === "partial" ? `${counted(outside, "fallback node")}` : COVERAGE_WORDS[row.outcome];
  const known = [
    row.size === null ? null : formatBytes(row.size),
    row.seconds === null ? null : formatSeconds(row.seconds),
  ].filter(Boolean);
  const label = [`${row.model} for ${row.target}: ${words}`, ...known].join(", ");
  const href = formatAddress({ model: row.model, target: row.target });
  return el("a", { class: `cell ${row.outcome.replaceAll(" ", "-")}`, href, "aria-label": label, title: label }, text);
}

/**
 * Make the matrix a single tab stop. The arrow keys, Home and End move between cells.
 * @param {HTMLElement} element
 * @param {Grid} grid
 */
function addCellKeys(element, grid) {
  const places = new Map();
  for (const [row, line] of grid.entries()) {
    for (const [column, button] of line.entries()) {
      if (!button) continue;
      button.tabIndex = -1;
      places.set(button, [row, column]);
    }
  }
  const first = grid.flat().find(Boolean);
  if (first) first.tabIndex = 0;
  element.addEventListener("focusin", (event) => {
    if (!places.has(event.target)) return;
    for (const button of places.keys()) button.tabIndex = button === event.target ? 0 : -1;
  });
  element.addEventListener("keydown", (event) => {
    const from = places.get(event.target);
    const next = from && arrowTarget(grid, from, event);
    if (!next) return;
    event.preventDefault();
    next.focus();
  });
}

/**
 * @param {Grid} grid
 * @param {[number, number]} from
 * @param {KeyboardEvent} event
 */
function arrowTarget(grid, [row, column], event) {
  const line = grid[row];
  if (event.key === "Home") return event.ctrlKey ? grid.flat().find(Boolean) : line.find(Boolean);
  if (event.key === "End") return event.ctrlKey ? grid.flat().findLast(Boolean) : line.findLast(Boolean);
  const [down, right] = ARROWS[event.key] ?? [0, 0];
  if (!down && !right) return null;
  for (let r = row + down, c = column + right; grid[r]?.[c] !== undefined; r += down, c += right)
    if (grid[r][c]) return grid[r][c];
  return null;
}
