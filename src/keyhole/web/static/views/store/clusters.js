// How far are circuits from each other? Their tree, bars for families and labels, and all distances in the tree's order.
import { h } from "../../lib/dom.js";
import { number } from "../../lib/format.js";
import { colours, distinct } from "../../lib/palette.js";
import { clamp } from "../../lib/scale.js";
import { branches, decoded, leavesOf } from "./tree.js";

const [TREE, BAR, GAP, SIDE] = [150, 11, 4, 520];

/** @typedef {{ name: string, colour: (leaf: number) => string, says: (leaf: number) => string }} Strip */
/** @typedef {{ levels: Uint8Array, order: number[], strips: Strip[], size: number, left: number }} Drawn */

/**
 * @param {any} found the families' record @param {string} by a label whose values have colours, too; or none
 * @param {{ open: (prompt: number) => void, host: HTMLElement }} on
 */
export function clusterMap(found, by, { open, host }) {
  const levels = decoded(found.distances);
  if (!levels || !found.tree)
    return h(
      "p",
      { class: "soft" },
      `The tree of ${found.sample.length.toLocaleString("en")} circuits is too large to be drawn here.`,
    );
  const order = leavesOf(found.tree, found.sample.length);
  const strips = stripsOf(found, by, host);
  const drawn = { levels, order, strips, size: SIDE, left: TREE + strips.length * (BAR + GAP) + GAP };
  const canvas = h("canvas", {
    class: "clusters",
    role: "img",
    "aria-label": `Distances of ${order.length} circuits in the order of their tree`,
    "data-leaves": order.length,
  });
  const told = h("p", { class: "told", "aria-live": "polite" }, HINT);
  paint(canvas, found, drawn, host);
  canvas.addEventListener("pointermove", (event) => {
    const at = cellAt(canvas, event, drawn);
    told.textContent = at ? say(found, drawn, at) : HINT;
    canvas.style.cursor = at ? "pointer" : "";
  });
  canvas.addEventListener("pointerleave", () => (told.textContent = HINT));
  canvas.addEventListener("click", (event) => {
    const at = cellAt(canvas, event, drawn);
    if (at) open(found.sample[at.row]);
  });
  return h(
    "figure",
    { class: "cluster-map" },
    canvas,
    h(
      "div",
      { class: "ramp-line" },
      h("span", { class: "faint" }, "distance 0"),
      h("i", { class: "ramp-ink" }),
      h("span", { class: "faint" }, "1 (nothing shared)"),
    ),
    told,
  );
}

const HINT = "Point at a pair; a click opens the circuit of its row.";

/** @param {any} found @param {string} by @param {HTMLElement} host @returns {Strip[]} */
function stripsOf(found, by, host) {
  const palette = colours(host);
  const grey = getComputedStyle(host).getPropertyValue("--strong").trim();
  const family = {
    name: "family",
    colour: (/** @type {number} */ leaf) => palette[found.labels[leaf] - 1] ?? grey,
    says: (/** @type {number} */ leaf) => (found.labels[leaf] ? `family ${found.labels[leaf]}` : "in no family"),
  };
  const values = /** @type {string[] | undefined} */ (by ? found.values[by] : undefined);
  if (!values) return [family];
  const known = distinct(values);
  const first = found.families.length > 1 ? [family] : []; // one family would be a bar of one colour
  return [
    ...first,
    {
      name: by,
      colour: (leaf) => palette[known.indexOf(String(values[leaf]))] ?? grey,
      says: (leaf) => `${by} ${values[leaf]}`,
    },
  ];
}

/** @param {HTMLCanvasElement} canvas @param {any} found @param {Drawn} drawn @param {HTMLElement} host */
function paint(canvas, found, drawn, host) {
  const { order, strips, size, left } = drawn;
  const scale = Math.max(1, window.devicePixelRatio || 1);
  const width = left + size;
  Object.assign(canvas, { width: width * scale, height: size * scale });
  canvas.style.aspectRatio = `${width} / ${size}`;
  canvas.style.maxWidth = `${width}px`;
  const pen = /** @type {CanvasRenderingContext2D} */ (canvas.getContext("2d"));
  pen.scale(scale, scale);
  const cell = size / order.length;
  strips.forEach((strip, k) =>
    order.forEach((leaf, row) => {
      pen.fillStyle = strip.colour(leaf);
      pen.fillRect(TREE + GAP + k * (BAR + GAP), row * cell, BAR, Math.max(cell - (cell > 5 ? 0.6 : 0), 0.5));
    }),
  );
  paintTree(pen, found, drawn, host);
  paintCells(pen, drawn, host);
}

/** @param {CanvasRenderingContext2D} pen @param {any} found @param {Drawn} drawn @param {HTMLElement} host a branch has the colour of its family, if all its leaves are of one */
function paintTree(pen, found, { order, strips, size }, host) {
  const style = getComputedStyle(host);
  const grey = style.getPropertyValue("--faint").trim();
  const all = branches(found.tree, order);
  const top = Math.max(1e-9, ...all.map((one) => one.height));
  const x = (/** @type {number} */ height) => TREE - 4 - (TREE - 14) * (height / top);
  const cell = size / order.length;
  pen.lineWidth = order.length > 300 ? 0.6 : 1.1;
  for (const one of all) {
    const families = new Set(one.leaves.map((leaf) => found.labels[leaf]));
    pen.strokeStyle =
      families.size === 1 && found.families.length > 1 && !families.has(0) ? strips[0].colour(one.leaves[0]) : grey;
    pen.beginPath();
    pen.moveTo(x(one.fromHeight), one.from * cell);
    pen.lineTo(x(one.height), one.from * cell);
    pen.lineTo(x(one.height), one.to * cell);
    pen.lineTo(x(one.toHeight), one.to * cell);
    pen.stroke();
  }
}

/** @param {CanvasRenderingContext2D} pen @param {Drawn} drawn @param {HTMLElement} host near is dark, as ink; far is paper */
function paintCells(pen, { levels, order, size, left }, host) {
  const style = getComputedStyle(host);
  const n = order.length;
  const cell = size / n;
  pen.fillStyle = style.getPropertyValue("--panel").trim();
  pen.fillRect(left, 0, size, size);
  pen.fillStyle = style.getPropertyValue("--head").trim();
  for (let i = 0; i < n; i++) {
    for (let j = 0; j < n; j++) {
      pen.globalAlpha = clamp(1 - levels[order[i] * n + order[j]] / 255, 0, 1);
      if (pen.globalAlpha > 0.004) pen.fillRect(left + j * cell, i * cell, cell + 0.3, cell + 0.3);
    }
  }
  pen.globalAlpha = 1;
}

/** @param {HTMLCanvasElement} canvas @param {MouseEvent} event @param {Drawn} drawn @returns {{ row: number, column: number | null } | null} leaves */
function cellAt(canvas, event, { order, size, left }) {
  const box = canvas.getBoundingClientRect();
  const by = (left + size) / box.width;
  const [x, y] = [(event.clientX - box.left) * by, (event.clientY - box.top) * by];
  const place = (/** @type {number} */ at) => order[clamp(Math.floor((at / size) * order.length), 0, order.length - 1)];
  if (y < 0 || y >= size) return null;
  return { row: place(y), column: x >= left && x < left + size ? place(x - left) : null };
}

/** @param {any} found @param {Drawn} drawn @param {{ row: number, column: number | null }} at */
function say(found, { levels, order, strips }, { row, column }) {
  const who = (/** @type {number} */ leaf) =>
    `prompt ${found.sample[leaf]} (${strips.map((strip) => strip.says(leaf)).join(", ")})`;
  return column === null || column === row
    ? who(row)
    : `${who(row)} and ${who(column)}: distance ${number(levels[row * order.length + column] / 255, 2)}`;
}
