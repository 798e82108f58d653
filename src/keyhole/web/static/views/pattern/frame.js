// Which tokens of a long prompt are in sight, and where do they lie? Rows are dests, columns are srcs.

/**
 * @typedef {object} Frame
 * @property {number[]} rows  dests in sight, in order
 * @property {number[]} cols  srcs in sight
 * @property {number} x  left edge of the first column, in pixels
 * @property {number} y  top edge of the first row
 * @property {number} cell  width and height of a cell
 */

/** @typedef {{ rows: number[], cols: number[] }} Tokens */
/** @typedef {{ span: number, row: number, col: number }} Zoom  how many tokens are in sight, and from which on */
/**
 * @typedef {{ size: number, weights: Float32Array, tau: Float32Array, visible: number[] }} Pattern
 *   weights are row after row; of each dest, its threshold and how many keys it sees
 */

/**
 * The tokens of the strongest firings, so many rows and columns at most; the last row and what must be seen always.
 * @param {Pattern} pattern @param {number} most @param {{ dest: number, src: number } | null} [must]
 * @returns {Tokens}
 */
export function loud(pattern, most, must = null) {
  const [rows, cols] = [new Set([pattern.size - 1]), new Set([0])];
  if (must) {
    rows.add(must.dest);
    cols.add(must.src);
  }
  for (const { dest, src } of strongest(pattern, Infinity)) {
    if (rows.size >= most || cols.size >= most) break;
    rows.add(dest);
    cols.add(src);
  }
  return { rows: sorted(rows), cols: sorted(cols) };
}

/**
 * Every token.
 * @param {number} size
 */
export function whole(size) {
  const all = Array.from({ length: size }, (_, i) => i);
  return { rows: all, cols: all };
}

/** @param {Tokens} tokens the zoom that shows them all @returns {Zoom} */
export function fit(tokens) {
  return { span: Math.max(tokens.rows.length, tokens.cols.length, 1), row: 0, col: 0 };
}

/**
 * The part of rows and columns that a zoom leaves in sight: `span` of them, from `row` and `col` on.
 * @param {Tokens} tokens
 * @param {Zoom} zoom
 */
export function cut(tokens, zoom) {
  return {
    rows: tokens.rows.slice(zoom.row, zoom.row + zoom.span),
    cols: tokens.cols.slice(zoom.col, zoom.col + zoom.span),
  };
}

/**
 * The zoom one step nearer or further about a cell that stays in its place, within what there is.
 * @param {Zoom} zoom
 * @param {Tokens} tokens
 * @param {{ by: number, down: number, right: number }} step  `down`, `right`: where the cell is, as shares
 */
export function zoomed(zoom, tokens, step) {
  const most = Math.max(tokens.rows.length, tokens.cols.length);
  const span = Math.round(Math.min(most, Math.max(6, zoom.span * step.by)));
  const row = zoom.row + Math.round((zoom.span - span) * step.down);
  const col = zoom.col + Math.round((zoom.span - span) * step.right);
  return moved({ span, row, col }, tokens, 0, 0);
}

/**
 * @param {Zoom} zoom
 * @param {Tokens} tokens
 * @param {number} down
 * @param {number} right
 */
export function moved(zoom, tokens, down, right) {
  const within = (/** @type {number} */ start, /** @type {number} */ count) =>
    Math.max(0, Math.min(start, count - zoom.span));
  return {
    span: zoom.span,
    row: within(zoom.row + down, tokens.rows.length),
    col: within(zoom.col + right, tokens.cols.length),
  };
}

/**
 * The cell under a point, or null.
 * @param {Frame} frame
 * @param {number} x
 * @param {number} y
 */
export function cellAt(frame, x, y) {
  const row = frame.rows[Math.floor((y - frame.y) / frame.cell)];
  const col = frame.cols[Math.floor((x - frame.x) / frame.cell)];
  const inside = x >= frame.x && y >= frame.y && row !== undefined && col !== undefined && col <= row;
  return inside ? { dest: row, src: col } : null;
}

/**
 * The strongest firings of a head, sinks left out; those that fire most above uniform first, as the library ranks them.
 * @param {Pattern} pattern
 * @param {number} most
 */
export function strongest(pattern, most) {
  /** @type {{ dest: number, src: number, weight: number }[]} */
  const found = [];
  for (let dest = 0; dest < pattern.size; dest++) {
    for (let src = 1; src <= dest; src++) {
      const weight = pattern.weights[dest * pattern.size + src];
      if (weight >= pattern.tau[dest]) found.push({ dest, src, weight });
    }
  }
  const times = (/** @type {{ dest: number, weight: number }} */ one) => one.weight * pattern.visible[one.dest];
  return found.sort((a, b) => times(b) - times(a)).slice(0, most);
}

/** @param {Set<number>} set */
function sorted(set) {
  return [...set].sort((a, b) => a - b);
}

/**
 * A pattern as the server sends it: a triangle of bytes, some rows exact.
 * @param {{ n: number, triangle: string, dests: number[], weights: number[][], visible: number[] }} sent
 * @returns {Pattern}
 */
export function decode(sent) {
  const bytes = atob(sent.triangle);
  const weights = new Float32Array(sent.n * sent.n);
  const tau = new Float32Array(sent.n);
  for (let dest = 0, at = 0; dest < sent.n; dest++) {
    tau[dest] = Math.min(1, 2.5 / sent.visible[dest]); // the library's dynamic tau
    for (let src = 0; src <= dest; src++, at++) weights[dest * sent.n + src] = bytes.charCodeAt(at) / 255;
  }
  sent.dests.forEach((dest, i) => weights.set(sent.weights[i], dest * sent.n));
  return { size: sent.n, weights, tau, visible: sent.visible };
}
