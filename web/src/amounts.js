// Amounts as text, in the same format as epbuild's terminal output.

const WHOLE = new Intl.NumberFormat("en-US", { maximumFractionDigits: 0 });
export const FIGURE = new Intl.NumberFormat("en-US", { maximumSignificantDigits: 6 });
const UNITS = ["kB", "MB", "GB", "TB", "PB", "EB"];

/** @param {number} value */
export function formatNumber(value) {
  return WHOLE.format(value);
}

/**
 * Return a number with one decimal, rounded half to even as in Python. `toFixed` differs only for quarters.
 * @param {number} value
 */
function formatTenths(value) {
  const size = Math.abs(value);
  const [whole, part] = (size % 1 === 0.25 ? Math.floor(size) + 0.2 : size).toFixed(1).split(".");
  return `${value < 0 ? "-" : ""}${formatNumber(Number(whole))}.${part}`;
}

/** @param {number} value */
export function formatBytes(value) {
  const size = Math.abs(value);
  if (size < 1000) return size === 1 ? `${value} byte` : `${value} bytes`;
  let unit = 0;
  while (size >= 1000 ** (unit + 2) && unit < UNITS.length - 1) unit += 1;
  return `${formatTenths(value / 1000 ** (unit + 1))} ${UNITS[unit]}`;
}

/** @param {number} value */
export function formatSeconds(value) {
  return `${formatTenths(value)} s`;
}

/**
 * @param {number} part
 * @param {number} whole
 */
export function formatPercent(part, whole) {
  return whole ? `${formatTenths((100 * part) / whole)}%` : "";
}

/**
 * Return a difference in percent of the value before, with its sign.
 * @param {number} part
 * @param {number} whole
 */
export function formatSignedPercent(part, whole) {
  return whole ? `${part < 0 ? "" : "+"}${formatPercent(part, whole)}` : "";
}

/**
 * Return an RFC 3339 time in UTC to the minute, such as 2026-11-23 03:50 UTC.
 * @param {string} text
 */
export function formatMoment(text) {
  return text.replace(/^(\d{4}-\d\d-\d\d)T(\d\d:\d\d)(?::[\d.]+)?(?:Z|\+00:00)$/, "$1 $2 UTC");
}

/**
 * Return a count with its noun, such as `3 steps` or `1 step`.
 * @param {number} count
 * @param {string} noun
 */
export function counted(count, noun) {
  return `${formatNumber(count)} ${noun}${count === 1 ? "" : "s"}`;
}

/**
 * Return the number of items for each key.
 * @template T, K
 * @param {Iterable<T>} items
 * @param {(item: T) => K} key
 * @returns {Map<K, number>}
 */
export function countBy(items, key) {
  const counts = new Map();
  for (const item of items) counts.set(key(item), (counts.get(key(item)) ?? 0) + 1);
  return counts;
}

/**
 * @template T
 * @param {T[]} items
 * @param {(item: T) => number | null | undefined} value
 * @returns {number}
 */
export function sum(items, value) {
  return items.reduce((total, item) => total + (value(item) ?? 0), 0);
}
