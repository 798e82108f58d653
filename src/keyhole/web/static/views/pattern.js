// Where does a head attend? Every dest against every src; a cell is a firing that can be asked why.

import { fill, h } from "../lib/dom.js";
import { number } from "../lib/format.js";
import { tokenLabel } from "../lib/tokens.js";
import { cut, fit, loud, strongest, whole, zoomed } from "./pattern/frame.js";
import { keys, pointer } from "./pattern/hands.js";
import { look, paintCells, paintMark, paintWords } from "./pattern/paint.js";

/** @typedef {import("../lib/model.js").Model} Model */
/** @typedef {import("./pattern/frame.js").Pattern} Pattern */
/** @typedef {import("./pattern/frame.js").Frame} Frame */
/** @typedef {import("./pattern/paint.js").Cell} Cell */
/** @typedef {import("./pattern/frame.js").Zoom} Zoom */
/** @typedef {import("./pattern/frame.js").Tokens} Tokens */

const FOLDED = 48; // prompts longer than this begin folded
const MOST = 40; // rows of a folded one
const MARGIN = { left: 86, top: 64, right: 44, bottom: 6 };
const LISTED = 8;

/**
 * Keys: `run`, `pattern`, `place`. Sends `{type: "open-firing", layer, head, dest, src}`.
 * @param {{ model: Model, el: HTMLElement }} where
 */
function render({ model, el }) {
  const canvas = h("canvas", { tabindex: "0", role: "application" });
  const told = h("p", { class: "told", "aria-live": "polite" });
  const tools = h("div", { class: "attention-tools" });
  const list = h("div", { class: "firings" });
  const stage = h("div", { class: "attention-stage" }, canvas);
  el.append(tools, stage, told, list);

  /** @type {{ fold: boolean, zoom: Zoom | null, tokens: Tokens, frame: Frame | null, cursor: Cell | null }} */
  const seen = { fold: false, zoom: null, tokens: whole(0), frame: null, cursor: null };
  const pattern = () => /** @type {Pattern | null} */ (model.get("pattern"));
  const chosen = () => cellOf(model.get("place"));

  const paint = () => {
    const shown = pattern();
    stage.hidden = !shown;
    if (!shown) return wait();
    const zoom = seen.zoom ?? fit(seen.tokens);
    const pen = prepare(canvas, stage, zoom.span);
    const frame = layout(canvas, seen.tokens, zoom);
    seen.frame = frame;
    canvas.dataset.frame = [frame.x, frame.y, frame.cell].join(" "); // where cells lie, for whoever cannot see them
    const colours = look(el);
    const at = seen.cursor ?? chosen();
    paintCells(pen, shown, frame, colours);
    paintMark(pen, frame, chosen(), { colour: colours.mark, lines: true });
    paintMark(pen, frame, seen.cursor, { colour: colours.text, lines: true });
    paintWords(pen, model.get("run").tokens, frame, { colours, at, places: seen.fold });
    told.textContent = at ? describe(model, shown, at) : "Click a cell to ask why the head attends there.";
  };
  const wait = () => {
    if (!pattern()) told.textContent = model.get("errors").pattern ?? (
      model.get("busy").pattern ? "Reading the attention …" : ""
    );
  };
  const open = (/** @type {Cell} */ cell) => {
    const { layer, head } = model.get("place");
    model.send({ type: "open-firing", layer, head, ...cell });
  };
  const fold = (/** @type {boolean} */ on) => {
    const shown = pattern();
    seen.fold = on;
    seen.zoom = null;
    seen.tokens = shown ? (on ? loud(shown, MOST, chosen()) : whole(shown.size)) : whole(0);
    toolbar();
    paint();
  };
  const zoomBy = (/** @type {number} */ by, down = 0.5, right = 0.5) => {
    seen.zoom = zoomed(seen.zoom ?? fit(seen.tokens), seen.tokens, { by, down, right });
    paint();
  };
  const toolbar = () => {
    fill(tools);
    const shown = pattern();
    if (!shown) return;
    tools.append(
      h(
        "label",
        { class: "check" },
        box(seen.fold, fold),
        seen.fold ? `only the strongest (${seen.tokens.rows.length} of ${shown.size} rows)` : "only the strongest",
      ),
      h("span", { class: "spring" }),
      press("−", "Zoom out", () => zoomBy(1.5)),
      press("+", "Zoom in", () => zoomBy(1 / 1.5)),
      press("Fit", "Show all", () => fold(seen.fold)),
    );
  };
  const renew = () => {
    const shown = pattern();
    canvas.setAttribute("aria-label", shown ? "Attention: arrow keys move, Enter asks why." : "");
    seen.cursor = null;
    fold((shown?.size ?? 0) > FOLDED);
    listing(list, model, open);
  };

  pointer(canvas, seen, { paint, open, zoomBy });
  keys(canvas, seen, { paint, open, start: () => chosen() ?? { dest: (pattern()?.size ?? 1) - 1, src: 0 } });
  const sized = new ResizeObserver(paint);
  sized.observe(stage);
  const scheme = matchMedia("(prefers-color-scheme: dark)");
  scheme.addEventListener("change", paint);
  const moved = () => (seen.fold ? fold(true) : paint()); // what was chosen must be in sight
  const heard = /** @type {const} */ (
    [["change:pattern", renew], ["change:place", moved], ["change:theme", paint], ["change:busy", wait]]
  );
  for (const [name, does] of heard) model.on(name, does);
  renew();
  return () => {
    sized.disconnect();
    scheme.removeEventListener("change", paint);
    for (const [name, does] of heard) model.off(name, does);
  };
}

export default { render };

/** @param {{ dest: number | null, src: number | null }} place */
function cellOf(place) {
  return place.dest === null || place.src === null ? null : { dest: place.dest, src: place.src };
}

/**
 * The canvas, as large as the stage allows, in device pixels.
 * @param {HTMLCanvasElement} canvas
 * @param {HTMLElement} stage
 * @param {number} span
 */
function prepare(canvas, stage, span) {
  const room = Math.max(240, stage.clientWidth);
  const high = (stage.closest(".body")?.clientHeight ?? window.innerHeight) - MARGIN.top - 170; // what stands around it
  const side = Math.min(
    room - MARGIN.left - MARGIN.right,
    span * 30,
    Math.max(320, Math.min(high, window.innerHeight - 300)),
  );
  const [wide, tall] = [room, side + MARGIN.top + MARGIN.bottom];
  const dense = window.devicePixelRatio || 1;
  canvas.width = Math.round(wide * dense);
  canvas.height = Math.round(tall * dense);
  canvas.style.width = `${wide}px`;
  canvas.style.height = `${tall}px`;
  const pen = /** @type {CanvasRenderingContext2D} */ (canvas.getContext("2d"));
  pen.scale(dense, dense);
  return pen;
}

/**
 * @param {HTMLCanvasElement} canvas
 * @param {Tokens} tokens
 * @param {Zoom} zoom
 * @returns {Frame}
 */
function layout(canvas, tokens, zoom) {
  const side = parseFloat(canvas.style.height) - MARGIN.top - MARGIN.bottom;
  const spare = parseFloat(canvas.style.width) - MARGIN.left - MARGIN.right - side;
  return { ...cut(tokens, zoom), x: MARGIN.left + Math.max(0, spare / 2), y: MARGIN.top, cell: side / zoom.span };
}

/**
 * @param {Model} model
 * @param {Pattern} pattern
 * @param {Cell} at
 */
function describe(model, pattern, at) {
  const tokens = model.get("run").tokens;
  const weight = pattern.weights[at.dest * pattern.size + at.src];
  const tau = pattern.tau[at.dest];
  const fires = weight >= tau ? "fires" : "does not fire";
  const pair = `${tokenLabel(tokens, at.dest)} ← ${tokenLabel(tokens, at.src)}`;
  return `${pair}  ${number(weight)}, ${fires} (tau ${number(tau)})`;
}

/**
 * The strongest firings as buttons: for long prompts, and for those who do not see the canvas.
 * @param {HTMLElement} list
 * @param {Model} model
 * @param {(cell: Cell) => void} open
 */
function listing(list, model, open) {
  fill(list);
  const pattern = /** @type {Pattern | null} */ (model.get("pattern"));
  if (!pattern) return;
  const found = strongest(pattern, LISTED);
  const tokens = model.get("run").tokens;
  list.append(h("h3", {}, found.length ? "Strongest firings" : "This head fires on no token but the first."));
  for (const { dest, src, weight } of found) {
    const button = h(
      "button",
      { type: "button", class: "firing", "data-dest": dest, "data-src": src },
      h("b", {}, tokenLabel(tokens, dest)),
      " ← ",
      h("b", {}, tokenLabel(tokens, src)),
      h("span", { class: "number" }, number(weight)),
    );
    button.addEventListener("click", () => open({ dest, src }));
    list.append(button);
  }
}

/**
 * @param {boolean} on
 * @param {(on: boolean) => void} does
 */
function box(on, does) {
  const input = h("input", { type: "checkbox" });
  input.checked = on;
  input.addEventListener("change", () => does(input.checked));
  return input;
}

/**
 * @param {string} text
 * @param {string} title
 * @param {() => void} does
 */
function press(text, title, does) {
  const button = h("button", { type: "button", class: "small", title }, text);
  button.addEventListener("click", does);
  return button;
}
