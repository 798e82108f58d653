// Is what was measured what was predicted? A point per removal by kind, the diagonal, and grey points: random controls.
import { fill, h, s } from "../../lib/dom.js";
import { number } from "../../lib/format.js";
import { clamp, linear } from "../../lib/scale.js";
import { removalLabel } from "./rows.js";

const SIDE = 440;
const EDGE = { left: 44, bottom: 40, top: 10, right: 12 };
/** @type {Record<string, string>} */
const SAYS = {
  side: "a whole side of a firing",
  signal: "one signal",
  causes: "an MLP’s causes: what is left of its write",
  chain: "a chain through an MLP",
  random: "as many other channels of the same writers",
};

/** @param {any} found @param {import("../../lib/circuit.js").CircuitDocument} circuit */
export function plot(found, circuit) {
  const [least, most] = span(found.rows);
  const [x, y] = [
    linear([least, most], [EDGE.left, SIDE - EDGE.right]),
    linear([least, most], [SIDE - EDGE.bottom, EDGE.top]),
  ];
  const at = (/** @type {number | null} */ value) => clamp(value ?? 0, least, most);
  const told = h("p", { class: "told", "aria-live": "polite" }, "Point at a removal.");
  const random = s(
    "g",
    { class: "randoms" },
    found.rows.flatMap((/** @type {any} */ row) =>
      row.control_drops.map((/** @type {number} */ drop) =>
        s("circle", { cx: x(at(row.predicted)), cy: y(at(row.before - drop)), r: 2.2, class: "random" }),
      ),
    ),
  );
  /** @type {Map<any, SVGElement>} */
  const points = new Map(
    found.rows.map((/** @type {any} */ row) => [row, shape(row, x(at(row.predicted)), y(at(row.after)))]),
  );
  const light = (/** @type {any} */ row) => {
    for (const [own, point] of points) point.classList.toggle("lit", own === row);
    fill(told, row ? describe(row, circuit) : "Point at a removal.");
  };
  for (const [row, point] of points) {
    point.addEventListener("pointerenter", () => light(row));
    point.addEventListener("pointerleave", () => light(null));
  }
  const marks = s("g", null, [...points.values()]);
  const picture = s(
    "svg",
    {
      class: "scatter large",
      viewBox: `0 0 ${SIDE} ${SIDE}`,
      role: "img",
      "aria-label": `Predicted against measured for ${found.rows.length} removals`,
    },
    axes(x, y, [least, most]),
    random,
    marks,
  );
  return { el: h("figure", { class: "verified-plot" }, picture, told, key(found)), light };
}

/** @param {any[]} rows attention is from 0 to 1; what is left of a write may be less than nothing @returns {[number, number]} */
function span(rows) {
  const all = rows
    .flatMap((row) => [
      row.predicted,
      row.after,
      ...row.control_drops.map((/** @type {number} */ drop) => row.before - drop),
    ])
    .filter((one) => one !== null);
  return [Math.floor(4 * clamp(Math.min(0, ...all), -1, 0)) / 4, Math.ceil(4 * clamp(Math.max(1, ...all), 1, 1.5)) / 4];
}

/** @param {(v: number) => number} x @param {(v: number) => number} y @param {[number, number]} ends */
function axes(x, y, [least, most]) {
  const steps = Array.from({ length: 1 + Math.round((most - least) * 4) }, (_, i) => least + i / 4);
  const ticks = steps.flatMap((t) => [
    s("line", { x1: x(t), y1: y(least), x2: x(t), y2: y(most), class: t === 0 ? "axisline zero" : "axisline" }),
    s("line", { x1: x(least), y1: y(t), x2: x(most), y2: y(t), class: t === 0 ? "axisline zero" : "axisline" }),
    s("text", { x: x(t), y: y(least) + 15, "text-anchor": "middle", class: "tick" }, number(t, 2)),
    s("text", { x: x(least) - 7, y: y(t) + 3, "text-anchor": "end", class: "tick" }, number(t, 2)),
  ]);
  const middle = (least + most) / 2;
  return s(
    "g",
    null,
    ticks,
    s("line", { x1: x(least), y1: y(least), x2: x(most), y2: y(most), class: "diagonal" }),
    s(
      "text",
      { x: x(middle), y: y(least) + 33, "text-anchor": "middle", class: "tick name" },
      "predicted after the removal",
    ),
    s(
      "text",
      { transform: `translate(12 ${y(middle)}) rotate(-90)`, "text-anchor": "middle", class: "tick name" },
      "measured in the model",
    ),
  );
}

/** Kinds differ by shape, too. @param {any} row @param {number} cx @param {number} cy */
function shape(row, cx, cy) {
  const name = `point ${row.what}${row.agrees === false ? " missed" : ""}`;
  if (row.what === "side") return s("rect", { x: cx - 4, y: cy - 4, width: 8, height: 8, rx: 1, class: name });
  if (row.what === "causes" || row.what === "chain")
    return s("path", { d: `M${cx} ${cy - 5.4}L${cx + 5} ${cy + 3.6}H${cx - 5}Z`, class: name });
  return s("circle", { cx, cy, r: 4, class: name });
}

/** @param {any} row @param {import("../../lib/circuit.js").CircuitDocument} circuit */
function describe(row, circuit) {
  const { reader, from } = removalLabel(row, circuit);
  return `${reader}, ${row.side}, without ${from}: ${number(row.before)} → predicted ${number(row.predicted)}, measured ${number(row.after)}; random ${number(row.control)}`;
}

/** @param {any} found */
function key(found) {
  const kinds = [...new Set(found.rows.map((/** @type {any} */ row) => String(row.what)))];
  const sample = (/** @type {string} */ what) =>
    what === "random" ? s("circle", { cx: 6, cy: 6, r: 2.2, class: "random" }) : shape({ what, agrees: true }, 6, 6);
  return h(
    "ul",
    { class: "key" },
    [...kinds, "random"].map((what) =>
      h(
        "li",
        null,
        s("svg", { viewBox: "0 0 12 12", width: 12, height: 12, "aria-hidden": "true" }, sample(what)),
        SAYS[what] ?? what,
      ),
    ),
  );
}
