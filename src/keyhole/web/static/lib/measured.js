// What was measured of a circuit? Effects and shares against a baseline, and how much of the answer it carries.
import { h } from "./dom.js";
import { share } from "./format.js";

/** @typedef {(number | null)[]} Values null: not measured, or a constant */
/**
 * @typedef {object} Faithfulness
 * @property {number} kept @property {number} cut
 * @property {number[]} rest @property {number[]} random @property {number[]} others
 * @property {number} rank @property {number} edges @property {number} of
 */
/**
 * @typedef {object} Measured as in a circuit's file
 * @property {string} baseline @property {"logit difference" | "log-probability"} metric
 * @property {number} everything @property {number} nothing
 * @property {Values} words @property {Values} nodes @property {Values} edges
 * @property {Values} node_shares @property {Values} edge_shares
 * @property {Faithfulness | null} faithfulness
 * @property {string} note
 */

/**
 * What is known of a circuit: what its document has, or what a page measured since.
 * @param {import("./model.js").Model} model @param {{ measured?: Measured }} doc @returns {Measured | null}
 */
export function measuredOf(model, doc) {
  return model.get("measured") ?? doc.measured ?? null;
}

/** @param {Measured | null} found @param {"nodes" | "edges"} what @param {number} index what the answer loses without it */
export function effectOf(found, what, index) {
  return found?.[what][index] ?? null;
}

/** @param {Measured | null} found @param {"nodes" | "edges"} what @param {number} index its part of the answer's gap */
export function shareOf(found, what, index) {
  const part = found?.[what === "nodes" ? "node_shares" : "edge_shares"][index] ?? null;
  const gap = found ? found.everything - found.nothing : 0;
  return part === null || gap === 0 ? null : part / gap;
}

/** @param {number | null | undefined} x in logits or nats: +8.29 */
export function amount(x) {
  if (x === null || x === undefined || !Number.isFinite(x)) return "";
  const text = Math.abs(x) < 0.005 ? "0.00" : Math.abs(x).toFixed(2);
  return text === "0.00" ? text : `${x > 0 ? "+" : "\u2212"}${text}`;
}

/** @param {Measured} found how much of the answer these edges carry, in one line, with its baseline */
export function faithfulnessLine(found) {
  const at = `Baseline: ${found.baseline}, where the ${found.metric} is ${amount(found.nothing)} instead of ${amount(found.everything)}.`;
  const why = found.note ? `Note: ${found.note}.` : "";
  const parts = found.faithfulness ? facts(found.faithfulness) : [];
  return h(
    "p",
    { class: "faithful", "aria-label": "Faithfulness" },
    h("b", null, "Faithfulness "),
    parts.length ? null : h("span", null, "not measured. "),
    parts.flatMap(([name, value, title], index) => [
      index > 0 && h("span", { class: "faint" }, " · "),
      h("span", { title, "data-fact": name }, `${name} `, h("span", { class: "value" }, value)),
    ]),
    h("span", { class: "soft" }, [parts.length ? "." : "", at, why].filter(Boolean).join(" ")),
  );
}

/** @param {Faithfulness} found @returns {[string, string, string][]} name, value, and what it is */
function facts({ kept, cut, rest, random, others, rank, edges, of }) {
  const size = `${edges.toLocaleString("en")} of ${of.toLocaleString("en")} edges`;
  /** @type {[string, string, string][]} */
  const all = [
    ["kept", share(kept), `left of the answer’s gap to the baseline with these ${size} alone`],
    ["cut", share(cut), "left of the gap without these edges"],
  ];
  if (rest.length) all.push(["rest", `${share(mean(rest))} ± ${share(spread(rest))}`, "with them and a random half of all other edges"]);
  if (random.length) all.push(["random", share(mean(random)), "with as many random edges in their place"]);
  all.push(["rank", String(rank), "of the answer among all tokens, with these edges alone"]);
  if (others.length) all.push([`kept on ${others.length} other prompts`, share(middle(others)), "the median over prompts of the same task"]);
  all.push(["size", size, "token by token"]);
  return all;
}

/** @param {number[]} values */
function mean(values) {
  return values.reduce((sum, value) => sum + value, 0) / values.length;
}

/** @param {number[]} values */
function spread(values) {
  return Math.sqrt(mean(values.map((value) => (value - mean(values)) ** 2)));
}

/** @param {number[]} values */
function middle(values) {
  const sorted = [...values].sort((a, b) => a - b);
  const half = Math.floor(sorted.length / 2);
  return sorted.length % 2 ? sorted[half] : (sorted[half - 1] + sorted[half]) / 2;
}
