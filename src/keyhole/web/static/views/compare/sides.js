// How do both look? The circuit's own view, twice, each with a model of its own; what only one has wears a mark.
import { answerFacts, answerText, modelLabel } from "../../lib/circuit.js";
import { h } from "../../lib/dom.js";
import { count } from "../../lib/format.js";
import { plain } from "../../lib/model.js";
import { setTheme } from "../../lib/theme.js";
import { visible } from "../../lib/tokens.js";
import circuit from "../circuit.js";
import { edgeTerm, marksOf, nodeTerm } from "./terms.js";

/** @typedef {import("../../lib/circuit.js").CircuitDocument} CircuitDocument */

/** @param {any} found a comparison with both documents */
export function sidesOf(found) {
  const sides = /** @type {const} */ (["a", "b"]).map((name) => {
    const doc = /** @type {CircuitDocument} */ (found[name]);
    const el = h("div", { class: "circuit-host" });
    const model = plain({
      circuit: doc,
      names: {},
      story: null,
      view: {},
      themes: false,
      marks: marksOf(doc, found.comparison.terms, name),
    });
    return { name, doc, el, model, leave: circuit.render({ model, el }) };
  });
  const parts = sides.map(({ name, doc, el }) => h("div", null, title(name, doc), el));
  return {
    parts,
    leave: () => sides.forEach((side) => side.leave?.()),
    /** @param {{ show: string, term: string | null, theme: import("../../lib/theme.js").Theme }} how */
    show: ({ show, term, theme }) =>
      sides.forEach(({ doc, el, model }) => {
        el.dataset.show = show;
        setTheme(el, theme);
        const next = term === null ? { pinned: [], edge: null } : looked(doc, term);
        const { pinned = [], edge = null } = model.get("view") ?? {};
        if (JSON.stringify([pinned, edge]) !== JSON.stringify([next.pinned, next.edge]))
          model.set("view", { ...model.get("view"), ...next });
      }),
  };
}

/** @param {"a" | "b"} name @param {CircuitDocument} doc */
function title(name, doc) {
  const facts = [
    modelLabel(doc),
    doc.parameters.through === "heads" ? "ends at MLPs" : null,
    `${count(doc.nodes.length, "node")}`,
    answerFacts(doc),
  ]
    .filter(Boolean)
    .join(" · ");
  return h(
    "header",
    null,
    h(
      "h4",
      null,
      h("span", { class: `dot ${name === "a" ? "left-only" : "right-only"}` }),
      h(
        "span",
        { class: "why-answer" },
        name === "a" ? "Left: why " : "Right: why ",
        h("q", null, answerText(doc)),
        contrastOf(doc),
        "?",
      ),
    ),
    h("p", { class: "faint" }, facts),
  );
}

/** @param {CircuitDocument} doc what the answer is held against, if anything */
function contrastOf(doc) {
  const others = doc.parameters.against_text ?? [];
  return others.length ? [" and not ", h("q", null, others.map(visible).join(", "))] : null;
}

/** @param {CircuitDocument} doc @param {string} term what of this circuit it is: nodes, or its strongest edge; channels stand after it in brackets */
function looked(doc, term) {
  const plainTerm = term.replace(/ \[\d+\]$/, "");
  const nodes = doc.nodes.flatMap((node, i) => (nodeTerm(node) === plainTerm ? [`n${i}`] : []));
  const edges = doc.edges.flatMap((edge, i) =>
    edgeTerm(doc, i) === plainTerm ? [{ i, strength: Math.abs(edge.influence ?? edge.weight) }] : [],
  );
  const best = edges.sort((x, y) => y.strength - x.strength)[0]?.i ?? null;
  return { pinned: nodes, edge: nodes.length ? null : best };
}
