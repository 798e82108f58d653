// Which part of a drawing is seen? Wheel and pinch zoom, dragging pans; a move sets transforms and nothing else.
import { clamp } from "./scale.js";

/** @typedef {{ x: number, y: number, k: number }} Place of the drawing's origin, and its scale */
/** @typedef {{ x: number, y: number, width: number, height: number }} Extent */

/**
 * @param {SVGSVGElement} svg
 * @param {{ moved: (place: Place, zoomed: boolean) => void, margins: { left: number, right: number, top: number,
 *   bottom: number }, wheel: (event: WheelEvent) => boolean }} how
 */
export function camera(svg, how) {
  /** @type {Place} */
  let place = { x: 0, y: 0, k: 1 };
  let free = false; // has the user moved it?
  const least = 0.05;
  const most = 6;

  /** @param {Place} next @param {boolean} byUser */
  function set(next, byUser = true) {
    const zoomed = next.k !== place.k;
    place = next;
    free = byUser || free;
    how.moved(place, zoomed);
  }

  /** @param {number} factor @param {number} [x] @param {number} [y] in the element's pixels */
  function zoom(factor, x = svg.clientWidth / 2, y = svg.clientHeight / 2) {
    const k = clamp(place.k * factor, least, most);
    const by = k / place.k;
    set({ k, x: x - (x - place.x) * by, y: y - (y - place.y) * by });
  }

  /** @param {number} dx @param {number} dy */
  function pan(dx, dy) {
    set({ ...place, x: place.x + dx, y: place.y + dy });
  }

  /** @param {Extent} extent all of it is seen, no larger than it was drawn, or a little */
  function fit(extent) {
    const { left, right, top, bottom } = how.margins;
    const [w, h] = [Math.max(50, svg.clientWidth - left - right), Math.max(50, svg.clientHeight - top - bottom)];
    const k = clamp(Math.min(w / Math.max(1, extent.width), h / Math.max(1, extent.height)), least, 1.25);
    const x = left + (w - extent.width * k) / 2 - extent.x * k;
    set({ k, x, y: top + (h - extent.height * k) / 2 - extent.y * k }, false);
    free = false;
  }

  /** @param {number} x @param {number} y this point of the drawing comes to the middle, if it was out of sight */
  function reveal(x, y) {
    const { left, right, top, bottom } = how.margins;
    const [px, py] = [place.x + x * place.k, place.y + y * place.k];
    const inside =
      px > left + 20 && px < svg.clientWidth - right - 20 && py > top + 12 && py < svg.clientHeight - bottom - 12;
    if (!inside)
      set({
        ...place,
        x: (svg.clientWidth + left) / 2 - x * place.k,
        y: (svg.clientHeight - bottom) / 2 - y * place.k,
      });
  }

  const stop = pointers(svg, { pan, zoom, wheel: how.wheel });
  return { zoom, pan, fit, reveal, stop, place: () => place, free: () => free };
}

/** @typedef {ReturnType<typeof camera>} Camera */

/**
 * @param {SVGSVGElement} svg
 * @param {{ pan: (dx: number, dy: number) => void, zoom: (factor: number, x?: number, y?: number) => void, wheel:
 *   (event: WheelEvent) => boolean }} does
 */
function pointers(svg, does) {
  /** @type {Map<number, { x: number, y: number }>} */
  const down = new Map();
  let travelled = 0;
  const stopper = new AbortController();
  const { signal } = stopper;
  svg.addEventListener(
    "wheel",
    (event) => {
      if (!does.wheel(event)) return;
      event.preventDefault();
      const box = svg.getBoundingClientRect();
      const step = event.deltaMode === 1 ? 16 : 1;
      does.zoom(
        Math.exp(-clamp(event.deltaY * step, -120, 120) * 0.0022),
        event.clientX - box.left,
        event.clientY - box.top,
      );
    },
    { passive: false, signal },
  );
  svg.addEventListener(
    "pointerdown",
    (event) => {
      if (event.button !== 0) return;
      down.set(event.pointerId, { x: event.clientX, y: event.clientY });
      travelled = 0;
    },
    { signal },
  );
  svg.addEventListener(
    "pointermove",
    (event) => {
      const before = down.get(event.pointerId);
      if (!before) return;
      const after = { x: event.clientX, y: event.clientY };
      travelled += Math.hypot(after.x - before.x, after.y - before.y);
      // a click stays a click
      if (travelled > 4 && !svg.hasPointerCapture(event.pointerId)) svg.setPointerCapture(event.pointerId);
      if (down.size === 2) {
        const other = [...down.entries()].find(([id]) => id !== event.pointerId)?.[1] ?? before;
        const ratio =
          Math.hypot(after.x - other.x, after.y - other.y) /
          Math.max(1, Math.hypot(before.x - other.x, before.y - other.y));
        const box = svg.getBoundingClientRect();
        does.zoom(ratio, (after.x + other.x) / 2 - box.left, (after.y + other.y) / 2 - box.top);
      } else if (travelled > 4) does.pan(after.x - before.x, after.y - before.y);
      down.set(event.pointerId, after);
    },
    { signal },
  );
  for (const end of ["pointerup", "pointercancel"]) {
    svg.addEventListener(end, (event) => down.delete(/** @type {PointerEvent} */ (event).pointerId), { signal });
  }
  svg.addEventListener(
    "click",
    (event) => {
      if (travelled > 4) event.stopPropagation(); // the end of a drag is no click
      travelled = 0;
    },
    { capture: true, signal },
  );
  return () => stopper.abort();
}
