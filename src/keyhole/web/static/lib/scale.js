// Where does a number lie between two others?

/** @param {[number, number]} from @param {[number, number]} to @returns {(x: number) => number} */
export function linear([a, b], [c, d]) {
  const slope = b === a ? 0 : (d - c) / (b - a);
  return (x) => c + (x - a) * slope;
}

/** @param {number} x @param {number} least @param {number} most */
export function clamp(x, least, most) {
  return Math.min(most, Math.max(least, x));
}
