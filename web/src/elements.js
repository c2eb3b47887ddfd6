// HTML and SVG elements. Data from the report becomes text nodes and attributes, never markup.

import { formatAddress } from "./addresses.js";
import { FIGURE, formatBytes, formatNumber, formatSeconds } from "./amounts.js";

const SVG = "http://www.w3.org/2000/svg";
const ERROR_CODES = "https://epbuild.github.io/epbuild/reference/errors/";

/**
 * Return an element, as in `el("p.note", { title: "..." }, "text", child)`. Attributes that are functions are event listeners.
 * @param {string} name
 * @param {Record<string, any>} attributes
 * @param {any[]} children
 * @returns {any}
 */
export function el(name, attributes = {}, ...children) {
  const [tag, ...classes] = name.split(".");
  const element = document.createElement(tag);
  if (classes.length) element.className = classes.join(" ");
  return fillElement(element, attributes, children);
}

/**
 * Return an SVG element, with the arguments of `el`.
 * @param {string} name
 * @param {Record<string, any>} attributes
 * @param {any[]} children
 * @returns {any}
 */
export function svg(name, attributes = {}, ...children) {
  const [tag, ...classes] = name.split(".");
  const element = document.createElementNS(SVG, tag);
  if (classes.length) element.setAttribute("class", classes.join(" "));
  return fillElement(element, attributes, children);
}

/**
 * @param {Element} element
 * @param {Record<string, any>} attributes
 * @param {any[]} children
 */
function fillElement(element, attributes, children) {
  for (const [key, value] of Object.entries(attributes)) {
    if (typeof value === "function") element.addEventListener(key, value);
    else if (value === true) element.setAttribute(key, "");
    else if (value !== false && value !== null && value !== undefined) element.setAttribute(key, value);
  }
  element.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

/**
 * Append children to an element.
 * @param {Element} element
 * @param {any[]} children
 */
export function add(element, ...children) {
  return fillElement(element, {}, children);
}

/** @param {string} id @returns {any} */
export function byId(id) {
  return document.getElementById(id);
}

/**
 * Return a link that opens details in the panel.
 * @param {string} text
 * @param {import("./addresses.js").Address} address
 * @param {Record<string, any>} attributes
 */
export function detailLink(text, address, attributes = {}) {
  return el("a.opener", { href: formatAddress(address), ...attributes }, breakableText(text));
}

/**
 * Return a button that looks like a link.
 * @param {string} text
 * @param {() => void} open
 * @param {Record<string, any>} attributes
 */
export function linkButton(text, open, attributes = {}) {
  return el("button.opener", { type: "button", click: open, ...attributes }, breakableText(text));
}

/**
 * Return text that may break after separators of paths and ids.
 * @param {string} text
 */
function breakableText(text) {
  return text.split(/(?<=[/:_=])/).flatMap((part, place) => (place ? [el("wbr"), part] : [part]));
}

/**
 * Return a message of epbuild, with text between backquotes as code.
 * @param {string} text
 */
export function message(text) {
  return text.split(/`([^`]+)`/).map((part, place) => (place % 2 ? el("code", {}, part) : part));
}

/**
 * Return a text about an error as paragraphs. The reasons that an EP logged become a list.
 * @param {string} text
 */
export function reasonText(text) {
  const [, head, logged, rest] = text.match(/^(.*(?:The EP|, and) logged: )(.*?)(?:\. (The recipe expects .*))?\.?$/s) ?? [];
  if (!logged) return el("p.reason", {}, message(text));
  return [
    el("p.reason", {}, message(head)),
    el(
      "ul.list.reason",
      {},
      logged.split("; ").map((one) => el("li", {}, message(one))),
    ),
    rest ? el("p.reason", {}, message(rest)) : null,
  ];
}

/**
 * Return an error code as a link to its documentation.
 * @param {string} code
 */
export function errorCode(code) {
  const text = el("code", {}, code);
  return /^EPB\d{3}$/.test(code) ? el("a", { href: `${ERROR_CODES}#${code.toLowerCase()}`, rel: "noreferrer" }, text) : text;
}

/**
 * Return contents that users can fold.
 * @param {any} summary
 * @param {any[]} contents
 */
export function fold(summary, ...contents) {
  return el("details.fold", {}, el("summary", {}, summary), contents);
}

/**
 * Return a definition list. Rows without a value are omitted.
 * @param {Array<[string, any]>} rows
 */
export function definitionList(rows) {
  const shown = rows.filter(([, value]) => value !== null && value !== undefined && value !== "");
  return el(
    "dl.facts",
    {},
    shown.map(([name, value]) => el("div", {}, el("dt", {}, name), el("dd", {}, value))),
  );
}

/**
 * Return a list of the first items, and a button that shows the others.
 * @template T
 * @param {T[]} items
 * @param {(item: T) => any} item
 * @param {number} most
 */
export function limitedList(items, item, most = 12) {
  const list = el(
    "ul.list",
    {},
    items.slice(0, most).map((one) => el("li", {}, item(one))),
  );
  if (items.length <= most) return list;
  const more = el(
    "li.more",
    {},
    linkButton(`and ${formatNumber(items.length - most)} more`, () => {
      more.replaceWith(...items.slice(most).map((one) => el("li", {}, item(one))));
    }),
  );
  list.append(more);
  return list;
}

/**
 * Return a digest or path with a copy button. The text is shortened on screen, and complete in print.
 * @param {string | null | undefined} text
 * @param {string} what
 * @param {number} shown
 */
export function copyable(text, what, shown = 12) {
  if (!text) return dash();
  const short = text.length > shown + 3 ? `${text.slice(0, shown)}…` : text;
  const button = el("button.copy", { type: "button", "aria-label": `Copy ${what}`, title: `Copy ${what}: ${text}` }, "Copy");
  copyOnClick(button, () => text);
  return el("span.copyable", {}, el("code.short", { title: text }, short), el("code.full", {}, text), button);
}

/**
 * Make a button copy a text, and say for a moment whether it did.
 * @param {HTMLElement} button
 * @param {() => string} text
 */
export function copyOnClick(button, text) {
  const label = button.textContent;
  button.addEventListener("click", async () => {
    button.textContent = (await copyText(text())) ? "Copied" : "Copy failed";
    setTimeout(() => {
      button.textContent = label;
    }, 1500);
  });
}

/** @param {string} text */
async function copyText(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    const area = el("textarea", { "aria-hidden": "true" });
    area.value = text;
    (document.querySelector("dialog[open]") ?? document.body).append(area);
    area.select();
    const done = document.execCommand("copy");
    area.remove();
    return done;
  }
}

/** Return a dash for an unknown value. */
export function dash() {
  return el("span.unknown", { "aria-label": "unknown" }, "–");
}

/**
 * Return a function from a value to a <data> element with the report's value as an attribute and a readable text.
 * @param {string} kind
 * @param {(value: number) => string} text
 * @returns {(value: number | null | undefined) => any}
 */
function amountOf(kind, text) {
  return (value) => (value === null || value === undefined ? dash() : el(`data.${kind}`, { value }, text(value)));
}

export const bytes = amountOf("bytes", formatBytes);
export const seconds = amountOf("seconds", formatSeconds);
export const count = amountOf("count", formatNumber);
export const figure = amountOf("figure", (value) => FIGURE.format(value));

/** Return a difference of bytes with its sign. */
export const change = amountOf("change", (value) =>
  value === 0 ? "same size" : `${value < 0 ? "-" : "+"}${formatBytes(Math.abs(value))}`,
);
