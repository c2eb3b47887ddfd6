// History: sizes, coverage, times and accuracy of the last builds, as small lines in the overview.

import { counted } from "./amounts.js";
import { el, svg } from "./elements.js";
import { report } from "./report.js";

const WIDTH = 140;
const HEIGHT = 30;
const MARGIN = 4; // room for the point at the last value

/** @typedef {import("./report-types.d.ts").PastBuild} PastBuild */

/**
 * Return a line of a value over the last builds, with all values as its text alternative. Return null for fewer than two known values.
 * @param {string} what
 * @param {(build: PastBuild) => number | null | undefined} read
 * @param {(value: number) => string} format
 */
export function trend(what, read, format) {
  const values = report.history.map(read).filter((value) => value !== null && value !== undefined);
  if (values.length < 2) return null;
  const texts = values.map(format);
  const last = texts[texts.length - 1];
  const label = `${what} in the last ${counted(values.length, "build")}, oldest first: ${texts.join(", ")}`;
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
    el("p.note", {}, `${what}: ${texts[0] === last ? last : `${texts[0]} to ${last}`} in ${counted(values.length, "build")}`),
  );
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
