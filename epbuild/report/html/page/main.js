// The sections, drawn one after the other so that the first can be read while the others are made.

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
  setTimeout(() => { if (drawNext()) drawWhenIdle(); }, 0);
}

function main() {
  prepareTheme();
  preparePanel();
  prepareSearch();
  drawNext();
  drawNext();
  window.addEventListener("beforeprint", drawAll);
  // What is above a place must be there before the page can go to it.
  if (location.hash) {
    drawAll();
    byId(location.hash.slice(1))?.scrollIntoView();
  } else drawWhenIdle();
  document.addEventListener("click", (event) => {
    if (event.target.closest?.('a[href^="#"]')) drawAll();
  });
}

main();
