// In which order do the leaves of a tree stand, and where are its branches? As the clustering's own table has it.

/** @typedef {[number, number, number, number][]} Linkage i, j, height, size: scipy's */
/** @typedef {{ y: number, height: number, from: number, to: number, fromHeight: number, toHeight: number, leaves: number[] }} Branch from and to: where its parts are */

/** @param {Linkage} tree @param {number} n leaves @returns {number[]} leaves from top to bottom */
export function leavesOf(tree, n) {
  if (!tree.length) return Array.from({ length: n }, (_, i) => i);
  /** @type {number[]} */
  const found = [];
  const waiting = [n + tree.length - 1];
  for (let node = waiting.pop(); node !== undefined; node = waiting.pop()) {
    if (node < n) found.push(node);
    else waiting.push(tree[node - n][1], tree[node - n][0]); // the left part is looked at first
  }
  return found;
}

/** @param {Linkage} tree @param {number[]} order @returns {Branch[]} */
export function branches(tree, order) {
  const n = order.length;
  const y = new Array(n + tree.length).fill(0);
  const height = new Array(n + tree.length).fill(0);
  /** @type {number[][]} */
  const leaves = Array.from({ length: n + tree.length }, (_, i) => (i < n ? [i] : []));
  order.forEach((leaf, row) => (y[leaf] = row + 0.5));
  return tree.map(([i, j, tall], k) => {
    y[n + k] = (y[i] + y[j]) / 2;
    height[n + k] = tall;
    leaves[n + k] = [...leaves[i], ...leaves[j]];
    return {
      y: y[n + k],
      height: tall,
      from: y[i],
      to: y[j],
      fromHeight: height[i],
      toHeight: height[j],
      leaves: leaves[n + k],
    };
  });
}

/** @param {string | null} coded a byte per number, 255 is 1 @returns {Uint8Array | null} */
export function decoded(coded) {
  return coded === null || coded === undefined ? null : Uint8Array.from(atob(coded), (sign) => sign.charCodeAt(0));
}
