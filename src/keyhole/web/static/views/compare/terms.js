// What has one circuit that the other lacks? Terms as the library spells them, and which nodes and edges they are.

/** @typedef {import("../../lib/circuit.js").CircuitDocument} CircuitDocument */
/** @typedef {import("../../lib/circuit.js").CircuitNode} CircuitNode */
/** @typedef {{ term: string, a: number, b: number, left: number | null, right: number | null, difference: number | null }} TermRow influences left and right */
/** @typedef {"heads" | "edges" | "channels"} Grain */

/** @param {CircuitNode} node a head, MLP or mixer without its tokens, as terms have it */
export function nodeTerm(node) {
  if (node.kind === "target") return "answer";
  if (node.kind === "head") return `${node.layer}.${node.head}`;
  if (node.kind === "embedding") return "embedding";
  return `${node.kind === "mlp" ? "MLP" : node.kind} ${node.layer}`;
}

/** @param {CircuitDocument} doc @param {number} index */
export function edgeTerm(doc, index) {
  const edge = doc.edges[index];
  const side = edge.side === "target" ? "" : ` ${edge.side}`;
  return `${nodeTerm(doc.nodes[edge.from])} -> ${nodeTerm(doc.nodes[edge.to])}${side}`;
}

/** @param {CircuitDocument} doc @param {Grain} kind how much of the answer goes through each term; channels have none of their own */
function influences(doc, kind) {
  /** @type {Map<string, number>} */
  const found = new Map();
  const add = (/** @type {string} */ term, /** @type {number | undefined} */ value) =>
    typeof value === "number" && found.set(term, (found.get(term) ?? 0) + value);
  if (kind === "heads") doc.nodes.forEach((node) => add(nodeTerm(node), node.influence));
  if (kind === "edges") doc.edges.forEach((edge, index) => add(edgeTerm(doc, index), edge.influence));
  return found;
}

/** @param {any} found @param {Grain} kind @returns {TermRow[]} what only one has comes first, then what matters more to one */
export function differences(found, kind) {
  const [left, right] = [influences(found.a, kind), influences(found.b, kind)];
  const rows = found.comparison.terms[kind].rows.map((/** @type {any} */ row) => {
    const [l, r] = [row.a ? (left.get(row.term) ?? null) : null, row.b ? (right.get(row.term) ?? null) : null];
    const known = (!row.a || l !== null) && (!row.b || r !== null); // circuits that end at MLPs have no influence
    return { ...row, left: l, right: r, difference: known ? (l ?? 0) - (r ?? 0) : null };
  });
  return rows.sort(
    (/** @type {TermRow} */ x, /** @type {TermRow} */ y) =>
      Math.abs(y.a - y.b) - Math.abs(x.a - x.b) || Math.abs(y.difference ?? 0) - Math.abs(x.difference ?? 0),
  );
}

/** @param {any} found how many terms are left only, shared, right only, at each granularity */
export function sums(found) {
  return Object.fromEntries(
    Object.entries(found.comparison.terms).map(([kind, terms]) => {
      const rows = /** @type {TermRow[]} */ (/** @type {any} */ (terms).rows);
      const both = rows.filter((row) => row.a && row.b).length;
      return [
        kind,
        {
          left: rows.filter((row) => row.a && !row.b).length,
          both,
          right: rows.filter((row) => row.b && !row.a).length,
          likeness: /** @type {any} */ (terms).likeness,
        },
      ];
    }),
  );
}

/**
 * Nodes and edges of one circuit that only it has, and those that both have. What terms leave out (words, constants) has no mark.
 * @param {CircuitDocument} doc @param {any} terms the comparison's @param {"a" | "b"} side
 */
export function marksOf(doc, terms, side) {
  const other = side === "a" ? "b" : "a";
  const only = side === "a" ? "left-only" : "right-only";
  const sets = (/** @type {any[]} */ rows) => ({
    alone: new Set(rows.filter((row) => row[side] && !row[other]).map((row) => row.term)),
    both: new Set(rows.filter((row) => row.a && row.b).map((row) => row.term)),
  });
  const [heads, edges] = [sets(terms.heads.rows), sets(terms.edges.rows)];
  const nodesIn = (/** @type {Set<string>} */ set) =>
    doc.nodes.flatMap((node, i) => (set.has(nodeTerm(node)) ? [i] : []));
  const edgesIn = (/** @type {Set<string>} */ set) =>
    doc.edges.flatMap((_, i) => (set.has(edgeTerm(doc, i)) ? [i] : []));
  return {
    [only]: { nodes: nodesIn(heads.alone), edges: edgesIn(edges.alone) },
    shared: { nodes: nodesIn(heads.both), edges: edgesIn(edges.both) },
  };
}
