// Which heads are worth a look? Layers up, heads across; a cell's ink is the chosen measure.

import { h, s, clear } from "../lib/dom.js";
import { number } from "../lib/format.js";

const PITCH = 26; // of cells, in the drawing's own units
const GAP = 3;

/** What the map can show; `top` is the value that is full ink, null: the largest there is. */
export const MEASURES = [
  { key: "strongest", label: "Strongest", top: 1, says: "largest weight on a token other than the first" },
  { key: "entropy", label: "Entropy", top: null, says: "mean entropy of its attention, in nats" },
  { key: "sink", label: "Sink", top: 1, says: "mean share that rests on the first token" },
  { key: "sparsity", label: "S(v)", top: null, says: "effective share of channels at its strongest firing: low is sparse" },
];

/** @typedef {import("../lib/model.js").Model} Model */
/** @typedef {Record<string, (number | null)[][]> & { layers: number, heads: number }} Heads */

/**
 * Keys: `heads`, `place`. Sends `{type: "open-head", layer, head}` and `{type: "measure", measure}`.
 * @param {{ model: Model, el: HTMLElement }} where
 */
function render({ model, el }) {
  const map = h("div", { class: "map" });
  const told = h("p", { class: "told", "aria-live": "polite" });
  const chosen = h("div", { class: "segments", role: "radiogroup", "aria-label": "What the map shows" });
  el.append(chosen, map, told);
  /** @type {{ layer: number, head: number } | null} */
  let cursor = null;

  const say = () => {
    const heads = /** @type {Heads | null} */ (model.get("heads"));
    const at = cursor ?? of(model.get("place"));
    told.textContent = heads ? (at ? describe(heads, at.layer, at.head) : hint(model.get("place").measure)) : "";
  };

  const draw = () => {
    const heads = /** @type {Heads | null} */ (model.get("heads"));
    const place = model.get("place");
    segments(chosen, place.measure, (measure) => send(model, { type: "measure", measure }));
    const focused = map.contains(document.activeElement);
    clear(map);
    if (heads) {
      const picture = cells(heads, place);
      listen(picture, {
        hover: (at) => {
          cursor = at;
          say();
        },
        open: (at) => send(model, { type: "open-head", ...at }),
        start: () => of(model.get("place")) ?? { layer: 0, head: 0 },
        size: heads,
      });
      map.append(picture, legend(heads, place.measure));
      if (focused) picture.focus();
    }
    say();
  };
  model.on("change:heads", draw);
  model.on("change:place", draw);
  draw();
  return () => {
    model.off("change:heads", draw);
    model.off("change:place", draw);
  };
}

export default { render };

/**
 * @param {Model} model
 * @param {object} content
 */
function send(model, content) {
  model.send(content);
}

/**
 * @param {{ layer: number | null, head: number | null }} place
 */
function of(place) {
  return place.layer === null || place.head === null ? null : { layer: place.layer, head: place.head };
}

/** @param {string} measure */
function hint(measure) {
  return MEASURES.find((m) => m.key === measure)?.says ?? "";
}

/**
 * @param {HTMLElement} box
 * @param {string} now
 * @param {(measure: string) => void} pick
 */
function segments(box, now, pick) {
  const focused = box.contains(document.activeElement);
  clear(box);
  for (const { key, label, says } of MEASURES) {
    const on = key === now;
    const button = h("button", { type: "button", role: "radio", "aria-checked": String(on), title: says, "data-measure": key }, label);
    button.addEventListener("click", () => pick(key));
    box.append(button);
    if (on && focused) button.focus();
  }
}

/**
 * @param {Heads} heads
 * @param {string} measure
 */
function scale(heads, measure) {
  const facts = MEASURES.find((m) => m.key === measure) ?? MEASURES[0];
  const values = (heads[facts.key] ?? []).flat().filter((v) => v !== null);
  return { values: heads[facts.key] ?? [], top: facts.top ?? Math.max(1e-9, ...values) };
}

/**
 * @param {Heads} heads
 * @param {import("../url.js").Place} place
 */
function cells(heads, place) {
  const { values, top } = scale(heads, place.measure);
  const [width, height] = [22 + heads.heads * PITCH, heads.layers * PITCH + 14];
  const picture = s("svg", {
    viewBox: `0 0 ${width} ${height}`,
    class: "heads",
    role: "application",
    tabindex: "0",
    "aria-label": `${heads.layers} layers of ${heads.heads} heads. Arrow keys move, Enter opens a head.`,
  });
  picture.style.maxWidth = `${Math.max(220, width * 1.35)}px`;
  for (let layer = 0; layer < heads.layers; layer++) {
    const y = (heads.layers - 1 - layer) * PITCH;
    picture.append(s("text", { x: 16, y: y + PITCH / 2 + 2, class: "tick", "text-anchor": "end" }, String(layer)));
    for (let head = 0; head < heads.heads; head++) {
      const value = values[layer]?.[head] ?? null;
      const box = { x: 22 + head * PITCH, y, width: PITCH - GAP, height: PITCH - GAP, rx: 3 };
      const on = place.layer === layer && place.head === head;
      picture.append(
        s("rect", { ...box, class: "paper" }),
        s(
          "rect",
          { ...box, class: `ink${on ? " on" : ""}`, "fill-opacity": ink(value, top), "data-layer": layer, "data-head": head },
          s("title", {}, describe(heads, layer, head)),
        ),
      );
      if (on) picture.append(s("rect", { ...box, class: "chosen" }));
    }
  }
  for (let head = 0; head < heads.heads; head++) {
    const x = 22 + head * PITCH + (PITCH - GAP) / 2;
    picture.append(s("text", { x, y: height - 3, class: "tick", "text-anchor": "middle" }, String(head)));
  }
  return picture;
}

/**
 * @param {number | null} value
 * @param {number} top
 */
function ink(value, top) {
  return value === null ? 0 : Math.min(1, Math.max(0, value / top)).toFixed(3);
}

/**
 * @param {Heads} heads
 * @param {string} measure
 */
function legend(heads, measure) {
  const { top } = scale(heads, measure);
  const steps = [0, 0.25, 0.5, 0.75, 1].map((t) =>
    s("rect", { x: t * 4 * 14, y: 0, width: 14, height: 8, class: "ink", "fill-opacity": t }),
  );
  return h("div", { class: "ramp" }, "0", s("svg", { viewBox: "0 0 70 8", width: 70, height: 8, "aria-hidden": "true" }, ...steps), number(top));
}

/**
 * @param {Heads} heads
 * @param {number} layer
 * @param {number} head
 */
function describe(heads, layer, head) {
  const value = (/** @type {string} */ key) => heads[key]?.[layer]?.[head] ?? null;
  const told = MEASURES.map(({ key, label }) => {
    const found = value(key);
    return `${label.toLowerCase() === "s(v)" ? "S(v)" : label.toLowerCase()} ${found === null ? "–" : number(found)}`;
  });
  return `head ${layer}.${head}: ${told.join(", ")}`;
}

/**
 * Pointer and keys on the map.
 * @param {SVGElement} picture
 * @param {{ hover: (at: { layer: number, head: number } | null) => void, open: (at: { layer: number, head: number }) => void,
 *   start: () => { layer: number, head: number }, size: Heads }} does
 */
function listen(picture, does) {
  const at = (/** @type {Event} */ event) => {
    const cell = event.target instanceof Element ? event.target.closest("[data-layer]") : null;
    return cell ? { layer: Number(cell.getAttribute("data-layer")), head: Number(cell.getAttribute("data-head")) } : null;
  };
  /** @type {{ layer: number, head: number } | null} */
  let keyed = null;
  picture.addEventListener("pointermove", (event) => does.hover(at(event)));
  picture.addEventListener("pointerleave", () => does.hover(null));
  picture.addEventListener("click", (event) => {
    const found = at(event);
    if (found) does.open(found);
  });
  picture.addEventListener("keydown", (event) => {
    const now = keyed ?? does.start();
    const [up, right] = { ArrowUp: [1, 0], ArrowDown: [-1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[event.key] ?? [0, 0];
    if (event.key === "Enter" || event.key === " ") does.open(now);
    else if (!up && !right) return;
    event.preventDefault();
    keyed = { layer: clamp(now.layer + up, does.size.layers), head: clamp(now.head + right, does.size.heads) };
    for (const old of picture.querySelectorAll(".cursor")) old.classList.remove("cursor");
    picture.querySelector(`[data-layer="${keyed.layer}"][data-head="${keyed.head}"]`)?.classList.add("cursor");
    does.hover(keyed);
  });
}

/**
 * @param {number} value
 * @param {number} count
 */
function clamp(value, count) {
  return Math.min(count - 1, Math.max(0, value));
}
