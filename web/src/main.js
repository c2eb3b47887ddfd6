// Entry point of the page. Sections are drawn one by one, so that users can read the first section early.

import { drawAccuracy } from "./accuracy.js";
import { parseAddress } from "./addresses.js";
import { drawCoverage } from "./coverage.js";
import { prepareDetails } from "./details.js";
import { drawDifferences } from "./differences.js";
import { byId } from "./elements.js";
import { drawGraph } from "./graph.js";
import { drawMeasurements } from "./measurements.js";
import { drawOverview } from "./overview.js";
import { preparePanel } from "./panel.js";
import { drawLock, drawProvenance } from "./provenance.js";
import { prepareSearch } from "./search.js";
import { drawSizes } from "./sizes.js";
import { prepareTheme } from "./theme.js";
import { drawTimeline } from "./timeline.js";

/** @type {Array<[string, (section: Element) => void]>} */
const SECTIONS = [
  ["overview", drawOverview],
  ["coverage", drawCoverage],
  ["graph", drawGraph],
  ["timeline", drawTimeline],
  ["sizes", drawSizes],
  ["accuracy", drawAccuracy],
  ["measurements", drawMeasurements],
  ["differences", drawDifferences],
  ["provenance", drawProvenance],
  ["lock", drawLock],
];

function drawNext() {
  const next = SECTIONS.shift();
  if (!next) return false;
  const [id, draw] = next;
  draw(byId(id));
  if (!SECTIONS.length) document.documentElement.dataset.drawn = "all";
  return true;
}

function drawAll() {
  while (drawNext());
}

function drawWhenIdle() {
  setTimeout(() => {
    if (drawNext()) drawWhenIdle();
  }, 0);
}

/**
 * Scroll to a section. Sections above it must exist first.
 * @param {string} hash
 */
function goToSection(hash) {
  drawAll();
  byId(hash.slice(1))?.scrollIntoView();
}

/** Draw and unfold everything before the page is printed, and show all digests. Restore the folds afterwards. */
function preparePrint() {
  /** @type {HTMLDetailsElement[]} */
  let opened = [];
  window.addEventListener("beforeprint", () => {
    drawAll();
    /** @type {NodeListOf<HTMLElement>} */
    const more = document.querySelectorAll(":is(#provenance, #lock) .more button");
    for (const button of more) button.click();
    opened = /** @type {HTMLDetailsElement[]} */ ([...document.querySelectorAll("main details:not([open])")]);
    for (const folded of opened) folded.open = true;
  });
  window.addEventListener("afterprint", () => {
    for (const folded of opened) folded.open = false;
  });
}

function main() {
  prepareTheme();
  preparePanel();
  prepareSearch();
  drawNext();
  drawNext();
  prepareDetails();
  preparePrint();
  if (byId(location.hash.slice(1))) goToSection(location.hash);
  else drawWhenIdle();
  document.addEventListener("click", (event) => {
    const hash = event.target instanceof Element && event.target.closest('a[href^="#"]')?.getAttribute("href");
    if (hash && !parseAddress(hash)) goToSection(hash);
  });
}

main();
