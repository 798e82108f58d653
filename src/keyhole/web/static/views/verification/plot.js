// Is what was measured what was predicted? A point per removal by kind, the diagonal, and grey points: random controls.
import { fill, h, s } from "../../lib/dom.js";
import { number } from "../../lib/format.js";
import { clamp, linear } from "../../lib/scale.js";
import { removalLabel } from "./rows.js";

const SIDE = 440;
const EDGE = { left: 44, bottom: 40, top: 10, right: 12 };
/** @type {Record<string, string>} */
const SAYS = { side: "a whole side of a firing", signal: "one signal", causes: "an MLP’s causes: what is left of its write", chain: "a chain through an MLP", random: "as many other channels of the same writers" };

/** @param {any} found @param {import("../../lib/circuit.js").CircuitDocument} circuit */
export function plot(found, circuit) {
  const [x, y] = [linear([0, 1], [EDGE.left, SIDE - EDGE.right]), linear([0, 1], [SIDE - EDGE.bottom, EDGE.top])];
  const at = (/** @type {number | null} */ value) => clamp(value ?? 0, -0.02, 1.03);
  const told = h("p", { class: "told", "aria-live": "polite" }, "Point at a removal.");
  const random = s("g", { class: "randoms" }, found.rows.flatMap((/** @type {any} */ row) => row.control_drops.map((/** @type {number} */ drop) => s("circle", { cx: x(at(row.predicted)), cy: y(at(row.before - drop)), r: 2.2, class: "random" }))));
  /** @type {Map<any, SVGElement>} */
  const points = new Map(found.rows.map((/** @type {any} */ row) => [row, shape(row, x(at(row.predicted)), y(at(row.after)))]));
  const light = (/** @type {any} */ row) => {
    for (const [own, point] of points) point.classList.toggle("lit", own === row);
    fill(told, row ? describe(row, circuit) : "Point at a removal.");
  };
  for (const [row, point] of points) {
    point.addEventListener("pointerenter", () => light(row));
    point.addEventListener("pointerleave", () => light(null));
  }
  const marks = s("g", null, [...points.values()]);
  const picture = s("svg", { class: "scatter large", viewBox: `0 0 ${SIDE} ${SIDE}`, role: "img", "aria-label": `Predicted against measured for ${found.rows.length} removals` }, axes(x, y), random, marks);
  return { el: h("figure", { class: "verified-plot" }, picture, told, key(found)), light };
}

/** @param {(v: number) => number} x @param {(v: number) => number} y */
function axes(x, y) {
  const ticks = [0, 0.25, 0.5, 0.75, 1].flatMap((t) => [
    s("line", { x1: x(t), y1: y(0), x2: x(t), y2: y(1), class: "axisline" }), s("line", { x1: x(0), y1: y(t), x2: x(1), y2: y(t), class: "axisline" }),
    s("text", { x: x(t), y: y(0) + 15, "text-anchor": "middle", class: "tick" }, t), s("text", { x: x(0) - 7, y: y(t) + 3, "text-anchor": "end", class: "tick" }, t),
  ]);
  return s("g", null, ticks, s("line", { x1: x(0), y1: y(0), x2: x(1), y2: y(1), class: "diagonal" }),
    s("text", { x: x(0.5), y: y(0) + 33, "text-anchor": "middle", class: "tick name" }, "predicted after the removal"),
    s("text", { transform: `translate(12 ${y(0.5)}) rotate(-90)`, "text-anchor": "middle", class: "tick name" }, "measured in the model"));
}

/** Kinds differ by shape, too. @param {any} row @param {number} cx @param {number} cy */
function shape(row, cx, cy) {
  const name = `point ${row.what}${row.agrees === false ? " missed" : ""}`;
  if (row.what === "side") return s("rect", { x: cx - 4, y: cy - 4, width: 8, height: 8, rx: 1, class: name });
  if (row.what === "causes" || row.what === "chain") return s("path", { d: `M${cx} ${cy - 5.4}L${cx + 5} ${cy + 3.6}H${cx - 5}Z`, class: name });
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
  const sample = (/** @type {string} */ what) => (what === "random" ? s("circle", { cx: 6, cy: 6, r: 2.2, class: "random" }) : shape({ what, agrees: true }, 6, 6));
  return h("ul", { class: "key" }, [...kinds, "random"].map((what) => h("li", null, s("svg", { viewBox: "0 0 12 12", width: 12, height: 12, "aria-hidden": "true" }, sample(what)), SAYS[what] ?? what)));
}
