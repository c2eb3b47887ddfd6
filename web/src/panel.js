// Side panel for details: a dialog with a history. Esc closes it.

import { byId, el } from "./elements.js";

/** @typedef {{ title: string, contents: () => any }} Details */
/** @type {Details[]} */
const history = [];
/** @type {Details | null} */
let current = null;

/**
 * Open the panel with a title and the elements that `contents` returns.
 * @param {string} title
 * @param {() => any} contents
 */
export function openPanel(title, contents) {
  if (current) history.push(current);
  current = { title, contents };
  fillPanel();
}

function fillPanel() {
  if (!current) return;
  const panel = byId("panel");
  byId("panel-title").textContent = current.title;
  byId("panel-body").replaceChildren(...[current.contents()].flat(Infinity).filter(Boolean));
  byId("panel-back").hidden = history.length === 0;
  if (!panel.open) panel.showModal();
  byId("panel-body").scrollTop = 0;
  byId("panel-title").focus();
}

export function closePanel() {
  byId("panel").close();
}

export function preparePanel() {
  byId("panel-close").addEventListener("click", closePanel);
  byId("panel-back").addEventListener("click", () => {
    current = history.pop() ?? null;
    fillPanel();
  });
  byId("panel").addEventListener("click", (/** @type {MouseEvent} */ event) => {
    if (event.target === byId("panel")) closePanel(); // the backdrop
  });
  byId("panel").addEventListener("close", () => {
    history.length = 0;
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
