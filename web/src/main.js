// Entry point of the page. Sections are drawn one by one, so that users can read the first section early.

import { drawAccuracy } from "./accuracy.js";
import { drawCoverage } from "./coverage.js";
import { drawDifferences } from "./differences.js";
import { byId } from "./elements.js";
import { drawGraph } from "./graph.js";
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

function main() {
  prepareTheme();
  preparePanel();
  prepareSearch();
  drawNext();
  drawNext();
  window.addEventListener("beforeprint", drawAll);
  // Sections above the target must exist before the page can scroll to it.
  if (location.hash) {
    drawAll();
    byId(location.hash.slice(1))?.scrollIntoView();
  } else drawWhenIdle();
  document.addEventListener("click", (event) => {
    if (event.target instanceof Element && event.target.closest('a[href^="#"]')) drawAll();
  });
}

main();
