// Does the circuit hold? What was predicted against what was measured, a point per removal, with its random controls.
import { h, s } from "../lib/dom.js";
import { count, number } from "../lib/format.js";
import { linear } from "../lib/scale.js";
import { said } from "./verification/causes.js";

/** @typedef {import("../lib/model.js").Model} Model */

const SIDE = 260;
const EDGE = { left: 38, bottom: 34, top: 8, right: 8 };

/** @param {any} found both parts, a sentence each */
export function summary(found) {
  const { agree, of } = found.arithmetic;
  const first = of
    ? `${agree} of ${count(of, "measured value")} equal the predicted ones.`
    : `${count(found.rows.length, "measured value")}; with this mode nothing is promised.`;
  return [
    h("p", { "data-met": agree, "data-of": of }, h("b", {}, "Arithmetic: "), h("span", { class: !of ? null : found.agrees ? "met" : "missed" }, first)),
    h("p", { "data-causes": found.causes.order.length }, h("b", {}, "Causes: "), said(found)),
  ];
}

/** @param {any} found @param {Model} model */
export function scatter(found, model) {
  const [x, y] = [linear([0, 1], [EDGE.left, SIDE - EDGE.right]), linear([0, 1], [SIDE - EDGE.bottom, EDGE.top])];
  const inside = (/** @type {number | null} */ v) => Math.min(1, Math.max(0, v ?? 0));
  const ticks = [0, 0.5, 1].flatMap((t) => [
    s("text", { x: x(t), y: y(0) + 13, "text-anchor": "middle", class: "tick" }, t),
    s("text", { x: x(0) - 6, y: y(t) + 3, "text-anchor": "end", class: "tick" }, t),
  ]);
  const points = found.rows.map((/** @type {any} */ row) => {
    const circuit = model.get("circuit");
    const node = circuit?.nodes?.[row.node];
    const name = node
      ? (node.kind === "head" ? `head ${node.layer}.${node.head}` : `${node.kind} ${node.layer ?? ""}`)
      : `node ${row.node}`;
    const random = row.control_drops.map(
      (/** @type {number} */ d) =>
        s("circle", { cx: x(inside(row.predicted)), cy: y(inside(row.before - d)), r: 1.6, class: "random" }),
    );
    const values = `before ${number(row.before)}, predicted ${number(row.predicted)}, measured ${number(row.after)}`;
    const title = `${name}, ${row.side}, ${row.what}: ${values}`;
    return [
      random,
      s(
        "circle",
        {
          cx: x(inside(row.predicted)),
          cy: y(inside(row.after)),
          r: 3.4,
          class: `point ${row.what}${row.agrees === false ? " missed" : ""}`,
        },
        s("title", {}, title),
      ),
    ].flat();
  });
  const picture = s(
    "svg",
    {
      class: "scatter",
      viewBox: `0 0 ${SIDE} ${SIDE}`,
      role: "img",
      "aria-label": `Predicted against measured for ${found.rows.length} removals`,
    },
    s("line", { x1: x(0), y1: y(0), x2: x(1), y2: y(1), class: "diagonal" }),
    s("line", { x1: x(0), y1: y(0), x2: x(1), y2: y(0), class: "axisline" }),
    s("line", { x1: x(0), y1: y(0), x2: x(0), y2: y(1), class: "axisline" }),
    ...ticks,
    ...points.flat(),
    s("text", { x: x(0.5), y: SIDE - 4, "text-anchor": "middle", class: "tick" }, "predicted"),
    s("text", { transform: `translate(10 ${y(0.5)}) rotate(-90)`, "text-anchor": "middle", class: "tick" }, "measured"),
  );
  return h("div", { class: "plot" }, picture, key(found));
}

/** @param {any} found */
function key(found) {
  const kinds = [...new Set(found.rows.map((/** @type {any} */ r) => r.what))];
  const says = /** @type {Record<string, string>} */ (
    {
      side: "a whole side of a firing",
      signal: "one signal",
      causes: "an MLP’s causes: what is left of its write",
      chain: "a chain through an MLP",
      random: "random controls",
    }
  );
  return h(
    "ul",
    { class: "key" },
    [...kinds, "random"].map(
      (what) =>
        h(
          "li",
          {},
          s(
            "svg",
            { viewBox: "0 0 10 10", width: 10, height: 10, "aria-hidden": "true" },
            s(
              "circle",
              { cx: 5, cy: 5, r: what === "random" ? 1.8 : 3.4, class: what === "random" ? "random" : `point ${what}` },
            ),
          ),
          says[String(what)] ?? String(what),
        ),
    ),
  );
}
