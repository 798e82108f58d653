// Which way does an edge take? Upwards, around what stands between its ends, and apart from others that enter there.

/** @typedef {import("./layout.js").Box} Box */

const HIGH = 42; // a way that climbs higher passes something in its column

/**
 * The way of an edge: from the top of its writer to the bottom of what it causes; within a row it goes below.
 * @param {Box} from
 * @param {Box} to
 * @param {string} side
 * @param {number} [bend] aside from the straight way, for channels that part
 * @returns {{ d: string, x: number, y: number }} its path, and the middle of it
 */
export function curve(from, to, side, bend = 0) {
  // sides part already where they enter
  const enter = to.x + (side === "dest" ? -0.26 : side === "src" ? 0.26 : 0) * to.w;
  const level = from.y - from.h / 2 - (to.y + to.h / 2) < 3;
  const [x1, y1] = [from.x, from.y + (level ? 0.5 : -0.5) * from.h];
  const [x2, y2] = [enter, to.y + to.h / 2];
  const far = Math.hypot(x2 - x1, y2 - y1) || 1;
  const [across, up] = [(bend * (y1 - y2)) / far, (bend * (x2 - x1)) / far];
  const low = 12 + 0.06 * Math.abs(x2 - x1);
  const reach = level ? -low : Math.max(8, Math.min(70, (y1 - y2) * 0.5));
  const around = Math.abs(x2 - x1) < 60 && y1 - y2 > HIGH; // of what stands between them in one column
  const aside = across + (around ? Math.min(46, 8 + 0.14 * (y1 - y2)) * (side === "dest" ? -1 : 1) : 0);
  const [a, b] = [
    { x: x1 + aside, y: y1 - reach + up },
    { x: x2 + aside, y: y2 + (level ? low : reach) + up },
  ];
  const middle = (/** @type {number} */ p, /** @type {number} */ q, /** @type {number} */ s, /** @type {number} */ t) =>
    (p + 3 * q + 3 * s + t) / 8;
  return {
    d: `M${r(x1)} ${r(y1)}C${r(a.x)} ${r(a.y)} ${r(b.x)} ${r(b.y)} ${r(x2)} ${r(y2)}`,
    x: middle(x1, a.x, b.x, x2),
    y: middle(y1, a.y, b.y, y2),
  };
}

/** @param {number} x */
function r(x) {
  return Math.round(x * 10) / 10;
}
