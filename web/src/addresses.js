// Addresses of details: fragments of the page's address, such as `#step=compile:vad/phone/vad`. Each opens the panel.

/** @typedef {{ step?: string, model?: string, target?: string }} Address a step, a model, a target, or a model for a target */

const KEYS = /** @type {const} */ (["step", "model", "target"]);

/** @param {Address} address */
export function formatAddress(address) {
  const parts = KEYS.flatMap((key) => (address[key] === undefined ? [] : [`${key}=${encodeName(address[key])}`]));
  return `#${parts.join("&")}`;
}

/** @param {string} name */
function encodeName(name) {
  return encodeURIComponent(name).replaceAll("%3A", ":").replaceAll("%2F", "/");
}

/**
 * Return the address in a fragment, or null if the fragment names a section.
 * @param {string} fragment
 * @returns {Address | null}
 */
export function parseAddress(fragment) {
  const values = new URLSearchParams(fragment.replace(/^#/, "").replaceAll("+", "%2B"));
  const found = KEYS.flatMap((key) => (values.has(key) ? [[key, values.get(key)]] : []));
  return found.length ? Object.fromEntries(found) : null;
}

/**
 * Open the details at an address.
 * @param {Address} address
 */
export function openAddress(address) {
  location.hash = formatAddress(address);
}
