// Which heads are worth a look? Layers up, heads across; a cell's ink is the chosen measure.
import { fill, h, s } from "../lib/dom.js";
import { number } from "../lib/format.js";
import { amountOf, underWay } from "../lib/progress.js";
import { clamp } from "../lib/scale.js";

const ROOM = { wide: 240, high: 300, most: 26, least: 7 }; // for all cells, and for one, in pixels: answers need room, too
const LEFT = 22; // for the layers' numbers

/** What the map can show; `top` is the value that is full ink, null: the largest there is. */
export const MEASURES = [
  { key: "attention", label: "Strongest", top: 1, says: "Weight of its strongest firing, the first token left out." },
  { key: "entropy", label: "Entropy", top: 1, says: "How evenly it attends: 0 is one token, 1 is all alike." },
  { key: "sink", label: "Sink", top: 1, says: "Share of its attention that rests on the first token." },
  { key: "sparsity", label: "S(v)", top: null, says: "Share of its channels that carry its strongest firing." },
];

/** @typedef {import("../lib/model.js").Model} Model */
/** @typedef {{ layer: number, head: number }} Head */
/** @typedef {Head & Record<string, number | null>} Facts */
/** @typedef {{ layers: number[], heads: Facts[] }} Heads layers that attend; every head of them */

/**
 * Keys: `heads`, `place`. Sends `{type: "open-head", layer, head}` and `{type: "measure", measure}`.
 * @param {{ model: Model, el: HTMLElement }} where
 */
function render({ model, el }) {
  const map = h("div", { class: "map" });
  const told = h("p", { class: "told", "aria-live": "polite" });
  const chosen = h("div", { class: "segments", role: "radiogroup", "aria-label": "What the map shows" });
  el.append(chosen, map, told);
  /** @type {Head | null} */
  let cursor = null;

  const say = () => {
    const heads = /** @type {Heads | null} */ (model.get("heads"));
    const at = cursor ?? headOf(model.get("place"));
    const facts = at && heads?.heads.find((f) => f.layer === at.layer && f.head === at.head);
    const busy = !heads && model.get("busy").heads;
    told.textContent = facts ? describe(facts) : busy ? `${underWay(busy, "Looking at heads")} … ${amountOf(busy)}` : "";
  };
  const draw = () => {
    const heads = /** @type {Heads | null} */ (model.get("heads"));
    const place = model.get("place");
    segments(chosen, place.measure, (measure) => model.send({ type: "measure", measure }));
    const focused = map.contains(document.activeElement);
    fill(map);
    if (heads) {
      const picture = cells(heads, place);
      listen(picture, {
        hover: (at) => {
          cursor = at;
          say();
        },
        open: (at) => model.send({ type: "open-head", ...at }),
        start: () => headOf(model.get("place")) ?? { layer: heads.layers[0], head: 0 },
        layers: heads.layers,
        width: widthOf(heads),
      });
      map.append(picture, legend(heads, place.measure));
      if (focused) picture.focus();
    }
    say();
  };
  model.on("change:heads", draw);
  model.on("change:place", draw);
  model.on("change:busy", say);
  draw();
  return () => {
    model.off("change:heads", draw);
    model.off("change:place", draw);
    model.off("change:busy", say);
  };
}

export default { render };

/** @param {{ layer: number | null, head: number | null }} place */
function headOf(place) {
  return place.layer === null || place.head === null ? null : { layer: place.layer, head: place.head };
}

/** @param {Heads} heads */
function widthOf(heads) {
  return 1 + Math.max(0, ...heads.heads.map((f) => f.head));
}

/** @param {HTMLElement} box @param {string} now @param {(measure: string) => void} pick */
function segments(box, now, pick) {
  const focused = box.contains(document.activeElement);
  const buttons = MEASURES.map(({ key, label, says }) =>
    h(
      "button",
      {
        type: "button",
        role: "radio",
        "aria-checked": String(key === now),
        title: says,
        "data-measure": key,
        onclick: () => pick(key),
      },
      label,
    ),
  );
  fill(box, buttons);
  if (focused) buttons.find((b) => b.getAttribute("aria-checked") === "true")?.focus();
}

/** @param {string} measure */
function measured(measure) {
  return MEASURES.find((m) => m.key === measure) ?? MEASURES[0];
}

/** @param {Heads} heads @param {string} measure the value that is full ink */
function topOf(heads, measure) {
  const { key, top } = measured(measure);
  return top ?? Math.max(1e-9, ...heads.heads.map((f) => f[key] ?? 0));
}

/** @param {Heads} heads how far apart cells are */
function pitch(heads) {
  const [across, up] = [
    ROOM.wide / widthOf(heads),
    ROOM.high / heads.layers.length,
  ].map((x) => clamp(x, ROOM.least, ROOM.most));
  return { across, up, gap: Math.min(across, up) > 12 ? 3 : 1 };
}

/** @param {Heads} heads @param {import("../url.js").Place} place */
function cells(heads, place) {
  const [top, { key }] = [topOf(heads, place.measure), measured(place.measure)];
  const { across, up, gap } = pitch(heads);
  const [width, height] = [LEFT + widthOf(heads) * across, heads.layers.length * up + 14];
  const says = `${heads.layers.length} layers of ${widthOf(heads)} heads. Arrow keys move, Enter opens a head.`;
  const picture = s(
    "svg",
    { viewBox: `0 0 ${width} ${height}`, class: "heads", role: "application", tabindex: "0", "aria-label": says },
  );
  picture.style.maxWidth = `${width * 1.1}px`;
  const row = new Map(heads.layers.map((layer, i) => [layer, (heads.layers.length - 1 - i) * up]));
  const every = (/** @type {number} */ i, /** @type {number} */ step) => i % Math.ceil(11 / step) === 0;
  heads.layers.forEach((layer, i) => {
    if (every(i, up)) picture.append(
      s("text", { x: LEFT - 5, y: (row.get(layer) ?? 0) + up / 2 + 2, class: "tick", "text-anchor": "end" }, layer)
    );
  });
  for (const facts of heads.heads) {
    const box = {
      x: LEFT + facts.head * across,
      y: row.get(facts.layer) ?? 0,
      width: across - gap,
      height: up - gap,
      rx: gap,
    };
    const ink = clamp((facts[key] ?? 0) / top, 0, 1).toFixed(3);
    const where = { "data-layer": facts.layer, "data-head": facts.head };
    picture.append(
      s("rect", { ...box, class: "cell" }),
      s("rect", { ...box, ...where, class: "ink", "fill-opacity": ink }, s("title", {}, describe(facts))),
    );
  }
  const at = heads.heads.find((f) => f.layer === place.layer && f.head === place.head);
  if (at) picture.append(
    s(
      "rect",
      {
        x: LEFT + at.head * across - 0.5,
        y: (row.get(at.layer) ?? 0) - 0.5,
        width: across - gap + 1,
        height: up - gap + 1,
        rx: gap,
        class: "chosen",
      },
    )
  );
  for (let head = 0; head < widthOf(heads); head++) {
    const x = LEFT + head * across + (across - gap) / 2;
    if (every(head, across)) picture.append(
      s("text", { x, y: height - 3, class: "tick", "text-anchor": "middle" }, head)
    );
  }
  return picture;
}

/** @param {Heads} heads @param {string} measure */
function legend(heads, measure) {
  const steps = [0, 0.25, 0.5, 0.75, 1].map(
    (t) => s("rect", { x: t * 56, y: 0, width: 14, height: 8, class: "ink", "fill-opacity": t }),
  );
  const ramp = s("svg", { viewBox: "0 0 70 8", width: 70, height: 8, "aria-hidden": "true" }, ...steps);
  return h(
    "div",
    { class: "ramp" },
    h("span", {}, measured(measure).says),
    h("span", { class: "scale" }, "0 ", ramp, ` ${number(topOf(heads, measure), 2)}`),
  );
}

/** @param {Facts} facts */
function describe(facts) {
  const name = (/** @type {string} */ label) => (label === "S(v)" ? label : label.toLowerCase());
  const told = MEASURES.map(({ key, label }) => `${name(label)} ${number(facts[key]) || "none"}`);
  return `head ${facts.layer}.${facts.head}: ${told.join(", ")}`;
}

/**
 * Pointer and keys on the map.
 * @param {SVGElement} picture
 * @param {{ hover: (at: Head | null) => void, open: (at: Head) => void, start: () => Head,
 *   layers: number[], width: number }} does
 */
function listen(picture, does) {
  const at = (/** @type {Event} */ event) => {
    const cell = event.target instanceof Element ? event.target.closest("[data-layer]") : null;
    return cell
      ? { layer: Number(cell.getAttribute("data-layer")), head: Number(cell.getAttribute("data-head")) }
      : null;
  };
  /** @type {Head | null} */
  let keyed = null;
  picture.addEventListener("pointermove", (event) => does.hover(at(event)));
  picture.addEventListener("pointerleave", () => does.hover(null));
  picture.addEventListener("click", (event) => {
    const found = at(event);
    if (found) does.open(found);
  });
  picture.addEventListener("keydown", (event) => {
    const now = keyed ?? does.start();
    const steps = { ArrowUp: [1, 0], ArrowDown: [-1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };
    const step = steps[/** @type {keyof typeof steps} */ (event.key)];
    if (event.key === "Enter" || event.key === " ") does.open(now);
    else if (!step) return;
    event.preventDefault();
    if (!step) return;
    const layer = does.layers[clamp(does.layers.indexOf(now.layer) + step[0], 0, does.layers.length - 1)];
    keyed = { layer, head: clamp(now.head + step[1], 0, does.width - 1) };
    for (const old of picture.querySelectorAll(".cursor")) old.classList.remove("cursor");
    picture.querySelector(`[data-layer="${keyed.layer}"][data-head="${keyed.head}"]`)?.classList.add("cursor");
    does.hover(keyed);
  });
}
