// How is the attention touched? A click asks why, a drag moves, Ctrl and the wheel zoom, keys do all of it.
import { cellAt, fit, moved } from "./frame.js";

/** @typedef {import("./frame.js").Frame} Frame */
/** @typedef {import("./frame.js").Zoom} Zoom */
/** @typedef {import("./frame.js").Tokens} Tokens */
/** @typedef {import("./paint.js").Cell} Cell */

/**
 * @param {HTMLCanvasElement} canvas
 * @param {{ zoom: Zoom | null, tokens: Tokens, frame: Frame | null, cursor: Cell | null }} seen
 * @param {{ paint: () => void, open: (cell: Cell) => void,
 *   zoomBy: (by: number, down?: number, right?: number) => void }} does
 */
export function pointer(canvas, seen, does) {
  /** @type {{ x: number, y: number, zoom: Zoom, far: boolean } | null} */
  let drag = null;
  canvas.addEventListener("pointerdown", (event) => {
    drag = { x: event.offsetX, y: event.offsetY, zoom: seen.zoom ?? fit(seen.tokens), far: false };
    canvas.setPointerCapture(event.pointerId);
  });
  canvas.addEventListener("pointermove", (event) => {
    if (drag && seen.frame && Math.hypot(event.offsetX - drag.x, event.offsetY - drag.y) > 5) {
      drag.far = true;
      const [down, right] = [
        drag.y - event.offsetY,
        drag.x - event.offsetX,
      ].map((d) => Math.round(d / (seen.frame?.cell ?? 1)));
      seen.zoom = moved(drag.zoom, seen.tokens, down, right);
    }
    seen.cursor = seen.frame ? cellAt(seen.frame, event.offsetX, event.offsetY) : null;
    canvas.style.cursor = seen.cursor ? "pointer" : "default";
    does.paint();
  });
  canvas.addEventListener("pointerup", (event) => {
    const cell = seen.frame ? cellAt(seen.frame, event.offsetX, event.offsetY) : null;
    if (cell && !drag?.far) does.open(cell);
    drag = null;
  });
  canvas.addEventListener("pointerleave", () => {
    seen.cursor = null;
    does.paint();
  });
  canvas.addEventListener(
    "wheel",
    (event) => {
      if (!event.ctrlKey && !event.metaKey) return; // a plain wheel scrolls the page
      event.preventDefault();
      const side = (seen.frame?.cell ?? 1) * (seen.zoom ?? fit(seen.tokens)).span;
      const share = (/** @type {number} */ d) => Math.min(1, Math.max(0, d / side));
      does.zoomBy(
        event.deltaY > 0 ? 1.25 : 0.8,
        share(event.offsetY - (seen.frame?.y ?? 0)),
        share(event.offsetX - (seen.frame?.x ?? 0)),
      );
    },
    { passive: false },
  );
}

/**
 * @param {HTMLCanvasElement} canvas
 * @param {{ tokens: Tokens, cursor: Cell | null }} seen
 * @param {{ paint: () => void, open: (cell: Cell) => void, start: () => Cell }} does
 */
export function keys(canvas, seen, does) {
  canvas.addEventListener("keydown", (event) => {
    const steps = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };
    const step = steps[/** @type {keyof typeof steps} */ (event.key)];
    const now = seen.cursor ?? does.start();
    if (event.key === "Enter" || event.key === " ") does.open(now);
    else if (!step) return;
    event.preventDefault();
    if (!step) return;
    const next = (/** @type {number[]} */ among, /** @type {number} */ value, /** @type {number} */ by) =>
      among[Math.min(among.length - 1, Math.max(0, nearest(among, value) + by))];
    const dest = next(seen.tokens.rows, now.dest, step[0]);
    const src = next(seen.tokens.cols, now.src, step[1]);
    if (src <= dest) seen.cursor = { dest, src };
    does.paint();
  });
}

/**
 * @param {number[]} among
 * @param {number} value
 */
function nearest(among, value) {
  const found = among.findIndex((t) => t >= value);
  return found < 0 ? among.length - 1 : found;
}
