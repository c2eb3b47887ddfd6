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

/**
 * Return a duration with its two largest units, such as `4.1 s`, `2 min 19 s` or `1 h 5 min`.
 * @param {number} value
 */
export function formatSeconds(value) {
  if (Math.abs(value) < 59.95) return `${formatTenths(value)} s`;
  const whole = Math.round(value);
  if (whole < 3600) return joinUnits(Math.floor(whole / 60), "min", whole % 60, "s");
  const minutes = Math.round(value / 60);
  return joinUnits(Math.floor(minutes / 60), "h", minutes % 60, "min");
}

/**
 * @param {number} large
 * @param {string} largeUnit
 * @param {number} small
 * @param {string} smallUnit
 */
function joinUnits(large, largeUnit, small, smallUnit) {
  return `${formatNumber(large)} ${largeUnit}${small ? ` ${small} ${smallUnit}` : ""}`;
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
