// Which colour has which value? The house's palette, which red-blind and green-blind eyes tell apart, too.

export const COLOURS = 13; // in the palette, as --c0 to --c12 in the stylesheet

/** @param {number} index @returns {string} a colour for a stylesheet; what has none of its own is grey */
export function colour(index) {
  return index >= 0 && index < COLOURS ? `var(--c${index})` : "var(--strong)";
}

/** @param {Element} el @returns {string[]} the colours as they are now, light or dark, for a canvas */
export function colours(el) {
  const style = getComputedStyle(el);
  return Array.from({ length: COLOURS }, (_, i) => style.getPropertyValue(`--c${i}`).trim());
}

/** @param {(string | number | null)[]} values @returns {string[]} the different ones as texts, commonest first */
export function distinct(values) {
  /** @type {Map<string, number>} */
  const counts = new Map();
  for (const value of values) {
    if (value !== null && value !== "") counts.set(String(value), (counts.get(String(value)) ?? 0) + 1);
  }
  const alike = (/** @type {string} */ a, /** @type {string} */ b) => a.localeCompare(b, "en", { numeric: true });
  return [...counts].sort((a, b) => b[1] - a[1] || alike(a[0], b[0])).map(([value]) => value);
}
