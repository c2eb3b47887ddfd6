// Tables that users can sort by column. Long tables are shown in parts.

import { formatNumber } from "./amounts.js";
import { el, linkButton } from "./elements.js";

/**
 * @template Row
 * @typedef {{ head: string, cell: (row: Row) => any, value?: (row: Row) => any, numeric?: boolean }} Column
 */

/**
 * Return a table of `rows`. `cell` returns the content of a cell, and `value` returns its sort key.
 * Columns without `value` cannot be sorted. The first `most` rows are shown, and a button shows more.
 * @template Row
 * @param {string} caption
 * @param {Column<Row>[]} columns
 * @param {Row[]} rows
 * @param {{ most?: number, empty?: string }} options
 */
export function table(caption, columns, rows, { most = 25, empty = "None." } = {}) {
  if (!rows.length) return el("p.empty", {}, empty);
  let sorted = rows;
  let shown = Math.min(most, rows.length);
  const body = el("tbody");
  const more = el("p.more");
  const heads = columns.map((column) =>
    heading(column, (ascending) => {
      const sign = ascending ? 1 : -1;
      const keyOf = column.value ?? (() => null);
      sorted = [...rows].sort((a, b) => sign * compareValues(keyOf(a), keyOf(b)));
      for (const head of heads) head.removeAttribute("aria-sort");
      heads[columns.indexOf(column)].setAttribute("aria-sort", ascending ? "ascending" : "descending");
      fill();
    }),
  );
  function fill() {
    body.replaceChildren(...sorted.slice(0, shown).map((row) => tableRow(columns, row)));
    const rest = rows.length - shown;
    more.replaceChildren(
      ...(rest <= 0
        ? []
        : [
            `${formatNumber(shown)} of ${formatNumber(rows.length)} `,
            linkButton(`Show ${formatNumber(Math.min(rest, 200))} more`, () => {
              shown += 200;
              fill();
            }),
          ]),
    );
    more.hidden = rest <= 0;
  }
  fill();
  const whole = el("table", {}, el("caption", {}, el("span", {}, caption)), el("thead", {}, el("tr", {}, heads)), body);
  return el("div.tabled", {}, el("div.scroll", {}, whole), more);
}

/**
 * @template Row
 * @param {Column<Row>[]} columns
 * @param {Row} row
 */
function tableRow(columns, row) {
  return el(
    "tr",
    {},
    columns.map((column, place) => {
      const attributes = place ? { class: column.numeric ? "numeric" : null, "data-head": column.head } : { scope: "row" };
      return el(place ? "td" : "th", attributes, column.cell(row));
    }),
  );
}

/**
 * @param {Column<any>} column
 * @param {(ascending: boolean) => void} sort
 */
function heading(column, sort) {
  const attributes = { scope: "col", class: column.numeric ? "numeric" : null };
  if (!column.value) return el("th", attributes, column.head);
  const head = el(
    "th",
    attributes,
    el(
      "button.sort",
      {
        type: "button",
        click: () =>
          sort(
            head.getAttribute("aria-sort") === (column.numeric ? "descending" : "ascending")
              ? Boolean(column.numeric)
              : !column.numeric,
          ),
      },
      column.head,
    ),
  );
  return head;
}

/**
 * Compare numbers, or texts in natural order. Unknown values are last in ascending order.
 * @param {any} a
 * @param {any} b
 */
function compareValues(a, b) {
  if (a === b) return 0;
  if (a === null || a === undefined) return 1;
  if (b === null || b === undefined) return -1;
  return typeof a === "number" ? a - b : COLLATOR.compare(a, b);
}

export const COLLATOR = new Intl.Collator("en", { numeric: true });

/**
 * Return a bar of parts [{amount, kind}] of a whole.
 * @param {Array<{ kind: string, amount: number }>} parts
 * @param {number} whole
 * @param {string} label
 */
export function stackedBar(parts, whole, label) {
  const shown = parts.filter((part) => part.amount > 0);
  const bar = el("div.bar", { role: "img", "aria-label": label });
  for (const part of shown) {
    const piece = el("span", { class: `part ${part.kind}` });
    piece.style.flexGrow = part.amount / (whole || 1);
    bar.append(piece);
  }
  return bar;
}

/**
 * @param {string} title
 * @param {string} place
 * @param {any[]} contents
 */
export function tile(title, place, ...contents) {
  return el("section.tile", {}, el("h3", {}, el("a", { href: `#${place}` }, title)), contents);
}
