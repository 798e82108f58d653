// Which part of a circuit is drawn? What hangs together with the answer by edges that are strong enough; folded,
// grouped.
import { CONSTANTS, isAttached, isSink, shortLabel, answerText, strengths } from "../../lib/circuit.js";
import { short, visible } from "../../lib/tokens.js";

/** @typedef {import("../../lib/circuit.js").CircuitDocument} CircuitDocument */
/** @typedef {import("../../lib/circuit.js").Side} Side */
/** @typedef {import("../../lib/circuit.js").Kind | "group" | "sinks" | "constants"} MarkKind */
/**
 * @typedef {object} Mark what is drawn as one thing: a node, or several
 * @property {string} id
 * @property {MarkKind} kind
 * @property {string} label
 * @property {number | null} layer
 * @property {number} dest
 * @property {number[]} members @property {number} strength @property {boolean} named did the user name it?
 */
/** @typedef {{ id: string, from: string, to: string, side: Side, strength: number, edges: number[] }} Link */
/**
 * @typedef {object} Drawn
 * @property {Mark[]} marks @property {Link[]} links
 * @property {number} nodes how many nodes are in the marks
 * @property {number} edges how many edges are shown
 * @property {boolean} sinks folded? @property {boolean} constants folded? @property {boolean} signals hidden?
 * @property {number} below
 */

const READABLE = { marks: 64, columns: 14 }; // so many can be read at once
const FEW = 16; // nodes: more than these are not hidden only to be drawn larger
const MANY = 60; // nodes: from here on sinks and constants begin folded

/** @param {CircuitDocument} doc everything about it that no view changes */
export function indexed(doc) {
  const strength = strengths(doc);
  /** @type {number[][]} */
  const into = doc.nodes.map(() => []);
  /** @type {number[][]} */
  const from = doc.nodes.map(() => []);
  doc.edges.forEach((edge, index) => {
    into[edge.to].push(index);
    from[edge.from].push(index);
  });
  for (const list of [...into, ...from]) list.sort((a, b) => strength[b] - strength[a]);
  const roots = doc.nodes.flatMap((node, index) => (node.kind === "target" || !from[index].length ? [index] : []));
  return {
    doc,
    strength,
    into,
    from,
    roots,
    measured: doc.measured ?? null,
    attached: doc.edges.filter((_, index) => isAttached(doc, index)).length,
    sinks: doc.nodes.filter(isSink).length,
    constants: doc.nodes.filter((n) => CONSTANTS.has(n.kind)).length,
  };
}

/** @typedef {ReturnType<typeof indexed>} Indexed */

/**
 * @param {Indexed} graph @param {import("./state.js").ViewState} view
 * @param {(marks: Mark[]) => boolean} [legible] can labels be read when these are drawn?
 * @returns {Drawn}
 */
export function drawn(graph, view, legible = () => true) {
  const many = graph.doc.nodes.length > MANY;
  const folds = { sinks: view.sinks ?? many, constants: view.constants ?? many, signals: view.signals ?? many };
  const below = view.below ?? readable(graph, view, folds, legible);
  const { nodes, edges } = reached(graph, below, folds);
  const marks = marksOf(graph, nodes, view, folds);
  /** @type {Map<number, string>} */
  const owner = new Map(
    marks.flatMap((mark) => mark.members.map((member) => /** @type {[number, string]} */ ([member, mark.id]))),
  );
  return { marks, links: linksOf(graph, edges, owner), nodes: nodes.size, edges: edges.length, ...folds, below };
}

/**
 * From the answer down, over edges that are strong enough; what folded sinks read is folded with them.
 * @param {Indexed} graph @param {number} below @param {{ sinks: boolean, signals: boolean }} folds
 */
export function reached(graph, below, folds) {
  const { doc, strength } = graph;
  const target = doc.nodes.findIndex((node) => node.kind === "target");
  const roots = graph.roots.filter(
    (root) => root === target || below <= 0 || graph.into[root].some((edge) => strength[edge] >= below),
  );
  const nodes = new Set(roots);
  const edges = [];
  const waiting = [...roots];
  for (let node = waiting.pop(); node !== undefined; node = waiting.pop()) {
    if (folds.sinks && isSink(doc.nodes[node])) continue;
    for (const edge of graph.into[node]) {
      if (strength[edge] < below) break; // the strongest come first
      if (folds.signals && isAttached(doc, edge)) continue;
      edges.push(edge);
      const source = doc.edges[edge].from;
      if (nodes.has(source)) continue;
      nodes.add(source);
      waiting.push(source);
    }
  }
  return { nodes, edges };
}

/**
 * The weakest cut that leaves no more than can be read: neither too many, nor too small.
 * @param {Indexed} graph @param {import("./state.js").ViewState} view
 * @param {{ sinks: boolean, constants: boolean, signals: boolean }} folds @param {(marks: Mark[]) => boolean} legible
 */
function readable(graph, view, folds, legible) {
  let last = 0.2;
  for (const below of [0, 0.001, 0.002, 0.003, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15]) {
    const { nodes } = reached(graph, below, folds);
    const shown = [...nodes].map((index) => graph.doc.nodes[index]).filter((node) => !folded(node, folds));
    const columns = new Set(shown.map((node) => node.dest));
    if (shown.length > READABLE.marks || columns.size > READABLE.columns) continue;
    if (shown.length < FEW && last < 0.2) break;
    last = below;
    if (legible(marksOf(graph, nodes, view, folds))) return below;
  }
  return last;
}

/**
 * @param {import("../../lib/circuit.js").CircuitNode} node
 * @param {{ sinks: boolean, constants: boolean }} folds
 * @returns {"sinks" | "constants" | null}
 */
function folded(node, folds) {
  if (folds.sinks && isSink(node)) return "sinks";
  return folds.constants && CONSTANTS.has(node.kind) ? "constants" : null;
}

/**
 * @param {Indexed} graph @param {Set<number>} nodes @param {import("./state.js").ViewState} view
 * @param {{ sinks: boolean, constants: boolean }} folds @returns {Mark[]}
 */
function marksOf(graph, nodes, view, folds) {
  const { doc } = graph;
  const groups = new Map(
    view.groups.flatMap((group) =>
      group.members.map((member) => /** @type {[number, import("./state.js").Group]} */ ([member, group])),
    ),
  );
  /** @type {Map<string, Mark>} */
  const marks = new Map();
  for (const index of [...nodes].sort((a, b) => a - b)) {
    const node = doc.nodes[index];
    const group = groups.get(index);
    const fold = group ? null : folded(node, folds);
    const id = group ? group.id : (fold ?? `n${index}`);
    const strength = graph.from[index].reduce((sum, edge) => sum + graph.strength[edge], 0);
    const before = marks.get(id);
    if (before) {
      before.members.push(index);
      before.strength += strength;
      if (group && (node.layer ?? 0) > (before.layer ?? 0))
        Object.assign(before, { layer: node.layer, dest: node.dest });
      continue;
    }
    const named = view.labels[id];
    const kind = group ? "group" : (fold ?? node.kind);
    const label = named ?? (group ? group.name : fold ? fold : nodeText(doc, index));
    const dest = fold === "constants" ? (doc.parameters.end ?? node.dest) : fold === "sinks" ? 0 : node.dest;
    marks.set(id, {
      id,
      kind,
      label,
      layer: fold ? null : node.layer,
      dest,
      members: [index],
      strength,
      named: named !== undefined,
    });
  }
  for (const mark of marks.values())
    if (mark.kind === "sinks" || mark.kind === "constants") mark.label = `${mark.members.length} ${mark.kind}`;
  return [...marks.values()];
}

/** @param {CircuitDocument} doc @param {number} index what stands in its shape; constants have no room */
function nodeText(doc, index) {
  const node = doc.nodes[index];
  if (node.kind === "target") return short(answerText(doc), 22);
  if (CONSTANTS.has(node.kind) || node.kind === "embedding") return "";
  return node.kind === "mixer" ? `mix ${node.layer}` : shortLabel(node);
}

/** @param {Indexed} graph @param {number[]} edges @param {Map<number, string>} owner @returns {Link[]} */
function linksOf(graph, edges, owner) {
  /** @type {Map<string, Link>} */
  const links = new Map();
  for (const index of edges) {
    const edge = graph.doc.edges[index];
    const [from, to] = [owner.get(edge.from), owner.get(edge.to)];
    if (from === undefined || to === undefined || from === to) continue;
    const id = `${from}>${to}:${edge.side}`;
    const link = links.get(id) ?? { id, from, to, side: edge.side, strength: 0, edges: [] };
    link.strength += graph.strength[index];
    link.edges.push(index);
    links.set(id, link);
  }
  return [...links.values()].sort((a, b) => a.strength - b.strength);
}

/**
 * Everything on a path through these marks, upwards and downwards.
 * @param {Drawn} picture @param {Iterable<string>} ids
 */
export function paths(picture, ids) {
  const marks = new Set(ids);
  const links = new Set();
  for (const [own, next] of /** @type {const} */ ([
    ["to", "from"],
    ["from", "to"],
  ])) {
    /** @type {Map<string, Link[]>} */
    const at = new Map();
    for (const link of picture.links) at.set(link[own], [...(at.get(link[own]) ?? []), link]);
    const waiting = [...ids];
    const seen = new Set(waiting);
    for (let id = waiting.pop(); id !== undefined; id = waiting.pop()) {
      for (const link of at.get(id) ?? []) {
        links.add(link.id);
        marks.add(link[next]);
        if (!seen.has(link[next])) waiting.push(link[next]);
        seen.add(link[next]);
      }
    }
  }
  return { marks, links };
}

/**
 * @param {CircuitDocument} doc
 * @param {Mark} mark
 * @param {string} query does a search find it? By head, kind, token or name
 */
export function matches(doc, mark, query) {
  const asked = query.trim().toLowerCase();
  if (!asked) return false;
  const words = mark.members.flatMap((index) => {
    const node = doc.nodes[index];
    const kind = CONSTANTS.has(node.kind) ? `${node.kind} constant` : node.kind;
    return [shortLabel(node), kind, visible(doc.tokens[node.dest]), visible(doc.tokens[node.src]), `${node.dest}:`];
  });
  const exact = /^(\d+\.\d+|mlp \d+)$/.test(asked);
  return [mark.label, ...words].some((word) =>
    exact ? word.toLowerCase() === asked : word.toLowerCase().includes(asked),
  );
}
