// Where is that head? What a search finds comes into sight, even if it was hidden.
import { drawn, matches, reached } from "./graph.js";

/** @typedef {import("./stage.js").Stage} Stage */

/** @param {Stage} stage */
export function finder(stage) {
  /** @type {string[]} */
  let hits = [];
  let hit = -1;
  const tag = () => stage.draw.tag("sought", new Set(hits));

  /** @param {string} query by head, kind, word or name; those in sight first, the strongest first */
  function search(query) {
    const everything = drawn(stage.graph, { ...stage.state.get(), below: 0 });
    const all = everything.marks.filter((mark) => matches(stage.doc, mark, query));
    const shown = new Set(stage.picture.marks.map((mark) => mark.id));
    const hidden = all.filter((mark) => !shown.has(mark.id)).length;
    all.sort((a, b) => Number(shown.has(b.id)) - Number(shown.has(a.id)) || b.strength - a.strength);
    hits = all.map((mark) => mark.id);
    hit = -1;
    stage.tools.found(query.trim() ? `${all.length} found${hidden ? `, ${hidden} hidden` : ""}` : "");
    tag();
  }

  /** @param {boolean} back */
  function next(back) {
    if (!hits.length) return;
    hit = (hit + (back ? -1 : 1) + hits.length) % hits.length;
    go(stage, hits[hit], false);
    stage.change({ pinned: [hits[hit]], edge: null });
    tag();
  }
  return { search, next };
}

/** @param {Stage} stage @param {string} id it comes into sight @param {boolean} [focus] */
export function go(stage, id, focus = true) {
  if (!stage.lay.boxes.has(id) && /^n\d+$/.test(id)) {
    stage.state.set({ below: showing(stage, Number(id.slice(1))) });
    stage.redraw();
  }
  const box = stage.lay.boxes.get(id);
  if (box) stage.draw.camera.reveal(box.x, box.y);
  if (focus) stage.draw.focus(id);
}

/**
 * @param {Stage} stage
 * @param {number} node the strongest cut that still shows it: halving, as what is shown only grows
 */
function showing({ graph, picture }, node) {
  const cuts = [0, ...graph.strength.filter((one) => one < picture.below)].sort((a, b) => a - b);
  let [low, high] = [0, cuts.length - 1];
  while (low < high) {
    const middle = Math.ceil((low + high) / 2);
    if (reached(graph, cuts[middle], picture).nodes.has(node)) low = middle;
    else high = middle - 1;
  }
  return cuts[low];
}
