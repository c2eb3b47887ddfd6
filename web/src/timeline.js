// Timeline section: work of each slot over time, and memory of the actions.

import { max, min } from "d3-array";
import { axisBottom, axisLeft } from "d3-axis";
import { scaleLinear } from "d3-scale";
import { select } from "d3-selection";
import { area, curveStepAfter } from "d3-shape";
import { zoom as d3Zoom, zoomIdentity, zoomTransform } from "d3-zoom";
import { openAddress } from "./addresses.js";
import { counted, formatBytes, formatSeconds, sum } from "./amounts.js";
import { stepLink } from "./details.js";
import { add, bytes, count, el, limitedList, seconds, svg } from "./elements.js";
import { RANK } from "./graph.js";
import { badge, openPanel } from "./panel.js";
import { build, groupedBy, longestWork, outcomeOf, report, stepTimes } from "./report.js";
import { COLLATOR, table } from "./tables.js";

const LANE = 26;
const MARGIN = { left: 110, right: 12, top: 6, axis: 24 };
const MEMORY_HEIGHT = 90;
const SPAN_LANES = { toolchain: "toolchains", fetch: "model downloads", upload: "result uploads" };
const MIN_WIDTH = 3; // pixels; narrower neighbors are drawn as one bar

/** @typedef {{ lane: string, start: number, end: number, seconds: number, kind: string, name: string, open: (() => void) | null }} Bar */
/** @typedef {{ from: number, to: number, bars: Bar[] }} DrawnBar bars that are drawn as one bar, and the bar's position in pixels */
/** @typedef {import("d3-scale").ScaleLinear<number, number>} Scale */
/** @typedef {{ at: number, memory: number }} MemoryPoint */

/** @param {Element} section */
export function drawTimeline(section) {
  const bars = timelineBars();
  if (!bars.length) {
    add(section, el("p.empty", {}, "No build with any work has been recorded."));
    return;
  }
  add(section, timelineFacts());
  const place = el("div.timeline");
  const zooms = el("span.buttons");
  add(section, el("div.toolbar", {}, zooms), place, memoryNote());
  const draw = () => {
    const drawing = timelineDrawing(bars, Math.max(300, place.clientWidth || 900));
    place.replaceChildren(drawing.picture);
    zooms.replaceChildren(...drawing.buttons);
  };
  draw();
  let width = place.clientWidth;
  new ResizeObserver(() => {
    if (place.clientWidth !== width && place.clientWidth) {
      width = place.clientWidth;
      draw();
    }
  }).observe(place);
  add(section, timesTable());
}

function timelineFacts() {
  const work = sum(longestWork(), (one) => one.seconds);
  return el(
    "p.sum",
    {},
    "The build took ",
    seconds(build?.seconds),
    build ? [" on ", build.machine, " with ", count(build.jobs), build.jobs === 1 ? " job" : " jobs"] : "",
    "; its work took ",
    seconds(work),
    " in total.",
  );
}

function memoryNote() {
  const most = max(memoryCurve(), (point) => point.memory);
  return most
    ? el("p.note", {}, "The curve shows memory: the sum of the peaks of concurrent steps, at most ", bytes(most), ".")
    : null;
}

function timesTable() {
  return table(
    "Steps by duration in the last build",
    [
      { head: "Step", cell: ({ name }) => stepLink(name), value: ({ name }) => name },
      {
        head: "Outcome",
        cell: ({ step }) => (step ? badge(outcomeOf(step), outcomeOf(step)) : ""),
        value: ({ step }) => step?.outcome,
      },
      { head: "Time", numeric: true, cell: (one) => seconds(one.seconds), value: (one) => one.seconds },
      { head: "From", numeric: true, cell: ({ step }) => seconds(step?.started), value: ({ step }) => step?.started },
      { head: "Peak memory", numeric: true, cell: ({ step }) => bytes(step?.memory), value: ({ step }) => step?.memory },
    ],
    longestWork(),
    { most: 10 },
  );
}

/**
 * Return bars of steps and other work.
 * @returns {Bar[]}
 */
function timelineBars() {
  const steps = report.steps.flatMap((step) => {
    const times = stepTimes.get(step.id);
    if (!times || step.work === null) return [];
    const lane =
      step.worker === null && step.machine === null
        ? "steps"
        : `${step.machine ?? build?.machine ?? "here"} ${(step.worker ?? 0) + 1}`;
    const [start, end] = times;
    return [
      { lane, start, end, seconds: step.work, kind: outcomeOf(step), name: step.id, open: () => openAddress({ step: step.id }) },
    ];
  });
  const spans = (build?.spans ?? []).map((span) => ({
    lane: SPAN_LANES[span.kind],
    start: span.started,
    end: span.ended,
    seconds: span.ended - span.started,
    kind: span.failed ? "failed" : "span",
    name: `${span.kind} ${span.name}`,
    open: null,
  }));
  return [...spans, ...steps];
}

/**
 * @param {Bar[]} bars
 * @param {number} width
 */
function timelineDrawing(bars, width) {
  const names = laneNames(bars);
  const byLane = groupedBy(
    [...bars].sort((a, b) => a.start - b.start),
    (bar) => bar.lane,
  );
  const memory = memoryCurve();
  const lanes = MARGIN.top + names.length * LANE;
  const height = lanes + MARGIN.axis + (memory.length ? MEMORY_HEIGHT + 18 : 0);
  const end = Math.max(build?.seconds ?? 0, Number(max(bars, (bar) => bar.end)));
  const base = scaleLinear([0, end], [MARGIN.left, width - MARGIN.right]);
  const axis = svg("g.axis", { transform: `translate(0,${lanes})` });
  const inside = svg("g", { "clip-path": "url(#timeline-clip)" });
  const picture = svg(
    "svg",
    { role: "group", "aria-label": "Timeline of the last build", viewBox: `0 0 ${width} ${height}`, width, height },
    svg(
      "defs",
      {},
      svg(
        "clipPath",
        { id: "timeline-clip" },
        svg("rect", { x: MARGIN.left, y: 0, width: width - MARGIN.left - MARGIN.right, height }),
      ),
    ),
    names.map((name, at) => [
      svg("rect.lane", {
        x: MARGIN.left,
        y: MARGIN.top + at * LANE,
        width: width - MARGIN.left - MARGIN.right,
        height: LANE - 3,
      }),
      svg(
        "text.lane",
        { x: MARGIN.left - 6, y: MARGIN.top + at * LANE + LANE / 2 - 1, dy: "0.35em", "text-anchor": "end" },
        svg("title", {}, name),
        name.length > 15 ? `${name.slice(0, 7)}…${name.slice(-7)}` : name,
      ),
    ]),
    inside,
    axis,
  );
  const memoryScale = memory.length
    ? scaleLinear([0, Number(max(memory, (point) => point.memory))], [height - 4, lanes + MARGIN.axis + 14]).nice(3)
    : null;
  if (memoryScale) picture.append(memoryAxis(memoryScale));

  const draw = (/** @type {Scale} */ scale) => {
    inside.replaceChildren(
      ...names.flatMap((name, at) =>
        laneBars(byLane.get(name) ?? [], scale, MARGIN.top + at * LANE, [MARGIN.left, width - MARGIN.right]),
      ),
    );
    if (memoryScale) inside.append(memoryArea(memory, scale, memoryScale));
    select(axis).call(
      axisBottom(scale)
        .ticks(Math.max(3, width / 110))
        .tickFormat((value) => (Number(value) < 60 ? `${value} s` : formatSeconds(Number(value)))),
    );
  };
  const zoom = d3Zoom()
    .scaleExtent([1, 2000])
    .extent([
      [MARGIN.left, 0],
      [width - MARGIN.right, height],
    ])
    .translateExtent([
      [MARGIN.left, 0],
      [width - MARGIN.right, height],
    ])
    .filter((event) => (event.type === "wheel" ? event.ctrlKey : event.touches ? event.touches.length > 1 : !event.button))
    .on("zoom", (event) => draw(event.transform.rescaleX(base)));
  const target = select(picture).call(zoom).on("dblclick.zoom", null);
  draw(base);
  /** @type {(text: string, label: string, act: () => void) => HTMLElement} */
  const button = (text, label, act) => el("button", { type: "button", "aria-label": label, title: label, click: act }, text);
  return {
    picture,
    buttons: [
      button("+", "Zoom in", () => target.call(zoom.scaleBy, 2)),
      button("−", "Zoom out", () => target.call(zoom.scaleBy, 0.5)),
      button("‹", "Earlier", () => target.call(zoom.translateBy, 200 / zoomTransform(picture).k, 0)),
      button("›", "Later", () => target.call(zoom.translateBy, -200 / zoomTransform(picture).k, 0)),
      button("All", "Show all of the build", () => target.call(zoom.transform, zoomIdentity)),
    ],
  };
}

/**
 * Return the names of lanes. Lanes of work other than steps come first.
 * @param {Bar[]} bars
 */
function laneNames(bars) {
  const beside = new Set(Object.values(SPAN_LANES));
  const names = [...new Set(bars.map((bar) => bar.lane))];
  return names.sort((a, b) => Number(beside.has(b)) - Number(beside.has(a)) || COLLATOR.compare(a, b));
}

/**
 * Return the visible bars of a lane. Neighbors that are too narrow become one bar.
 * @param {Bar[]} bars
 * @param {Scale} scale
 * @param {number} y
 * @param {[number, number]} range visible pixels
 */
function laneBars(bars, scale, y, [left, right]) {
  /** @type {DrawnBar[]} */
  const drawn = [];
  /** @type {DrawnBar | null} */
  let narrow = null;
  for (const bar of bars) {
    const [from, to] = [scale(bar.start), scale(bar.end)];
    if (to < left || from > right) continue;
    if (to - from >= MIN_WIDTH) {
      narrow = null;
      drawn.push({ from, to, bars: [bar] });
    } else if (narrow && from - narrow.from < 2 * MIN_WIDTH) {
      narrow.to = Math.max(narrow.to, to);
      narrow.bars.push(bar);
    } else {
      narrow = { from, to, bars: [bar] };
      drawn.push(narrow);
    }
  }
  return drawn.map((one) => timelineBar(one, y));
}

/**
 * @param {DrawnBar} drawn
 * @param {number} y
 */
function timelineBar({ from, to, bars }, y) {
  const [bar] = bars;
  const kinds = new Set(bars.map(({ kind }) => kind));
  const kind = RANK.find((one) => kinds.has(one)) ?? bar.kind;
  const label =
    bars.length > 1
      ? `${counted(bars.length, "step")}, ${bar.name} first`
      : `${bar.name}: ${kind === "span" ? "" : `${kind}, `}${formatSeconds(bar.seconds)}`;
  const width = Math.max(1, to - from - 0.5);
  const text = width > 60 ? bar.name.slice(0, Math.floor(width / 6.5)) : null;
  const open =
    bars.length > 1
      ? () => openPanel(counted(bars.length, "step"), () => limitedList(bars, (one) => stepLink(one.name), 200))
      : bar.open;
  return svg(
    "g",
    { class: `event ${kind.replace(" ", "-")}`, click: open ?? false },
    svg("title", {}, label),
    svg("rect", { x: from, y, width, height: LANE - 3, rx: Math.min(3, width / 2) }),
    text && width > 14 ? svg("text", { x: from + 4, y: y + LANE / 2 - 1, dy: "0.35em" }, text) : null,
  );
}

/**
 * Return the total peak memory of the running actions, at each time it changes.
 * @returns {MemoryPoint[]}
 */
function memoryCurve() {
  /** @type {Array<[number, number]>} */
  const changes = [];
  for (const steps of groupedBy(
    report.steps.filter((step) => stepTimes.has(step.id)),
    (step) => step.action,
  ).values()) {
    const memory = max(steps, (step) => step.memory);
    if (memory) changes.push([min(steps, (step) => step.started) ?? 0, memory], [max(steps, (step) => step.ended) ?? 0, -memory]);
  }
  changes.sort(([a, more], [b, less]) => a - b || more - less);
  let memory = 0;
  return changes.map(([at, by]) => {
    memory += by;
    return { at, memory };
  });
}

/**
 * @param {MemoryPoint[]} points
 * @param {Scale} scale
 * @param {Scale} memoryScale
 */
function memoryArea(points, scale, memoryScale) {
  /** @type {import("d3-shape").Area<MemoryPoint>} */
  const shape = area();
  shape
    .x((point) => scale(point.at))
    .y0(memoryScale(0))
    .y1((point) => memoryScale(point.memory))
    .curve(curveStepAfter);
  return svg("path.memory", { d: shape(points) });
}

/** @param {Scale} scale */
function memoryAxis(scale) {
  const axis = svg("g.axis", { transform: `translate(${MARGIN.left},0)` });
  select(axis).call(
    axisLeft(scale)
      .ticks(3)
      .tickFormat((value) => formatBytes(Math.round(Number(value)))),
  );
  return axis;
}
