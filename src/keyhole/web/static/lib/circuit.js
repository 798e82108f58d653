// What is in a circuit's document, and how do its parts read? The document is the library's own, as in a .json file.
import { tokenLabel, visible } from "./tokens.js";

/**
 * @typedef {"embedding" | "head" | "mlp" | "bias" | "mixer" | "rounding" | "offset" | "mlp_offset" | "value_offset" | "target"}
 *   Kind
 */
/** @typedef {"dest" | "src" | "mlp" | "value" | "target"} Side */
/**
 * @typedef {object} CircuitNode
 * @property {Kind} kind @property {number | null} layer @property {number | null} head
 * @property {number} dest @property {number} src @property {number | null} attention
 * @property {number} [influence] @property {string | null} [leaf]
 */
/**
 * @typedef {object} CircuitEdge
 * @property {number} from @property {number} to @property {Side} side
 * @property {number} weight @property {number} ig @property {number} alone
 * @property {number[]} channels @property {number} [influence]
 */
/**
 * @typedef {{ kind: Kind, layer: number, head: number | null, src: number, channel: number, ig: number, after:
 *   number }} Removal
 */
/** @typedef {{ node: number, tau: number, visible: number, dest: Removal[], src: Removal[] }} Traced */
/**
 * @typedef {object} TracedMlp
 * @property {number} node @property {number} offset @property {number} left @property {number} left_renormed
 * @property {number} kept
 * @property {number} cancellation
 * @property {number[]} causes
 * @property {[number, number][]} neurons
 */
/**
 * @typedef {object} CircuitDocument
 * @property {Record<string, string>} model
 * @property {Record<string, any>} parameters
 * @property {Record<string, number>} errors
 * @property {string[]} tokens
 * @property {CircuitNode[]} nodes
 * @property {CircuitEdge[]} edges
 * @property {Traced[]} firings
 * @property {TracedMlp[]} [mlps]
 * @property {import("./measured.js").Measured} [measured]
 */

const ATTACHED = 0.15; // how strong signals are drawn beside the largest share
export const CONSTANTS = new Set(["bias", "offset", "mlp_offset", "value_offset"]);

/** @param {CircuitNode} node does this head attend to the first token, as heads with nothing to do often do? */
export function isSink(node) {
  return node.kind === "head" && node.src === 0 && node.dest > 0;
}

/** @param {CircuitNode} node who it is, without its token: 9.6, mlp 3 */
export function shortLabel(node) {
  if (node.kind === "head") return `${node.layer}.${node.head}`;
  if (node.kind === "mlp") return `mlp ${node.layer}`;
  if (node.kind === "embedding") return "word";
  if (node.kind === "target") return "answer";
  if (node.kind === "offset" || node.kind === "value_offset") return `constant of ${node.layer}.${node.head}`;
  return node.kind === "mlp_offset" ? `constant of mlp ${node.layer}` : `${node.kind} ${node.layer}`;
}

/** @param {CircuitNode} node @param {string[]} tokens in words: head 3.1 (14:to ← 2:Mary), mlp 2 (14:to) */
export function nodeLabel(node, tokens) {
  const where = tokenLabel(tokens, node.dest);
  if (node.kind === "head") return `head ${shortLabel(node)} (${where} ← ${tokenLabel(tokens, node.src)})`;
  return node.kind === "target" ? `answer at ${where}` : `${shortLabel(node)} (${where})`;
}

/** @param {CircuitNode} node @param {string[]} tokens for tables: 3.1 14:to←2:Mary, mlp 2 14:to */
export function tightLabel(node, tokens) {
  if (node.kind === "target") return "answer";
  const where = tokenLabel(tokens, node.dest, 12);
  return `${shortLabel(node)} ${node.kind === "head" ? `${where}←${tokenLabel(tokens, node.src, 12)}` : where}`;
}

/** @param {CircuitDocument} doc the model's name, without the folders that lead to a file of it */
export function modelLabel(doc) {
  const name = (doc.model.name ?? "a model").replace(/\/+$/, "");
  const parts = name.split("/");
  return parts.length > 2 || /^[.~/]|\.gguf$/.test(name) ? parts[parts.length - 1] : name;
}

/** @param {CircuitDocument} doc was it traced by the 2024 method, whose edges carry contributions? */
export function isSvt(doc) {
  return doc.parameters.method === "svt";
}

/** @param {CircuitDocument} doc was it searched for, as the smallest circuit that suffices? */
export function isSufficient(doc) {
  return doc.parameters.method === "sufficient";
}

/** @param {CircuitDocument} doc @param {number} edge does it say why a head looks there, and is no part of what suffices? */
export function isAttached(doc, edge) {
  return isSufficient(doc) && edge >= doc.parameters.found;
}

/** @param {CircuitDocument} doc what was traced: a word or some, the firings that a trace began with, a direction */
export function answerText(doc) {
  const texts = doc.parameters.target_text ?? [];
  if (!texts.length) {
    const [first, ...more] = doc.parameters.start ?? [];
    if (!first) return "this direction";
    const [layer, head, dest, src] = first;
    const text = nodeLabel({ kind: "head", layer, head, dest, src, attention: null }, doc.tokens);
    return more.length ? `${text} and ${more.length} more` : text;
  }
  if (doc.parameters.continuation) return texts.map(visible).join(" + "); // one after another
  const first = texts.slice(0, 3).map(visible).join(", ");
  return texts.length > 3 ? `${first} and ${texts.length - 3} more` : first;
}

/** @param {CircuitDocument} doc how likely it is, and against what it stands; nothing where that is not known */
export function answerFacts(doc) {
  const { target_probability: own = [], against_text: others = [], against_probability: rest = [] } = doc.parameters;
  const sum = (/** @type {number[]} */ all) => Number(all.reduce((a, b) => a + b, 0).toPrecision(3));
  const product = (/** @type {number[]} */ all) => Number(all.reduce((a, b) => a * b, 1).toPrecision(3));
  const against = others.length ? `against ${others.slice(0, 3).map(visible).join(", ")}` : "";
  const told = [
    own.length ? `probability ${doc.parameters.continuation ? product(own) : sum(own)}` : "",
    against + (against && rest.length ? ` (${sum(rest)})` : ""),
  ];
  return told.filter(Boolean).join(", ");
}

/**
 * What each channel of a signal does: its attribution, and by how much the weight falls when it goes, in the order
 *   of removal.
 * @param {CircuitDocument} doc @param {CircuitEdge} edge
 * @returns {{ channel: number, ig: number, drop: number }[]}
 */
export function channelParts(doc, edge) {
  const traced = doc.firings.find((one) => one.node === edge.to);
  const [reader, writer] = [doc.nodes[edge.to], doc.nodes[edge.from]];
  if (isSufficient(doc) && !isAttached(doc, doc.edges.indexOf(edge))) return []; // it is whole
  if (!traced || (edge.side !== "dest" && edge.side !== "src")) return [];
  let before = reader.attention ?? NaN;
  const parts = [];
  for (const one of traced[edge.side]) {
    const same =
      one.kind === writer.kind && one.layer === writer.layer && one.head === writer.head && one.src === writer.src;
    if (same) parts.push({ channel: one.channel, ig: one.ig, drop: before - one.after });
    before = one.after;
  }
  return parts;
}

/**
 * How strong is each edge, from 0 to 1? Its influence; where there is none, its drop, or its part of the largest
 *   into the answer. Of what suffices, its share; signals that are attached to it are thinner than that.
 * @param {CircuitDocument} doc
 */
export function strengths(doc) {
  if (isSufficient(doc)) {
    const size = (/** @type {CircuitEdge} */ edge) => Math.min(1, Math.abs(edge.weight));
    const top = Math.max(...doc.edges.slice(0, doc.parameters.found).map(size), 0);
    return doc.edges.map((edge, index) => (isAttached(doc, index) ? ATTACHED * top * size(edge) : size(edge)));
  }
  const first = doc.edges.reduce(
    (top, edge) => (edge.side === "target" ? Math.max(top, Math.abs(edge.weight)) : top),
    0,
  );
  const most = doc.edges.reduce(
    (top, edge) => (edge.side === "target" ? top : Math.max(top, Math.abs(edge.weight))),
    1,
  );
  return doc.edges.map((edge) => {
    if (typeof edge.influence === "number") return Math.abs(edge.influence);
    return Math.abs(edge.weight) / (edge.side === "target" ? first || 1 : most);
  });
}
