// Elements. What comes from the report becomes text nodes and attributes here, never markup.

const SVG = "http://www.w3.org/2000/svg";

/** An element: `el("p.note", {title: "..."}, "text", child)`. Attributes that are functions listen to the event of their name. */
function el(name, attributes = {}, ...children) {
  const [tag, ...classes] = name.split(".");
  const element = document.createElement(tag);
  if (classes.length) element.className = classes.join(" ");
  return filled(element, attributes, children);
}

/** The same for SVG. */
function svg(name, attributes = {}, ...children) {
  const [tag, ...classes] = name.split(".");
  const element = document.createElementNS(SVG, tag);
  if (classes.length) element.setAttribute("class", classes.join(" "));
  return filled(element, attributes, children);
}

function filled(element, attributes, children) {
  for (const [key, value] of Object.entries(attributes)) {
    if (typeof value === "function") element.addEventListener(key, value);
    else if (value === true) element.setAttribute(key, "");
    else if (value !== false && value !== null && value !== undefined) element.setAttribute(key, value);
  }
  element.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

/** Put things at the end of an element. */
function add(element, ...children) {
  return filled(element, {}, children);
}

function byId(id) {
  return document.getElementById(id);
}

/** A button that looks like a link: it opens the details of something. */
function opener(text, open, attributes = {}) {
  return el("button.opener", { type: "button", click: open, ...attributes }, breakable(text));
}

/** A text that may be broken after a separator of paths and ids, rather than in a word. */
function breakable(text) {
  return text.split(/(?<=[/:_=])/).flatMap((part, place) => (place ? [el("wbr"), part] : [part]));
}

/** Rows of a definition list; those without a value are left out. */
function facts(rows) {
  const shown = rows.filter(([, value]) => value !== null && value !== undefined && value !== "");
  return el("dl.facts", {}, shown.map(([name, value]) => el("div", {}, el("dt", {}, name), el("dd", {}, value))));
}

/** A list of at most `most` items, and a button that shows the others. */
function listed(items, item, most = 12) {
  const list = el("ul.list", {}, items.slice(0, most).map((one) => el("li", {}, item(one))));
  if (items.length <= most) return list;
  const more = el("li", {}, opener(`and ${number(items.length - most)} more`, () => {
    more.replaceWith(...items.slice(most).map((one) => el("li", {}, item(one))));
  }));
  list.append(more);
  return list;
}

/** A digest or a path, cut in the middle on the screen and whole on paper, with a button that copies all of it. */
function copyable(text, what, shown = 12) {
  if (!text) return dash();
  const short = text.length > shown + 3 ? `${text.slice(0, shown)}…` : text;
  const button = el("button.copy", { type: "button", "aria-label": `Copy ${what}`, title: `Copy ${what}: ${text}` }, "Copy");
  button.addEventListener("click", async () => {
    button.textContent = (await copied(text)) ? "Copied" : "Select it";
    setTimeout(() => { button.textContent = "Copy"; }, 1500);
  });
  return el("span.copyable", {}, el("code.short", { title: text }, short), el("code.full", {}, text), button);
}

async function copied(text) {
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
