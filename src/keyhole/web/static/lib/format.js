// How do numbers read? Short, with as many digits as mean something.

const MINUS = "\u2212"; // as wide as a plus, unlike a hyphen

/** @param {number | null | undefined} x @param {number} [digits] a number: 0.123, 13.2, 1e-5 */
export function number(x, digits = 3) {
  if (x === null || x === undefined || !Number.isFinite(x)) return "";
  if (x !== 0 && Math.abs(x) < 5e-4) return x.toExponential(0).replaceAll("-", MINUS);
  const places = Math.max(0, digits - Math.max(0, Math.floor(Math.log10(Math.max(1, Math.abs(x))))));
  return x.toFixed(places).replace("-", MINUS);
}

/** @param {number | null | undefined} x with its sign: +0.12 */
export function signed(x, digits = 3) {
  const text = number(x, digits);
  return text && /** @type {number} */ (x) > 0 ? `+${text}` : text;
}

/** @param {number | null | undefined} x as a share: 38%, 3.8%, 0.38% */
export function share(x) {
  if (x === null || x === undefined || !Number.isFinite(x)) return "";
  const percent = 100 * x;
  const places = Math.abs(percent) >= 9.95 ? 0 : Math.abs(percent) >= 0.995 ? 1 : 2;
  return percent.toFixed(places).replace(/^-(?=0\.?0*$)/, "").replace("-", MINUS) + "%";
}

/** @param {number} n @param {string} what 1 firing, 3 firings, 2,000 tokens */
export function count(n, what) {
  return `${n.toLocaleString("en")} ${what}${n === 1 ? "" : "s"}`;
}

/** @param {number[]} channels @param {number} [most] 3, 0, 12, +4 */
export function channelsLabel(channels, most = 6) {
  const first = channels.slice(0, most).join(", ");
  return channels.length > most ? `${first}, +${channels.length - most}` : first;
}
