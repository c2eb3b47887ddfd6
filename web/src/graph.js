// Steps section: a graph that users can zoom. A node is a step, or a cluster of steps that users can open.

import { select } from "d3-selection";
import { curveMonotoneX, line } from "d3-shape";
import { zoom as d3Zoom, zoomIdentity, zoomTransform } from "d3-zoom";
import { openAddress } from "./addresses.js";
import { countBy, counted, formatNumber } from "./amounts.js";
import { clusterSteps, clusterSum, fittingLevel, LEVELS, MAX_NODES, nodeLabel, stepsAround } from "./clusters.js";
import { add, el, linkButton, svg } from "./elements.js";
import { layoutGraph } from "./layout.js";
import { SHOW_IN_GRAPH } from "./panel.js";
import { OUTCOME_LETTERS, outcomeOf, report, runReasons } from "./report.js";

/** @type {ReturnType<typeof import("./report.js").outcomeOf>[]} */
export const RANK = ["failed", "interrupted", "allowed", "skipped", "built", "emitted", "restored", "not run", "current"];

const NARROW = 600; // pixels; below, text keeps a readable size, and the graph does not fit

/** @typedef {import("./clusters.js").Cluster} Cluster */
/** @typedef {Cluster & { level: import("./clusters.js").Level | null, center?: string }} View a cluster, and the step to draw in the center */
/** @typedef {import("./layout.js").Layout} Layout */
/** @typedef {import("d3-selection").Selection<SVGSVGElement, unknown, null, undefined>} Picture */
/** @typedef {import("d3-zoom").ZoomBehavior<SVGSVGElement, unknown>} Zoom */
/** @type {Record<string, [number, number]>} */
const ARROWS = { ArrowRight: [1, 0], ArrowLeft: [-1, 0], ArrowDown: [0, 1], ArrowUp: [0, -1] };

/** @param {Element} section */
export function drawGraph(section) {
  const place = el("div.graph");
  const trail = el("nav.trail", { "aria-label": "Part of the graph" });
  const levels = el("select", {
    "aria-label": "Group nodes by",
    change: () => {
      views[views.length - 1].level = LEVELS[levels.value];
      fill();
    },
  });
  /** @type {View[]} */
  const views = [{ name: "All steps", steps: report.steps, level: fittingLevel(report.steps) }];
  const zooms = el("span.buttons");
  add(
    section,
    el(
      "p.legend",
      {},
      RANK.filter((kind) => report.steps.some((step) => outcomeOf(step) === kind)).map((kind) =>
        el(
          "span",
          {},
          el("span", { class: `cell ${kind.replace(" ", "-")}`, "aria-hidden": "true" }, OUTCOME_LETTERS[kind] ?? "–"),
          ` ${kind}`,
        ),
      ),
    ),
    el("div.toolbar", {}, trail, el("label", {}, "Group by ", levels), zooms),
    place,
    el(
      "p.note.keys",
      {},
      "Press Ctrl and scroll to zoom, or drag to pan. Press Tab to enter the graph, an arrow key to move, and Enter to open a step.",
    ),
  );

  /** @param {Cluster & { center?: string }} view */
  function open(view) {
    views.push({ ...view, level: fittingLevel(view.steps) });
    fill();
  }

  function fill() {
    const view = views[views.length - 1];
    trail.replaceChildren(
      ...views.flatMap((one, at) =>
        at === views.length - 1
          ? el("span", { "aria-current": "true" }, one.name)
          : [
              linkButton(one.name, () => {
                views.length = at + 1;
                fill();
              }),
              " › ",
            ],
      ),
    );
    levels.replaceChildren(
      ...LEVELS.map((level, at) => {
        const nodes = new Set(view.steps.map(level.key)).size;
        return el(
          "option",
          { value: at, disabled: nodes > 4 * MAX_NODES, selected: view.level === level },
          `${level.name} (${formatNumber(nodes)})`,
        );
      }),
      ...(view.level ? [] : [el("option", { value: "", selected: true, disabled: true }, "range of names")]),
    );
    const { clusters, edges } = clusterSteps(view.steps, view.level);
    const drawing = graphDrawing(
      layoutGraph(clusters, edges, place.clientWidth || 900),
      (cluster) => {
        if (cluster.steps.length === 1) openAddress({ step: cluster.steps[0].id });
        else open(cluster);
      },
      view.center,
    );
    place.replaceChildren(drawing.picture);
    zooms.replaceChildren(...drawing.buttons);
    drawing.fit();
  }

  document.addEventListener(SHOW_IN_GRAPH, (event) => {
    const id = /** @type {CustomEvent<string>} */ (event).detail;
    views.length = 1;
    open({ name: `Around ${id}`, steps: stepsAround(id), center: id });
    section.scrollIntoView();
    /** @type {SVGElement | null} */ (place.querySelector(".chosen"))?.focus({ preventScroll: true });
  });
  fill();
}

/**
 * @param {Layout} layout
 * @param {(cluster: Cluster) => void} open
 * @param {string} [center] id of the step to draw in the center
 */
function graphDrawing(layout, open, center) {
  const curve = line(
    (/** @type {import("./layout.js").Point} */ point) => point.x,
    (point) => point.y,
  ).curve(curveMonotoneX);
  const nodes = layout.nodes.map((node) => graphNode(node, open, center));
  const inside = svg(
    "g",
    {},
    layout.edges.map(({ points }) => svg("path.edge", { d: curve(points), "marker-end": "url(#arrow)" })),
    nodes,
  );
  const arrow = svg(
    "marker",
    { id: "arrow", viewBox: "0 0 8 8", refX: 8, refY: 4, markerWidth: 7, markerHeight: 7, orient: "auto" },
    svg("path.arrow", { d: "M0,0L8,4L0,8z" }),
  );
  const picture = svg(
    "svg",
    { role: "group", "aria-label": "Graph of steps", width: "100%", height: Math.min(620, Math.max(220, layout.height + 20)) },
    svg("defs", {}, arrow),
    inside,
  );
  addArrowKeys(picture, layout, nodes);
  return { picture, ...addZoom(picture, inside, layout, center) };
}

/**
 * @param {import("./layout.js").Node} node
 * @param {(cluster: Cluster) => void} open
 * @param {string} [center]
 */
function graphNode({ cluster, x, y, width, height }, open, center) {
  const kinds = countBy(cluster.steps, outcomeOf);
  const worst = RANK.find((kind) => kinds.has(kind)) ?? RANK[0];
  const single = cluster.steps.length === 1;
  const what = [...kinds].map(([kind, steps]) => `${steps} ${kind}`).join(", ");
  const why = single ? (runReasons(cluster.steps[0])[0] ?? cluster.steps[0].reasons[0]) : null;
  const label = single
    ? `${cluster.steps[0].id}: ${worst}${why ? `, ${why}` : ""}`
    : `${cluster.name}: ${counted(cluster.steps.length, "step")}, ${what}`;
  const activate = (/** @type {KeyboardEvent | MouseEvent} */ event) => {
    if ("key" in event && event.key !== "Enter" && event.key !== " ") return;
    event.preventDefault();
    open(cluster);
  };
  const kind = worst.replace(" ", "-");
  const chosen = single && cluster.steps[0].id === center;
  return svg(
    "g",
    {
      class: `node ${kind}${chosen ? " chosen" : ""}`,
      role: "button",
      transform: `translate(${x - width / 2},${y - height / 2})`,
      click: activate,
      keydown: activate,
    },
    svg("title", {}, label),
    single ? null : svg("rect.box.behind", { x: 4, y: 4, width, height, rx: 5 }),
    svg("rect.box", { width, height, rx: 5 }),
    svg("rect.letter", { width: 24, height, rx: 5 }),
    svg(
      "text.letter",
      { x: 12, y: height / 2, dy: "0.35em", "text-anchor": "middle", "aria-hidden": "true" },
      OUTCOME_LETTERS[worst] ?? "–",
    ),
    svg("text", { x: 32, y: height / 2 - 7, dy: "0.35em", "aria-hidden": "true" }, nodeLabel(cluster.name)),
    svg(
      "text.small",
      { x: 32, y: height / 2 + 9, dy: "0.35em", "aria-hidden": "true" },
      single ? nodeLabel(why ?? worst) : clusterSum(cluster),
    ),
  );
}

/**
 * Add pan and zoom. The wheel needs Ctrl and touch needs two fingers, so that the page still scrolls.
 * @param {SVGSVGElement} picture
 * @param {SVGElement} inside
 * @param {Layout} layout
 * @param {string} [center]
 */
function addZoom(picture, inside, layout, center) {
  const target = select(picture);
  /** @type {Zoom} */
  const zoom = d3Zoom();
  zoom
    .scaleExtent([0.1, 4])
    .filter((event) => (event.type === "wheel" ? event.ctrlKey : event.touches ? event.touches.length > 1 : !event.button))
    .on("zoom", (event) => inside.setAttribute("transform", event.transform));
  target.call(zoom).on("dblclick.zoom", null);
  const fit = () => {
    const { clientWidth: width, clientHeight: height } = picture;
    picture.setAttribute("viewBox", `0 0 ${width} ${height}`); // fits the width of paper
    const least = width < NARROW ? 0.8 : 0.45;
    const scale = Math.max(least, Math.min(1, width / layout.width, height / layout.height));
    const middle = layout.nodes.find(({ cluster }) => cluster.steps.length === 1 && cluster.steps[0].id === center);
    const x =
      middle && layout.width * scale > width ? width / 2 - middle.x * scale : Math.max(0, (width - layout.width * scale) / 2);
    const y =
      middle && layout.height * scale > height
        ? height / 2 - middle.y * scale
        : Math.max(0, (height - layout.height * scale) / 2);
    target.call(zoom.transform, zoomIdentity.translate(x, y).scale(scale));
  };
  picture.addEventListener("focusin", (event) => bringIntoView(picture, target, zoom, /** @type {Element} */ (event.target)));
  /** @type {(text: string, label: string, act: () => void) => HTMLElement} */
  const button = (text, label, act) => el("button", { type: "button", "aria-label": label, title: label, click: act }, text);
  return {
    fit,
    buttons: [
      button("+", "Zoom in", () => target.call(zoom.scaleBy, 1.4)),
      button("−", "Zoom out", () => target.call(zoom.scaleBy, 1 / 1.4)),
      button("Fit", "Fit the whole graph", fit),
    ],
  };
}

/**
 * @param {SVGSVGElement} picture
 * @param {Picture} target
 * @param {Zoom} zoom
 * @param {Element} node
 */
function bringIntoView(picture, target, zoom, node) {
  const [frame, box] = [picture.getBoundingClientRect(), node.getBoundingClientRect()];
  if (box.left >= frame.left && box.right <= frame.right && box.top >= frame.top && box.bottom <= frame.bottom) return;
  const scale = zoomTransform(picture).k;
  target.call(
    zoom.translateBy,
    (frame.left + frame.width / 2 - box.left - box.width / 2) / scale,
    (frame.top + frame.height / 2 - box.top - box.height / 2) / scale,
  );
}

/**
 * Make the graph a single tab stop. An arrow key moves to the nearest node in its direction.
 * @param {SVGElement} picture
 * @param {Layout} layout
 * @param {SVGElement[]} nodes
 */
function addArrowKeys(picture, layout, nodes) {
  for (const [at, node] of nodes.entries()) node.setAttribute("tabindex", at ? "-1" : "0");
  picture.addEventListener("keydown", (event) => {
    const from = layout.nodes[nodes.indexOf(/** @type {SVGElement} */ (event.target))];
    const way = ARROWS[event.key];
    if (!from || !way) return;
    event.preventDefault();
    /** @type {{ at: number, distance: number } | null} */
    let best = null;
    for (const [at, node] of layout.nodes.entries()) {
      const along = (node.x - from.x) * way[0] + (node.y - from.y) * way[1];
      const across = Math.abs((node.x - from.x) * way[1]) + Math.abs((node.y - from.y) * way[0]);
      if (along > 1 && (!best || along + 2 * across < best.distance)) best = { at, distance: along + 2 * across };
    }
    if (!best) return;
    for (const node of nodes) node.setAttribute("tabindex", "-1");
    nodes[best.at].setAttribute("tabindex", "0");
    nodes[best.at].focus();
  });
}
