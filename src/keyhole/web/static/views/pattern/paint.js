// How does attention look? Ink on paper: dests down, srcs across, the words along the diagonal, where nothing else is.

import { short, visible } from "../../lib/tokens.js";

/** @typedef {import("./frame.js").Frame} Frame */
/** @typedef {import("./frame.js").Pattern} Pattern */
/** @typedef {{ dest: number, src: number }} Cell */
/** @typedef {{ ink: string, paper: string, text: string, faint: string, mark: string, font: string }} Look */

const LABEL = 11; // pixels that a label needs

/**
 * @param {HTMLElement} el
 * @returns {Look}
 */
export function look(el) {
  const style = getComputedStyle(el);
  const read = (/** @type {string} */ name) => style.getPropertyValue(name).trim();
  return {
    ink: read("--head"),
    paper: read("--panel"),
    text: read("--ink"),
    faint: read("--faint"),
    mark: read("--side-dest"),
    font: style.fontFamily,
  };
}

/**
 * @param {CanvasRenderingContext2D} pen
 * @param {Pattern} pattern
 * @param {Frame} frame
 * @param {Look} colours
 */
export function paintCells(pen, pattern, frame, colours) {
  if (frame.cell < 1) {
    paintFine(pen, pattern, frame, colours);
    return;
  }
  const gap = frame.cell > 6 ? 1 : 0;
  const edge = (/** @type {number} */ from, /** @type {number} */ i) =>
    Math.round(from + i * frame.cell); // no seams between cells
  frame.rows.forEach((dest, i) => {
    const [y, high] = [edge(frame.y, i), edge(frame.y, i + 1) - edge(frame.y, i) - gap];
    frame.cols.forEach((src, j) => {
      if (src > dest) return;
      const [x, wide] = [edge(frame.x, j), edge(frame.x, j + 1) - edge(frame.x, j) - gap];
      pen.globalAlpha = 1;
      pen.fillStyle = colours.paper;
      pen.fillRect(x, y, wide, high);
      pen.globalAlpha = strength(pattern.weights[dest * pattern.size + src]);
      pen.fillStyle = colours.ink;
      pen.fillRect(x, y, wide, high);
    });
  });
  pen.globalAlpha = 1;
}

/**
 * Cells finer than pixels: a pixel shows the strongest of those beneath it, so that no firing is lost.
 * @param {CanvasRenderingContext2D} pen
 * @param {Pattern} pattern
 * @param {Frame} frame
 * @param {Look} colours
 */
function paintFine(pen, pattern, frame, colours) {
  const [wide, high] = [frame.cols.length, frame.rows.length].map((n) => Math.ceil(n * frame.cell));
  const most = new Float32Array(wide * high).fill(-1);
  frame.rows.forEach((dest, i) => {
    const line = Math.floor(i * frame.cell) * wide;
    frame.cols.forEach((src, j) => {
      if (src > dest) return;
      const at = line + Math.floor(j * frame.cell);
      most[at] = Math.max(most[at], pattern.weights[dest * pattern.size + src]);
    });
  });
  for (let at = 0; at < most.length; at++) {
    if (most[at] < 0) continue;
    const [x, y] = [frame.x + (at % wide), frame.y + Math.floor(at / wide)];
    pen.globalAlpha = 1;
    pen.fillStyle = colours.paper;
    pen.fillRect(x, y, 1, 1);
    if (most[at] < 0.004) continue;
    pen.globalAlpha = strength(most[at]);
    pen.fillStyle = colours.ink;
    pen.fillRect(x, y, 1, 1);
  }
  pen.globalAlpha = 1;
}

/**
 * The words: dests at the left, srcs upwards from the diagonal.
 * @param {CanvasRenderingContext2D} pen
 * @param {readonly string[]} tokens
 * @param {Frame} frame
 * @param {{ colours: Look, at: Cell | null, places: boolean }} how `places`: with their positions, if some are folded
 */
export function paintWords(pen, tokens, frame, { colours, at, places }) {
  const every = Math.max(1, Math.ceil(LABEL / frame.cell));
  const size = Math.min(12, Math.max(9, frame.cell * 0.62));
  pen.textBaseline = "middle";
  const style = (/** @type {boolean} */ on) => {
    pen.font = `${on ? "600 " : ""}${size}px ${colours.font}`;
    pen.fillStyle = on ? colours.text : colours.faint;
  };
  pen.textAlign = "right";
  frame.rows.forEach((dest, i) => {
    const on = at?.dest === dest;
    if (i % every && !on) return;
    style(on);
    pen.fillText(`${places ? `${dest} ` : ""}${word(tokens, dest)}`, frame.x - 6, frame.y + (i + 0.5) * frame.cell);
  });
  pen.textAlign = "left";
  frame.cols.forEach((src, j) => {
    const on = at?.src === src;
    if (j % every && !on) return;
    const row = frame.rows.findIndex((dest) => dest >= src);
    if (row < 0) return;
    style(on);
    pen.save();
    pen.translate(frame.x + (j + 0.55) * frame.cell, frame.y + row * frame.cell - 4);
    pen.rotate(-Math.PI / 4);
    pen.fillText(`${word(tokens, src)}${places ? ` ${src}` : ""}`, 0, 0);
    pen.restore();
  });
}

/**
 * A frame around a cell, and faint lines from it to its words.
 * @param {CanvasRenderingContext2D} pen
 * @param {Frame} frame
 * @param {Cell | null} at
 * @param {{ colour: string, lines: boolean }} how
 */
export function paintMark(pen, frame, at, { colour, lines }) {
  if (!at) return;
  const [i, j] = [frame.rows.indexOf(at.dest), frame.cols.indexOf(at.src)];
  if (i < 0 || j < 0) return;
  const [x, y, size] = [frame.x + j * frame.cell, frame.y + i * frame.cell, Math.max(4, frame.cell - 1)];
  pen.strokeStyle = colour;
  if (lines) {
    const row = Math.max(0, frame.rows.findIndex((dest) => dest >= at.src));
    pen.lineWidth = 1;
    pen.globalAlpha = 0.35;
    pen.beginPath();
    pen.moveTo(frame.x, y + size / 2);
    pen.lineTo(x, y + size / 2);
    pen.moveTo(x + size / 2, y);
    pen.lineTo(x + size / 2, frame.y + row * frame.cell);
    pen.stroke();
    pen.globalAlpha = 1;
  }
  pen.lineWidth = 2;
  pen.strokeRect(x - 0.5, y - 0.5, size + 1, size + 1);
}

/** Small weights stay visible: ink is the square root. @param {number} weight */
function strength(weight) {
  return Math.sqrt(Math.min(1, Math.max(0, weight)));
}

/**
 * @param {readonly string[]} tokens
 * @param {number} at
 */
function word(tokens, at) {
  return short(visible(tokens[at] ?? ""), 12);
}
