// Where does everything stand? Tokens across, layers up; what shares a cell stands side by side, and long prompts
// are folded.
import { clamp } from "../../../lib/scale.js";
import { short, textWidth, visible } from "../../../lib/tokens.js";
import { PLACE, TOKEN } from "./axes.js";

/** @typedef {import("../graph.js").Mark} Mark */
/** @typedef {{ x: number, y: number, w: number, h: number }} Box centre and size */
/**
 * @typedef {object} Column a token, or several that nothing happens at
 * @property {number} pos @property {number} x @property {number} w @property {boolean} plain is nothing drawn there?
 * @property {number | null} gap so many tokens are folded here, or are unfolded from here on; null: this is a token
 * @property {boolean} open is it part of an unfolded gap?
 * @property {number} label pixels that its label takes, however large the drawing is seen
 */
/** @typedef {{ label: string, y: number, h: number }} Row */
/**
 * @typedef {{ boxes: Map<string, Box>, columns: Column[], rows: Row[], width: number, height: number, scale: number }}
 *   Layout scale: how large all of it can be seen at once
 */

const FOLD = { from: 26, run: 2 }; // prompts longer than this are folded, where so many tokens in a row have nothing
const LINE = 22; // height of a line of marks
const ACROSS = [156, 112, 74, 40]; // a cell wider than this begins a new line; which of them is seen best
const GAP = 6; // between marks
const DEEP = 12; // more layers than this stand in one row each
const NEAR = [7, 24]; // between heads and MLP of one layer: at least, at most
const LOOSE = [10, 110]; // and between layers
const LARGEST = 1.25; // a drawing is not enlarged beyond this
const NAME = 12.5; // size of a mark's letters, as in circuit.css
export const LEGIBLE = 11 / NAME; // the scale at which they are 11 pixels on the screen
const LONG = { few: 16, many: 8 }; // letters of a token that is shown whole, in prompts that are not folded and that are

/** @type {Record<string, number>} */
const WITHIN = { offset: 0, value_offset: 0, head: 1, mixer: 1, group: 1, mlp_offset: 2, mlp: 3, bias: 3, rounding: 3 };

/** @param {Mark} mark @returns {[number, number]} how large it is drawn */
export function sizeOf(mark) {
  if (mark.kind === "embedding" && !mark.named) return [14, 14];
  if (["bias", "rounding", "offset", "mlp_offset", "value_offset"].includes(mark.kind) && !mark.named) return [11, 11];
  const wide = mark.kind === "target" || mark.kind === "group" ? 20 : 12;
  return [Math.max(30, wide + textWidth(short(mark.label, 24), NAME, 550)), 19];
}

/**
 * @param {Mark[]} marks
 * @param {string[]} tokens
 * @param {number[]} needed what heads look at: of interest too, where there is room
 * @param {{ opened: number[], width: number, height: number }} how first tokens of gaps that are open; the room that
 *   there is, which is used
 * @returns {Layout}
 */
export function layout(marks, tokens, needed, { opened, width, height }) {
  const bands = bandsOf(marks);
  const long = tokens.length > FOLD.from;
  const room = { width, height };
  const tried = (/** @type {boolean} */ folds) => {
    const interest = new Set([...marks.map((mark) => mark.dest), ...(folds ? [] : needed)]);
    const each = ACROSS.map((across) => attempt(marks, bands, across, { tokens, interest, opened, folds }, room));
    // broad cells, unless narrow ones are seen larger
    return each.reduce((a, b) => (b.scale > 1.05 * a.scale ? b : a));
  };
  const whole = tried(long);
  if (long || whole.scale >= LEGIBLE) return arranged(whole, bands, room);
  const folded = tried(true);
  return arranged(folded.scale > 1.05 * whole.scale ? folded : whole, bands, room);
}

/** @typedef {{ cells: Cell[], columns: Column[], heights: number[], used: number, scale: number }} Attempt */
/**
 * @param {Mark[]} marks @param {Band[]} bands @param {number} across
 * @param {{ tokens: string[], interest: Set<number>, opened: number[], folds: boolean }} prompt
 * @param {{ width: number, height: number }} room @returns {Attempt}
 */
function attempt(marks, bands, across, { tokens, interest, opened, folds }, room) {
  const cells = cellsOf(marks, bands, across);
  const columns = columnsOf(tokens, cells, interest, { opened: new Set(opened), folds });
  const heights = bands.map(
    (_, band) => LINE * cells.reduce((most, cell) => Math.max(most, cell.band === band ? cell.lines.length : 0), 0),
  );
  const used = heights.reduce((sum, one) => sum + one, 0);
  const nears = bands.filter((band) => band.near).length;
  const [near, loose] = gapsOf(bands, 0);
  const tight = room.height / (used + near * nears + loose * (bands.length - nears));
  const airy = room.height / (used + NEAR[1] * nears + 18 * (bands.length - nears));
  // labels that can be read come before air between layers, and air before larger ones
  const scale = Math.min(LARGEST, widest(columns, room.width), Math.max(airy, Math.min(1, tight)));
  for (const column of columns) column.w = Math.max(column.w, column.label / scale);
  return { cells, columns, heights, used, scale };
}

/**
 * The largest scale at which columns stand side by side: marks grow with it, labels do not, and are cut where even a
 * small drawing has no room for them. What is unfolded comes on top.
 * @param {Column[]} columns @param {number} room
 */
function widest(columns, room) {
  const shown = columns.filter((column) => !column.open);
  const labels = shown.reduce((sum, column) => sum + column.label, 0);
  if (labels > room) for (const column of columns) column.label *= room / labels;
  const wide = (/** @type {number} */ k) => shown.reduce((sum, column) => sum + Math.max(column.w * k, column.label), 0);
  let [low, high] = [0.05, LARGEST];
  if (wide(high) <= room) return high;
  for (let step = 0; step < 20; step += 1) {
    const k = (low + high) / 2;
    if (wide(k) <= room + 0.01) low = k;
    else high = k;
  }
  return low;
}

/**
 * Everything at its place, with the room that is left shared out.
 * @param {Attempt} best
 * @param {Band[]} bands @param {{ width: number, height: number }} room @returns {Layout}
 */
function arranged({ cells, columns, heights, used, scale }, bands, { width, height }) {
  const [near, loose] = gapsOf(bands, height / scale - used);
  const gaps = bands.slice(1).map((band) => (band.near ? near : loose));
  spread(columns, width / Math.min(scale, height / gaps.reduce((sum, gap) => sum + gap, used)));
  const at = new Map(columns.filter((column) => column.gap === null).map((column) => [column.pos, column]));
  /** @type {Map<string, Box>} */
  const boxes = new Map();
  const rows = [];
  let bottom = 0;
  for (const [band, { label }] of bands.entries()) {
    const y = bottom - heights[band] / 2;
    rows.push({ label, y, h: heights[band] });
    for (const cell of cells) {
      const column = at.get(cell.dest);
      if (cell.band !== band || !column) continue;
      cell.lines.forEach((line, index) =>
        place(line, column.x + column.w / 2, y + (index - (cell.lines.length - 1) / 2) * LINE, boxes),
      );
    }
    bottom -= heights[band] + (gaps[band] ?? 0);
  }
  const last = columns[columns.length - 1];
  return { boxes, columns, rows: merged(rows), width: last.x + last.w, height: -bottom, scale };
}

/**
 * How far apart are bands of one layer, and layers? As far as the room allows, within limits.
 * @param {Band[]} bands @param {number} room that marks leave @returns {[number, number]}
 */
function gapsOf(bands, room) {
  const nears = bands.filter((band) => band.near).length;
  const looses = Math.max(1, bands.length - nears - 1);
  const near = clamp(room / (nears + 2 * looses), NEAR[0], NEAR[1]); // layers are twice as far apart
  return [near, clamp((room - near * nears) / looses, bands.length > DEEP ? 2 : LOOSE[0], LOOSE[1])];
}

/** @param {Mark[]} line @param {number} x @param {number} y @param {Map<string, Box>} boxes */
function place(line, x, y, boxes) {
  let left = x - widthOf(line) / 2;
  for (const mark of line) {
    const [w, h] = sizeOf(mark);
    boxes.set(mark.id, { x: left + w / 2, y, w, h });
    left += w + GAP;
  }
}

/** @param {Mark[]} line */
function widthOf(line) {
  return line.reduce((sum, mark) => sum + sizeOf(mark)[0], GAP * (line.length - 1));
}

/** @typedef {{ key: number, label: string, near: boolean }} Band near: of the same layer as the one below */
/** @param {Mark[]} marks @returns {Band[]} from the bottom up */
function bandsOf(marks) {
  const layers = new Set(marks.map((mark) => mark.layer));
  const keys = [...new Set(marks.map((mark) => keyOf(mark, layers.size > DEEP)))].sort((a, b) => a - b);
  return keys.map((key, index) => {
    const layer = Math.floor((key - 10) / 10);
    const label = key === -1 ? "folded" : key === 0 ? "words" : key === Infinity ? "answer" : `layer ${layer}`;
    return {
      key,
      label,
      near: index > 0 && key >= 10 && Number.isFinite(key) && Math.floor((keys[index - 1] - 10) / 10) === layer,
    };
  });
}

/** @param {Mark} mark @param {boolean} deep */
function keyOf(mark, deep) {
  if (mark.kind === "target") return Infinity;
  if (mark.kind === "sinks" || mark.kind === "constants") return -1;
  if (mark.kind === "embedding") return 0;
  return 10 + 10 * (mark.layer ?? 0) + (deep ? 1 : (WITHIN[mark.kind] ?? 1));
}

/** @typedef {{ band: number, dest: number, lines: Mark[][] }} Cell */
/** @param {Mark[]} marks @param {Band[]} bands @param {number} across @returns {Cell[]} */
function cellsOf(marks, bands, across) {
  const deep = new Set(marks.map((mark) => mark.layer)).size > DEEP;
  const order = new Map(bands.map((band, index) => [band.key, index]));
  /** @type {Map<string, Cell>} */
  const cells = new Map();
  for (const mark of [...marks].sort((a, b) => (WITHIN[a.kind] ?? 1) - (WITHIN[b.kind] ?? 1))) {
    const band = order.get(keyOf(mark, deep)) ?? 0;
    const key = `${band}:${mark.dest}`;
    const cell = cells.get(key) ?? { band, dest: mark.dest, lines: [[]] };
    const line = cell.lines[cell.lines.length - 1];
    if (line.length && widthOf([...line, mark]) > across) cell.lines.push([mark]);
    else line.push(mark);
    cells.set(key, cell);
  }
  return [...cells.values()];
}

/**
 * @param {string[]} tokens @param {Cell[]} cells @param {Set<number>} interest
 * @param {{ opened: Set<number>, folds: boolean }} how @returns {Column[]}
 */
function columnsOf(tokens, cells, interest, { opened, folds }) {
  /** @type {Map<number, number>} */
  const widths = new Map();
  for (const cell of cells) widths.set(cell.dest, Math.max(widths.get(cell.dest) ?? 0, ...cell.lines.map(widthOf)));
  /** @type {Column[]} */
  const columns = [];
  const x = 0; // where they stand is known when all are
  for (let pos = 0; pos < tokens.length;) {
    let end = pos;
    while (end < tokens.length && !interest.has(end)) end += 1;
    const gap = end - pos;
    if (gap >= FOLD.run && folds && !opened.has(pos)) {
      columns.push({ pos, gap, x, w: 20, label: 26 + textWidth(String(gap), TOKEN), plain: true, open: false });
      pos = end;
      continue;
    }
    const open = gap >= FOLD.run && folds;
    if (open) columns.push({ pos, gap, x, w: 20, label: 20, plain: true, open });
    for (const until = Math.max(end, pos + 1); pos < until; pos += 1) {
      const own = widths.get(pos);
      const text = short(visible(tokens[pos]), folds ? LONG.many : LONG.few);
      const number = interest.has(pos) ? textWidth(String(pos), PLACE) + 3 : 0;
      const label = textWidth(text, TOKEN) + number + 8;
      const w = Math.max(14, own === undefined ? 0 : own + (folds ? 14 : 18));
      columns.push({ pos, gap: null, x, w, label, plain: !interest.has(pos), open: open && !interest.has(pos) });
    }
  }
  return columns;
}

/**
 * @param {Column[]} columns
 * @param {number} wide they take this room, if it is more than they need: those with marks the most of it
 */
function spread(columns, wide) {
  const used = columns.reduce((sum, column) => sum + (column.open ? 0 : column.w), 0);
  const shares = columns.map((column) =>
    column.open || column.gap !== null ? 0 : column.plain ? 1 : 1.5 + column.w / 50,
  );
  const each =
    Math.max(0, wide - used) /
    Math.max(
      1,
      shares.reduce((sum, one) => sum + one, 0),
    );
  let x = 0;
  for (const [index, column] of columns.entries()) {
    column.w += Math.min(each * shares[index], 120);
    column.x = x;
    x += column.w;
  }
}

/** @param {Row[]} rows bands of one layer have one label, in their middle */
function merged(rows) {
  /** @type {Row[]} */
  const found = [];
  for (const row of rows) {
    const last = found[found.length - 1];
    if (!last || last.label !== row.label) {
      found.push({ ...row });
      continue;
    }
    const [bottom, top] = [last.y + last.h / 2, row.y - row.h / 2];
    Object.assign(last, { y: (bottom + top) / 2, h: bottom - top });
  }
  return found;
}
