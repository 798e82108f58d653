// How is each kind of writer drawn, and each side of an edge? Never by colour alone: kinds differ by shape, sides by
// dash.
import { h, s } from "../../../lib/dom.js";

/** @typedef {import("../graph.js").MarkKind} MarkKind */

/** @type {[MarkKind, string][]} */
const KINDS = [
  ["head", "head, at the token it writes to"],
  ["mlp", "MLP"],
  ["embedding", "word"],
  ["mixer", "mixer"],
  ["bias", "bias"],
  ["rounding", "rounded away"],
  ["offset", "constant"],
  ["sinks", "folded"],
  ["group", "group"],
  ["target", "answer"],
];
/** @type {[string, string][]} */
const SIDES = [
  ["dest", "dest: what a head looks for"],
  ["src", "src: what it finds"],
  ["value", "value: what it moves"],
  ["mlp", "into an MLP"],
  ["target", "into the answer"],
];

/** @type {Record<string, string>} */
const SHAPE = {
  offset: "offset",
  mlp_offset: "offset",
  value_offset: "offset",
  bias: "bias",
  rounding: "offset",
  sinks: "fold",
  constants: "fold",
};

/**
 * The outline of a kind, around the origin.
 * @param {MarkKind} kind @param {number} w @param {number} h_
 */
export function outline(kind, w, h_) {
  const [x, y] = [w / 2, h_ / 2];
  const shape = SHAPE[kind] ?? kind;
  if (shape === "embedding" && w <= 16) return s("circle", { class: "shape", r: x });
  if (shape === "head" || shape === "embedding")
    return s("rect", { class: "shape", x: -x, y: -y, width: w, height: h_, rx: y });
  if (shape === "mlp") return s("rect", { class: "shape", x: -x, y: -y, width: w, height: h_, rx: 2 });
  if (shape === "bias") return s("path", { class: "shape", d: `M0 ${-y}L${x} ${y}H${-x}Z` });
  if (shape === "offset") return s("path", { class: "shape", d: `M0 ${-y}L${x} 0L0 ${y}L${-x} 0Z` });
  if (shape === "target") return s("path", { class: "shape", d: `M${-x} ${-y}H${x}V${y}H${-x}L${-x + 6} 0Z` });
  const cut = shape === "mixer" ? 7 : 4; // six or eight corners
  const sides =
    shape === "mixer"
      ? [
          [-x + cut, -y],
          [x - cut, -y],
          [x, 0],
          [x - cut, y],
          [-x + cut, y],
          [-x, 0],
        ]
      : [
          [-x + cut, -y],
          [x - cut, -y],
          [x, -y + cut],
          [x, y - cut],
          [x - cut, y],
          [-x + cut, y],
          [-x, y - cut],
          [-x, -y + cut],
        ];
  return s("path", { class: "shape", d: `M${sides.map(([a, b]) => `${a} ${b}`).join("L")}Z` });
}

/**
 * What all shapes and lines mean: those that are in this circuit.
 * @param {Set<string>} kinds @param {Set<string>} sides
 * @param {{ measure: string, attached: boolean, negative: boolean }} has signals beside what suffices; edges below 0
 */
export function legend(kinds, sides, { measure, attached, negative }) {
  const shown = KINDS.filter(
    ([kind]) => kinds.has(kind) || (kind === "offset" && [...kinds].some((one) => one.endsWith("_offset"))),
  );
  return h(
    "ul",
    { class: "legend", "aria-label": "Legend" },
    shown.map(([kind, text]) => h("li", null, sample(kind), text)),
    SIDES.filter(([side]) => sides.has(side)).map(([side, text]) => h("li", null, line(side, 2.4), text)),
    attached && h("li", null, line("dest attached", 1), "faint: why a head looks there, no part of what suffices"),
    negative && h("li", null, h("b", { class: "minus" }, "−"), "holds the answer back"),
    h("li", { class: "faint" }, `wider: more ${measure}`),
  );
}

/** @param {string} look @param {number} width */
function line(look, width) {
  const path = s("path", { class: `edge ${look}`, d: "M1 6H33", "stroke-width": width });
  return s("svg", { width: 34, height: 12, "aria-hidden": "true" }, path);
}

/** @param {MarkKind} kind */
function sample(kind) {
  const small = kind === "bias" || kind === "rounding" || kind === "offset" || kind === "embedding";
  const [w, text] = small ? [13, ""] : [30, kind === "head" ? "9.6" : kind === "mlp" ? "mlp" : ""];
  return s(
    "svg",
    { width: 34, height: 18, viewBox: "-17 -9 34 18", "aria-hidden": "true" },
    s(
      "g",
      { class: `mark ${kind}` },
      outline(kind, w, small ? 11 : 15),
      text && s("text", { class: "name", y: 3.6, "font-size": 11 }, text),
    ),
  );
}
