// Sizes section: a treemap of outputs and their files by target, and savings by sharing.

import { hierarchy, treemap } from "d3-hierarchy";
import { openAddress } from "./addresses.js";
import { counted, formatBytes, formatNumber, formatPercent, sum } from "./amounts.js";
import { stepLink, targetLink } from "./details.js";
import { add, bytes, count, dash, el, limitedList, linkButton } from "./elements.js";
import { closePanel, openPanel } from "./panel.js";
import { groupedBy, outputsSum, report } from "./report.js";
import { stackedBar, table } from "./tables.js";

const MAX_TILES = 400;
/** @type {Record<string, number>} */
const ARROWS = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 };

/** @typedef {{ name: string, size?: number, kind?: string, open?: () => void, children?: Item[] }} Item an output, a file, or several */
/** @typedef {import("d3-hierarchy").HierarchyNode<Item>} ItemNode */
/** @typedef {{ of?: ItemNode, others?: ItemNode[], size?: number, children?: Part[] }} Part an item, or several small items combined */
/** @typedef {import("d3-hierarchy").HierarchyRectangularNode<Part>} Tile */

/** @param {Element} section */
export function drawSizes(section) {
  if (!report.outputs.length) add(section, el("p.empty", {}, "No output has been emitted yet."));
  else drawTreemap(section);
  add(
    section,
    el("h3", { id: "sharing" }, "Savings by sharing"),
    el("div.sums", {}, sharingSum()),
    sharingTable(),
    outputTable(),
  );
}

/** @param {Element} section */
function drawTreemap(section) {
  const place = el("div.treemap");
  const trail = el("nav.trail", { "aria-label": "Part of the outputs" });
  const root = sizesTree();
  add(
    section,
    el("p.sum", {}, bytes(sum(report.outputs, (output) => output.size)), ` ${outputsSum()}.`),
    el(
      "p.legend",
      {},
      [
        ["context", "context binary"],
        ["model", "model"],
        ["other", "other"],
        ["saved", "saved by sharing (measured; not on disk)"],
      ].map(([kind, words]) => el("span", {}, el("span", { class: `swatch ${kind}`, "aria-hidden": "true" }), ` ${words}`)),
    ),
    el("div.toolbar", {}, trail),
    place,
  );
  let shown = root;
  const fill = () => {
    const path = shown.ancestors().reverse();
    trail.replaceChildren(
      ...path.flatMap((node, at) =>
        at === path.length - 1
          ? [el("span", { "aria-current": "true" }, node.data.name)]
          : [
              linkButton(node.data.name, () => {
                shown = node;
                fill();
              }),
              " › ",
            ],
      ),
    );
    place.replaceChildren(
      treemapPicture(shown, place.clientWidth || 900, (node) => {
        if (node.children) {
          shown = node;
          fill();
        } else node.data.open?.();
      }),
    );
  };
  fill();
  let width = place.clientWidth;
  new ResizeObserver(() => {
    if (place.clientWidth === width || !place.clientWidth) return;
    width = place.clientWidth;
    fill();
  }).observe(place);
}

/** Return the length of the path of the outputs' common folder. */
function commonFolder() {
  const [first, ...others] = report.outputs.map((output) => output.path.split("/"));
  let length = 0;
  while (others.length && length < first.length - 1 && others.every((parts) => parts[length] === first[length])) length += 1;
  return first.slice(0, length).join("/").length + (length ? 1 : 0);
}

/** Return a tree of targets, outputs and files, and the bytes that sharing saves for each target. */
function sizesTree() {
  const folder = commonFolder();
  const byTarget = groupedBy(
    report.outputs.filter((output) => output.size),
    (output) => output.targets.join(", ") || "no target",
  );
  const children = [...byTarget].map(([name, outputs]) => ({
    name,
    children: [
      ...outputs.map((output) => outputNode(output, output.path.slice(folder))),
      ...report.sharing
        .filter((row) => row.measured && row.target === name && row.saved > 0)
        .map((row) => ({
          name: `saved: ${row.group}`,
          size: row.saved,
          kind: "saved",
          open: () => openAddress({ step: row.step }),
        })),
    ],
  }));
  /** @type {Item} */
  const root = { name: "All targets", children };
  return hierarchy(root)
    .sum((node) => node.size ?? 0)
    .sort((a, b) => (b.value ?? 0) - (a.value ?? 0));
}

/**
 * @param {import("./report-types.d.ts").Output} output
 * @param {string} name
 * @returns {Item}
 */
function outputNode(output, name) {
  const open = () => openAddress({ step: output.step });
  const files = output.files
    .filter((file) => file.size)
    .map((file) => ({ name: file.path, size: file.size, kind: fileKind(file.path), open }));
  return files.length ? { name, children: files } : { name, size: output.size, kind: "other", open };
}

/** @param {string} path */
function fileKind(path) {
  return path.endsWith(".onnx") ? "model" : /\.(bin|ctx|blob|engine|xml)$/.test(path) ? "context" : "other";
}

/**
 * Draw two levels below a node as rectangles. The smallest children are combined into one rectangle.
 * @param {ItemNode} node
 * @param {number} width
 * @param {(node: ItemNode) => void} open
 */
function treemapPicture(node, width, open) {
  const height = Math.round(Math.min(460, Math.max(260, width * 0.45)));
  const groups = largest(node, MAX_TILES / 4);
  const each = Math.max(4, Math.floor(MAX_TILES / groups.length));
  /** @type {Part} */
  const parts = {
    children: groups.map((group) => (group.of?.children ? { of: group.of, children: largest(group.of, each) } : group)),
  };
  /** @type {import("d3-hierarchy").TreemapLayout<Part>} */
  const layout = treemap();
  const shown = layout
    .size([width, height])
    .paddingOuter(2)
    .paddingTop((one) => (one.depth === 1 && one.children ? 20 : 2))
    .paddingInner(1)
    .round(true)(hierarchy(parts).sum((part) => part.size ?? 0));
  const [seen, small] = [true, false].map((drawn) =>
    shown
      .descendants()
      .slice(1)
      .filter((tile) => (tile.x1 > tile.x0 && tile.y1 > tile.y0) === drawn),
  );
  const tiles = seen.map((tile) => treemapTile(tile, width, open));
  addTileKeys(tiles);
  const picture = el("div.tiles-picture", { role: "group", "aria-label": `Sizes of ${node.data.name}` }, tiles);
  picture.style.height = `${height}px`;
  return el(
    "div",
    {},
    picture,
    small.length ? el("p.note", {}, `${formatNumber(small.length)} more are too small to draw`) : null,
  );
}

/**
 * Return the largest children of a node, and the others as one part.
 * @param {ItemNode} node
 * @param {number} most
 * @returns {Part[]}
 */
function largest(node, most) {
  const children = node.children ?? [node];
  const others = children.slice(most);
  const parts = children.slice(0, most).map((child) => ({ of: child, size: child.value }));
  return others.length ? [...parts, { others, size: sum(others, (child) => child.value) }] : parts;
}

/**
 * @param {Tile} tile
 * @param {number} whole
 * @param {(node: ItemNode) => void} open
 */
function treemapTile(tile, whole, open) {
  const { of, others = [] } = tile.data;
  const name = of ? of.data.name : `${formatNumber(others.length)} others`;
  const size = formatBytes(of ? stored(of) : sum(others, stored));
  const [width, height] = [tile.x1 - tile.x0, tile.y1 - tile.y0];
  const act = of
    ? () => open(of)
    : () =>
        openPanel(name, () =>
          limitedList(
            others,
            (child) =>
              linkButton(`${child.data.name}: ${formatBytes(stored(child))}`, () => {
                closePanel();
                open(child);
              }),
            200,
          ),
        );
  const kind = tile.children ? "group" : `leaf ${of ? mainKind(of) : "other"}`;
  const button = el(
    "button",
    { type: "button", class: `tile-of ${kind}`, "aria-label": `${name} ${size}`, title: `${name}: ${size}`, click: act },
    width > 40 && height > 16 ? el("span", {}, name) : null,
    " ", // between the words of the visible label
    width > 60 && height > (tile.children ? 16 : 32) ? el("span.small", {}, size) : null,
  );
  const part = (/** @type {number} */ pixels) => `${(100 * pixels) / whole}%`; // fits the width of paper
  Object.assign(button.style, { left: part(tile.x0), top: `${tile.y0}px`, width: part(width), height: `${height}px` });
  return button;
}

/**
 * Return the stored bytes of a node, or the saved bytes of a tile for sharing.
 * @param {ItemNode} node
 * @returns {number}
 */
function stored(node) {
  return node.data.kind === "saved"
    ? (node.value ?? 0)
    : sum(
        node.leaves().filter((leaf) => leaf.data.kind !== "saved"),
        (leaf) => leaf.value,
      );
}

/**
 * Return the kind of the largest file below a node.
 * @param {ItemNode} node
 */
function mainKind(node) {
  return node.leaves().reduce((most, leaf) => ((leaf.value ?? 0) > (most.value ?? 0) ? leaf : most)).data.kind;
}

/**
 * Make the tiles a single tab stop. The arrow keys move between tiles, in order.
 * @param {HTMLElement[]} tiles
 */
function addTileKeys(tiles) {
  tiles.forEach((tile, at) => {
    tile.tabIndex = at ? -1 : 0;
    tile.addEventListener("keydown", (event) => {
      const next = tiles[at + (ARROWS[event.key] ?? NaN)];
      if (!next) return;
      event.preventDefault();
      tile.tabIndex = -1;
      next.tabIndex = 0;
      next.focus();
    });
  });
}

/** Describe measured savings, and the size of groups whose savings were not measured. They are never added together. */
export function sharingSum() {
  return [true, false].map((measured) => {
    const rows = report.sharing.filter((row) => row.measured === measured);
    if (!rows.length) return null;
    const [saved, alone] = [sum(rows, (row) => row.saved), sum(rows, (row) => row.alone)];
    const [part, groups] = [formatPercent(saved, alone), counted(rows.length, "group")];
    return measured
      ? [el("div.large", {}, bytes(saved)), el("p", {}, " of ", bytes(alone), ` (${part}) saved in ${groups}`)]
      : [
          el("div.large", {}, bytes(sum(rows, (row) => row.made))),
          el("p", {}, `in ${groups}, whose models have ${part} of their source weights in common`),
        ];
  });
}

function sharingTable() {
  return table(
    "Sizes of each sharing group",
    [
      { head: "Group", cell: (row) => stepLink(row.step, row.group), value: (row) => row.group },
      { head: "Target", cell: (row) => targetLink(row.target), value: (row) => row.target },
      { head: "Size", numeric: true, cell: (row) => bytes(row.made), value: (row) => row.made },
      {
        head: "Each model alone",
        numeric: true,
        cell: (row) => (row.measured ? bytes(row.alone) : dash()),
        value: (row) => (row.measured ? row.alone : null),
      },
      {
        head: "Saved",
        numeric: true,
        cell: (row) => (row.measured ? [bytes(row.saved), ` (${formatPercent(row.saved, row.alone)})`] : "not measured"),
        value: (row) => (row.measured ? row.saved : null),
      },
      {
        head: "Part saved",
        cell: (row) =>
          row.measured
            ? stackedBar(
                [
                  { kind: "shared", amount: row.shared },
                  { kind: "saved", amount: row.saved },
                ],
                row.alone,
                `${formatPercent(row.saved, row.alone)} saved`,
              )
            : "",
      },
      {
        head: "Equal source weights",
        numeric: true,
        cell: (row) => (row.measured ? dash() : formatPercent(row.saved, row.alone)),
        value: (row) => (row.measured ? null : row.saved / row.alone),
      },
    ],
    [...report.sharing].sort((a, b) => Number(b.measured) - Number(a.measured) || b.saved - a.saved),
    { empty: "No group shares weights, or the savings are not known yet." },
  );
}

function outputTable() {
  return table(
    "Outputs by size",
    [
      { head: "Output", cell: (output) => stepLink(output.step, output.path), value: (output) => output.path },
      { head: "Targets", cell: (output) => output.targets.join(", "), value: (output) => output.targets.join(", ") },
      { head: "Files", numeric: true, cell: (output) => count(output.files.length), value: (output) => output.files.length },
      { head: "Size", numeric: true, cell: (output) => bytes(output.size), value: (output) => output.size },
      { head: "In place", cell: (output) => (output.in_place ? "yes" : "no"), value: (output) => String(output.in_place) },
    ],
    [...report.outputs].sort((a, b) => b.size - a.size),
    { most: 10, empty: "The recipe has no outputs." },
  );
}
