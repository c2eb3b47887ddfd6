// Side panel for details: a dialog with a history and an address. Esc closes it.

import { byId, copyOnClick, el } from "./elements.js";

/** @typedef {{ title: string, contents: () => any, address: string }} Details details with a fragment, or "" if they have no address */
/** @type {Details[]} */
const earlier = [];
/** @type {Details | null} */
let current = null;

/**
 * Open the panel with a title and the elements that `contents` returns.
 * @param {string} title
 * @param {() => any} contents
 * @param {string} address
 */
export function openPanel(title, contents, address = "") {
  if (current) earlier.push(current);
  current = { title, contents, address };
  fillPanel();
}

function fillPanel() {
  if (!current) return;
  const panel = byId("panel");
  setAddress(current.address);
  byId("panel-title").textContent = current.title;
  byId("panel-body").replaceChildren(...[current.contents()].flat(Infinity).filter(Boolean));
  byId("panel-back").hidden = earlier.length === 0;
  byId("panel-copy").hidden = !current.address;
  if (!panel.open) panel.showModal();
  byId("panel-body").scrollTop = 0;
  byId("panel-title").focus();
}

/** @param {string} fragment */
function setAddress(fragment) {
  history.replaceState(null, "", `${location.pathname}${location.search}${fragment}`);
}

export function closePanel() {
  byId("panel").close();
}

export function preparePanel() {
  byId("panel-close").addEventListener("click", closePanel);
  copyOnClick(byId("panel-copy"), () => location.href);
  byId("panel-back").addEventListener("click", () => {
    current = earlier.pop() ?? null;
    fillPanel();
  });
  byId("panel").addEventListener("click", (/** @type {MouseEvent} */ event) => {
    if (event.target === byId("panel")) closePanel(); // the backdrop
  });
  byId("panel").addEventListener("close", () => {
    if (current?.address === location.hash) setAddress("");
    earlier.length = 0;
    current = null;
  });
}

/**
 * Return a badge with an outcome.
 * @param {any} words
 * @param {string} kind
 */
export function badge(words, kind) {
  return el("span", { class: `badge ${kind.replaceAll(" ", "-")}` }, words);
}

/** Event that makes the graph show a step. The event's `detail` is the id of the step. */
export const SHOW_IN_GRAPH = "show-in-graph";
