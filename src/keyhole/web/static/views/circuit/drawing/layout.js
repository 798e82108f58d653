// Where does everything stand? Tokens across, layers up; what shares a cell stands side by side, and long prompts
// are folded.
import { short, visible } from "../../../lib/tokens.js";

/** @typedef {import("../graph.js").Mark} Mark */
/** @typedef {{ x: number, y: number, w: number, h: number }} Box centre and size */
/**
 * @typedef {object} Column a token, or several that nothing happens at
 * @property {number} pos @property {number} x @property {number} w @property {boolean} plain is nothing drawn there?
 * @property {number | null} gap so many tokens are folded here, or are unfolded from here on; null: this is a token
 * @property {boolean} open is it part of an unfolded gap?
 */
/** @typedef {{ label: string, y: number, h: number }} Row */
/** @typedef {{ boxes: Map<string, Box>, columns: Column[], rows: Row[], width: number, height: number }} Layout */

const FOLD = { from: 26, run: 2 }; // prompts longer than this are folded, where so many tokens in a row have nothing
const LINE = 21; // height of a line of marks
const ACROSS = [156, 112, 74, 40]; // a cell wider than this begins a new line; which of them is seen best
const GAP = 6; // between marks
const DEEP = 12; // more layers than this stand in one row each
const NEAR = 24; // between heads and MLP of one layer
const LARGEST = 1.25; // a drawing is not enlarged beyond this
const SIGN = 6.7; // width of a letter in a mark
const LETTER = 7.4; // and in a token

/** @type {Record<string, number>} */
const WITHIN = { offset: 0, value_offset: 0, head: 1, mixer: 1, group: 1, mlp_offset: 2, mlp: 3, bias: 3 };

/** @param {Mark} mark @returns {[number, number]} how large it is drawn */
export function sizeOf(mark) {
  if (mark.kind === "embedding" && !mark.named) return [14, 14];
  if (["bias", "offset", "mlp_offset", "value_offset"].includes(mark.kind) && !mark.named) return [11, 11];
  const wide = mark.kind === "target" || mark.kind === "group" ? 20 : 12;
  return [Math.max(28, wide + SIGN * [...short(mark.label, 24)].length), 18];
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
  const interest = new Set([...marks.map((mark) => mark.dest), ...(tokens.length > FOLD.from ? [] : needed)]);
  const tried = ACROSS.map((across) => {
    const cells = cellsOf(marks, bands, across);
    const columns = columnsOf(tokens, cells, interest, new Set(opened));
    const heights = bands.map(
      (_, band) => LINE * cells.reduce((most, cell) => Math.max(most, cell.band === band ? cell.lines.length : 0), 0),
    );
    const used = heights.reduce((sum, one) => sum + one, 0) + NEAR * bands.filter((band) => band.near).length;
    // what is unfolded comes on top
    const wide = columns.reduce((sum, column) => sum + (column.open ? 0 : column.w), 0);
    const least = used + (bands.length > DEEP ? 7 : 18) * bands.filter((band) => !band.near).length;
    return { cells, columns, heights, used, scale: Math.min(LARGEST, width / wide, height / least) };
  });
  // broad cells, unless narrow ones are seen larger
  const best = tried.reduce((a, b) => (b.scale > 1.05 * a.scale ? b : a));
  return arranged(best, bands, { width, height });
}

/**
 * Everything at its place, with the room that is left shared out.
 * @param {{ cells: Cell[], columns: Column[], heights: number[], used: number, scale: number }} best
 * @param {Band[]} bands @param {{ width: number, height: number }} room @returns {Layout}
 */
function arranged({ cells, columns, heights, used, scale }, bands, { width, height }) {
  const loose = bands.filter((band) => !band.near).length - 1;
  const space = Math.min(110, Math.max(bands.length > DEEP ? 7 : 18, (height / scale - used) / Math.max(1, loose)));
  spread(columns, width / Math.min(scale, height / (used + space * loose)));
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
    bottom -= heights[band] + (band + 1 === bands.length ? 0 : bands[band + 1].near ? NEAR : space);
  }
  const last = columns[columns.length - 1];
  return { boxes, columns, rows: merged(rows), width: last.x + last.w, height: -bottom };
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
 * @param {string[]} tokens @param {Cell[]} cells @param {Set<number>} interest @param {Set<number>} opened
 * @returns {Column[]}
 */
function columnsOf(tokens, cells, interest, opened) {
  /** @type {Map<number, number>} */
  const widths = new Map();
  for (const cell of cells) widths.set(cell.dest, Math.max(widths.get(cell.dest) ?? 0, ...cell.lines.map(widthOf)));
  /** @type {Column[]} */
  const columns = [];
  const many = tokens.length > FOLD.from; // then room goes to what is drawn
  let x = 0;
  for (let pos = 0; pos < tokens.length;) {
    let end = pos;
    while (end < tokens.length && !interest.has(end)) end += 1;
    const gap = end - pos;
    if (gap >= FOLD.run && many && !opened.has(pos)) {
      const w = 26 + LETTER * String(gap).length;
      columns.push({ pos, gap, x, w, plain: true, open: false });
      x += w;
      pos = end;
      continue;
    }
    const open = gap >= FOLD.run && many;
    if (open) columns.push({ pos, gap, x, w: 20, plain: true, open });
    x += open ? 20 : 0;
    for (const until = Math.max(end, pos + 1); pos < until; pos += 1) {
      const own = widths.get(pos);
      const label =
        LETTER * Math.min(many ? 7 : 12, [...visible(tokens[pos])].length) +
        (interest.has(pos) ? 16 + 6.2 * String(pos).length : 14);
      const w = Math.max(20, own === undefined ? 0 : own + (many ? 14 : 26), label);
      columns.push({ pos, gap: null, x, w, plain: !interest.has(pos), open: open && !interest.has(pos) });
      x += w;
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
