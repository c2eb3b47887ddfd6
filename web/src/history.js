// History: sizes, coverage, times, accuracy and figures of the last builds, as small lines.

import { counted } from "./amounts.js";
import { el, svg } from "./elements.js";
import { report } from "./report.js";

const WIDTH = 140;
const HEIGHT = 30;
const MARGIN = 4; // room for the point at the last value

/** @typedef {import("./report-types.d.ts").PastBuild} PastBuild */
/** @typedef {import("./report-types.d.ts").PastFigures} PastFigures */
/** @type {Record<NonNullable<PastFigures["on"]>, string>} */
const PLACES = { device: "device", emulator: "emulator", cpu: "CPU" };

/**
 * Return a line of a value over the last builds, with all values as its text alternative. Return null for fewer than two known values.
 * @param {string} what
 * @param {(build: PastBuild, place: number) => number | null | undefined} read
 * @param {(value: number) => string} format
 * @param {boolean} isNamed false to omit `what` from the visible text
 */
export function trend(what, read, format, isNamed = true) {
  const values = report.history.map(read).filter((value) => value !== null && value !== undefined);
  if (values.length < 2) return null;
  const texts = values.map(format);
  const last = texts[texts.length - 1];
  const label = `${what} in the last ${counted(values.length, "build")}, oldest first: ${texts.join(", ")}`;
  const range = texts[0] === last ? last : `${texts[0]} to ${last}`;
  const points = linePoints(values);
  const [x, y] = points[points.length - 1];
  return el(
    "div.trend",
    {},
    svg(
      "svg",
      { role: "img", "aria-label": label, viewBox: `0 0 ${WIDTH} ${HEIGHT}`, width: WIDTH, height: HEIGHT },
      svg("title", {}, label),
      svg("polyline", { points: points.join(" ") }),
      svg("circle", { cx: x, cy: y, r: 3 }),
    ),
    el("p.note", {}, isNamed ? `${what}: ` : null, range, ` in ${counted(values.length, "build")}${lastChange(values, format)}`),
  );
}

/**
 * @param {number[]} values
 * @param {(value: number) => string} format
 */
function lastChange(values, format) {
  const change = values[values.length - 1] - values[values.length - 2];
  return change ? `, ${change < 0 ? "-" : "+"}${format(Math.abs(change))} in the last` : "";
}

/**
 * Return lines of the largest value of a figure in each build: one line for each place, because places are not comparable.
 * @param {string} what
 * @param {string} name
 * @param {(row: PastFigures) => boolean} isMeant
 * @param {(value: number) => string} format
 * @param {boolean} isNamed false to omit `what` and the place from the visible text
 */
export function figureTrends(what, name, isMeant, format, isNamed = true) {
  const builds = report.history.map(({ totals }) =>
    (totals?.figures ?? []).filter((row) => row.figures[name] !== undefined && isMeant(row)),
  );
  const lines = [...new Set(builds.flat().map(placeOf))].map((place) =>
    trend(
      `${what}, ${place}`,
      (_, at) => {
        const values = builds[at].filter((row) => placeOf(row) === place).map((row) => row.figures[name]);
        return values.length ? Math.max(...values) : null;
      },
      format,
      isNamed,
    ),
  );
  return lines.filter((line) => line !== null);
}

/**
 * Return where a model ran.
 * @param {Pick<PastFigures, "on" | "device">} row
 */
export function placeOf({ on, device }) {
  const kind = on === null ? "any device" : PLACES[on];
  return device === null ? kind : `${kind}: ${device}`;
}

/**
 * Return whether figures are of the same model as a row of a table.
 * @param {PastFigures} figures
 * @param {{ group: string, target: string, member: string }} row
 */
export function isOfModel(figures, row) {
  return figures.group === row.group && figures.target === row.target && figures.member === row.member;
}

/**
 * Return the positions of values in a line, from left to right. The smallest value is at the bottom. Equal values are in the middle.
 * @param {number[]} values
 * @returns {Array<[number, number]>}
 */
export function linePoints(values) {
  const [least, most] = [Math.min(...values), Math.max(...values)];
  return values.map((value, place) => [
    MARGIN + (place * (WIDTH - 2 * MARGIN)) / (values.length - 1),
    most > least ? HEIGHT - MARGIN - ((value - least) * (HEIGHT - 2 * MARGIN)) / (most - least) : HEIGHT / 2,
  ]);
}
