// What is known about what is pinned? A node with what causes it and what it causes, an edge with its channels, or a
// group.
import { channelParts, isAttached, isSink, isSufficient, isSvt, nodeLabel } from "../../../lib/circuit.js";
import { h } from "../../../lib/dom.js";
import { changes, WRITERS } from "../../../lib/edits.js";
import { count, number, share, signed } from "../../../lib/format.js";
import { amount, effectOf, shareOf } from "../../../lib/measured.js";
import { tokenMark } from "../../../lib/tokens.js";
import { channelBars, edgeList, factList, renamer } from "./lists.js";

/** @typedef {import("../graph.js").Indexed} Indexed */
/** @typedef {import("../graph.js").Mark} Mark */
/**
 * @typedef {object} Does
 * @property {(id: string, name: string) => void} rename @property {(ids: string[], name: string) => void} group
 * @property {(id: string) => void} ungroup
 * @property {(edge: number) => void} pick
 * @property {(node: number) => void} pin
 * @property {(edge: number) => void} expand
 * @property {(part: object) => string | null} [failed] why a part could not be edited; only where parts can be
 * @property {((content: any) => void) | null} send actions of a page with a model behind it
 */
/**
 * @typedef {{ graph: Indexed, names: import("./table.js").Names, verified: Record<string, Record<string, any>>,
 *   expanded: Set<number>, measuring: (edge: number) => HTMLElement | null, does: Does }} About
 */

/** @param {About} about @param {Mark[]} marks what is pinned */
export function markDetail(about, marks) {
  if (marks.length > 1) return severalDetail(about, marks);
  const [mark] = marks;
  const { graph, does } = about;
  const inside = new Set(mark.members);
  const into = mark.members
    .flatMap((node) => graph.into[node])
    .filter((edge) => !inside.has(graph.doc.edges[edge].from));
  const out = mark.members.flatMap((node) => graph.from[node]).filter((edge) => !inside.has(graph.doc.edges[edge].to));
  const one = mark.members.length === 1 && mark.kind !== "group";
  return h(
    "div",
    { class: "detail" },
    one ? nodeHead(about, mark) : groupHead(about, mark),
    h(
      "div",
      { class: "acts" },
      renamer(mark.label, (name) => does.rename(mark.id, name)),
      mark.kind === "group" && h("button", { type: "button", onclick: () => does.ungroup(mark.id) }, "Ungroup"),
      one && asks(graph, mark.members[0], does),
    ),
    one && WRITERS.has(mark.kind) && edited(does, { node: mark.members[0] }),
    edgeList(about, "Caused by", into, "from"),
    edgeList(about, "Causes", out, "to"),
  );
}

/** @param {About} about @param {Mark} mark */
function nodeHead({ graph }, mark) {
  const { doc } = graph;
  const index = mark.members[0];
  const node = doc.nodes[index];
  const traced = doc.firings.find((one) => one.node === index);
  const mlp = doc.mlps?.find((one) => one.node === index);
  /** @type {[string, string][]} */
  const facts = [];
  if (node.attention !== null) facts.push(["attention", number(node.attention)]);
  if (node.influence !== undefined && node.kind !== "target") facts.push(["of the answer", share(node.influence)]);
  facts.push(...measuredFacts(graph, "nodes", index));
  if (traced) facts.push([isSvt(doc) ? "fires from" : "explained down to", number(traced.tau)]);
  if (isSink(node)) facts.push(["sink", "it attends to the first token"]);
  if (node.leaf) facts.push(["not followed further", node.leaf]);
  if (mlp)
    facts.push(
      ["kept by its causes", share(mlp.kept)],
      ["left without them", share(mlp.left)],
      ["cancellation", number(mlp.cancellation)],
    );
  const neurons = mlp?.neurons
    .slice(0, 6)
    .map(([neuron, part]) => `${neuron} (${share(part)})`)
    .join(", ");
  const where =
    node.kind === "head"
      ? [tokenMark(doc.tokens, node.dest), " ← ", tokenMark(doc.tokens, node.src)]
      : [tokenMark(doc.tokens, node.dest)];
  return [
    h(
      "h3",
      null,
      h("span", { class: `swatch ${mark.kind}` }),
      nodeLabel(node, doc.tokens).split(" (")[0],
      " ",
      h("span", { class: "where" }, where),
    ),
    mark.named && h("p", { class: "given" }, mark.label),
    factList(facts),
    baselineOf(graph, "nodes", index),
    neurons && h("p", { class: "soft small" }, `Neurons: ${neurons}`),
  ];
}

/** @param {About} about @param {Mark} mark */
function groupHead({ graph, does }, mark) {
  const { doc } = graph;
  const names = mark.members.map((node) =>
    h(
      "li",
      null,
      h(
        "button",
        { type: "button", class: "plain", onclick: () => does.pin(node) },
        nodeLabel(doc.nodes[node], doc.tokens),
      ),
    ),
  );
  return [
    h("h3", null, h("span", { class: `swatch ${mark.kind}` }), mark.label),
    h("p", { class: "soft" }, count(mark.members.length, "node")),
    h("ul", { class: "members" }, names),
  ];
}

/** @param {About} about @param {Mark[]} marks */
function severalDetail({ does }, marks) {
  const ids = marks.filter((mark) => mark.kind !== "target").map((mark) => mark.id);
  const field = h("input", {
    type: "text",
    placeholder: "Name of the group",
    "aria-label": "Name of the group",
    maxlength: 60,
  });
  const make = (/** @type {Event} */ event) => {
    event.preventDefault();
    does.group(ids, field.value.trim() || `group of ${ids.length}`);
  };
  return h(
    "div",
    { class: "detail" },
    h("h3", null, `${marks.length} pinned`),
    h("p", { class: "soft" }, marks.map((mark) => mark.label || mark.kind).join(", ")),
    h(
      "form",
      { class: "acts", onsubmit: make },
      field,
      h("button", { type: "submit", disabled: ids.length < 2 }, "Group"),
    ),
  );
}

/** @param {About} about @param {number} index */
export function edgeDetail(about, index) {
  const { graph, names, does } = about;
  const { doc } = graph;
  const edge = doc.edges[index];
  const parts = channelParts(doc, edge);
  /** @type {[string, string][]} */
  const facts = [];
  const searched = isSufficient(doc) && !isAttached(doc, index); // its weight is its share
  if (searched) facts.push(["share", share(edge.weight)]);
  else facts.push([unit(doc, edge.side), edge.side === "target" ? signed(edge.weight) : number(edge.weight)]);
  facts.push(...measuredFacts(graph, "edges", index).filter(([name]) => !searched || name !== "share"));
  if (!isSvt(doc) && !searched) facts.push(["ig", number(edge.ig)], ["alone", number(edge.alone)]); // by svt nothing is removed
  if (edge.influence !== undefined) facts.unshift(["of the answer", share(edge.influence)]);
  const name = names[index];
  const end = (/** @type {number} */ node) =>
    h(
      "button",
      { type: "button", class: "plain", onclick: () => does.pin(node) },
      nodeLabel(doc.nodes[node], doc.tokens),
    );
  return h(
    "div",
    { class: "detail" },
    h("h3", null, h("span", { class: `side ${edge.side}` }, edge.side), " signal"),
    h("p", null, end(edge.from), " → ", end(edge.to)),
    name && h("p", { class: "given" }, name.text),
    isAttached(doc, index) && h("p", { class: "soft" }, "It says why the head looks there, and is no part of what suffices."),
    factList(facts),
    baselineOf(graph, "edges", index),
    measured(about.verified[index]),
    does.send &&
      (edge.side === "dest" || edge.side === "src") &&
      h(
        "div",
        { class: "acts" },
        about.measuring(index) ??
          h(
            "button",
            { type: "button", onclick: () => does.send?.({ type: "verify-edge", edge: index }) },
            "Remove and measure",
          ),
      ),
    edited(does, edge.side === "dest" || edge.side === "src" || edge.side === "mlp" ? { edge: index } : null),
    parts.length > 0 && channelBars(parts, about.expanded.has(index), () => does.expand(index)),
  );
}

/** @param {Indexed} graph @param {"nodes" | "edges"} what @param {number} index @returns {[string, string][]} */
function measuredFacts({ measured }, what, index) {
  const [effect, part] = [effectOf(measured, what, index), shareOf(measured, what, index)];
  /** @type {[string, string][]} */
  const facts = [];
  if (effect !== null) facts.push(["effect", amount(effect)]);
  if (part !== null) facts.push(["share", share(part)]);
  return facts;
}

/** @param {Indexed} graph @param {"nodes" | "edges"} what @param {number} index against what its effect was measured */
function baselineOf({ measured }, what, index) {
  if (!measured || effectOf(measured, what, index) === null) return null;
  return h("p", { class: "soft small" }, `Effect: what the ${measured.metric} loses with it at ${measured.baseline}.`);
}

/** @param {import("../../../lib/circuit.js").CircuitDocument} doc @param {string} side what the weight of an edge is */
function unit(doc, side) {
  if (side === "target") return doc.parameters.seeds === "given" ? "attention" : "logits";
  if (side !== "dest" && side !== "src") return "share of the write";
  return isSvt(doc) ? "contribution (equation 8)" : "attention lost";
}

/** @param {Record<string, any> | undefined} row what a removal did, beside what was predicted */
function measured(row) {
  const told = Object.entries(row ?? {}).filter(([, value]) => typeof value === "number");
  return (
    told.length > 0 &&
    h("div", null, h("h2", null, "Measured"), factList(told.map(([name, value]) => [name, number(value)])))
  );
}

/** @param {Does} does @param {object | null} part a part that can be edited */
function edited({ send, failed }, part) {
  return part && send && failed ? changes(part, send, failed(part)) : null;
}

/** @param {Indexed} graph @param {number} index @param {Does} does */
function asks(graph, index, does) {
  const { kind, layer, head, dest, src } = graph.doc.nodes[index];
  if (!does.send || kind !== "head") return null;
  return h(
    "button",
    { type: "button", onclick: () => does.send?.({ type: "open-firing", layer, head, dest, src }) },
    "Why here?",
  );
}
