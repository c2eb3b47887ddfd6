// Search for steps, models and targets. "/" focuses the field.

import { openAddress } from "./addresses.js";
import { formatNumber } from "./amounts.js";
import { byId, el } from "./elements.js";
import { coverageByModel, report } from "./report.js";

const MAX_FOUND = 20;

export function prepareSearch() {
  const field = byId("search");
  const list = byId("found");
  let chosen = -1;
  const known = [
    ...[...coverageByModel.keys()].map((name) => ({ kind: "model", name, address: { model: name } })),
    ...report.targets.map(({ name }) => ({ kind: "target", name, address: { target: name } })),
    ...report.steps.map(({ id }) => ({ kind: "step", name: id, address: { step: id } })),
  ];

  function close() {
    list.hidden = true;
    chosen = -1;
    field.setAttribute("aria-expanded", "false");
    field.removeAttribute("aria-activedescendant");
  }

  function find() {
    /** @type {string[]} */
    const words = field.value.toLowerCase().split(/\s+/).filter(Boolean);
    const found = words.length ? known.filter(({ name }) => words.every((word) => name.toLowerCase().includes(word))) : [];
    list.replaceChildren(
      ...found.slice(0, MAX_FOUND).map((one, place) =>
        el(
          "li",
          {
            role: "option",
            id: `found-${place}`,
            "aria-selected": "false",
            mousedown: (/** @type {MouseEvent} */ event) => {
              event.preventDefault();
              close();
              openAddress(one.address);
            },
          },
          el("span.kind", {}, one.kind),
          " ",
          one.name,
        ),
      ),
    );
    if (words.length)
      list.append(
        el(
          "li.note",
          { role: "presentation" },
          found.length > MAX_FOUND ? `and ${formatNumber(found.length - MAX_FOUND)} more` : found.length ? "" : "No matches.",
        ),
      );
    list.hidden = !words.length;
    field.setAttribute("aria-expanded", String(!list.hidden));
    choose(found.length ? 0 : -1);
  }

  /** @param {number} place */
  function choose(place) {
    const options = [...list.querySelectorAll('[role="option"]')];
    chosen = options.length ? Math.max(-1, Math.min(place, options.length - 1)) : -1;
    for (const [at, option] of options.entries()) option.setAttribute("aria-selected", String(at === chosen));
    if (chosen < 0) field.removeAttribute("aria-activedescendant");
    else field.setAttribute("aria-activedescendant", `found-${chosen}`);
    options[chosen]?.scrollIntoView({ block: "nearest" });
  }

  field.addEventListener("input", find);
  field.addEventListener("focus", find);
  field.addEventListener("blur", close);
  field.addEventListener("keydown", (/** @type {KeyboardEvent} */ event) => {
    if (event.key === "ArrowDown") choose(chosen + 1);
    else if (event.key === "ArrowUp") choose(Math.max(0, chosen - 1));
    else if (event.key === "Enter")
      list.children[chosen]?.dispatchEvent(new MouseEvent("mousedown", { bubbles: true, cancelable: true }));
    else if (event.key === "Escape") close();
    else return;
    event.preventDefault();
  });
  document.addEventListener("keydown", (event) => {
    if (event.key !== "/" || /** @type {Element} */ (event.target).closest("input, select, textarea, dialog")) return;
    event.preventDefault();
    field.focus();
  });
}
