// What is on the page? A heading, the tools, the drawing with its legend, and two panes beside it.
import { answerFacts, answerText, isSufficient, isSvt, modelLabel } from "../../lib/circuit.js";
import { h } from "../../lib/dom.js";
import { count } from "../../lib/format.js";
import { faithfulnessLine } from "../../lib/measured.js";
import { pane } from "../../lib/pane.js";
import { joined } from "../../lib/tokens.js";
import { drawing } from "./drawing/drawing.js";
import { help } from "./keys.js";
import { legend } from "./drawing/shapes.js";
import { edgeTable } from "./panes/table.js";
import { tools } from "./tools.js";

const LONG = 80; // tokens of a prompt that is shown whole

/** @typedef {import("./stage.js").Stage} Stage */
/** @typedef {import("../../lib/circuit.js").CircuitDocument} CircuitDocument */

/** @param {Stage} stage all of it, with the stage to hear what is touched */
export function frame(stage) {
  const { model, doc, graph } = stage;
  const accounted = doc.edges.some((edge) => edge.influence !== undefined);
  const measure = accounted ? "influence" : isSufficient(doc) ? "share" : isSvt(doc) ? "contribution" : "effect";
  const draw = drawing({
    hover: (id, link) => stage.hover(id, link),
    pin: (id, more) => stage.pin(id, more),
    pick: (link) => stage.pickLink(link),
    open: (gap) => stage.open(gap),
    // in a notebook the wheel scrolls, unless the drawing has the focus
    wheel: (event) =>
      event.ctrlKey ||
      event.metaKey ||
      document.body.classList.contains("keyhole-page") ||
      draw.el.contains(document.activeElement),
  });
  const table = edgeTable({
    hover: (edge) => stage.lightEdge(edge),
    pick: (edge) => stage.pick(edge),
    sort: (sort) => stage.change({ sort }),
    expand: (edge) => stage.expand(edge),
  });
  const above = tools(toolEvents(stage), {
    theme: stage.state.get().theme,
    themes: model.get("themes") !== false,
    saves: model.get("saves") === true,
    sinks: graph.sinks,
    constants: graph.constants,
    attached: isSufficient(doc) ? graph.attached : null,
    measure,
  });
  const panes = { drawing: pane("Circuit", "drawing"), detail: pane("Story", "about"), table: pane("Edges", "table") };
  panes.drawing.body.append(draw.el);
  panes.drawing.el.append(legendOf(stage, measure));
  panes.table.body.append(table.el);
  const list = help();
  const beside = h("div", { class: "beside" }, panes.detail.el, panes.table.el);
  const all = [
    heading(doc, model.get("left_out")),
    above.el,
    h("div", { class: "stage" }, panes.drawing.el, beside),
    list,
    footing(doc),
  ];
  return { draw, table, tools: above, panes, help: list, all };
}

/** @param {Stage} stage @returns {import("./tools.js").ToolEvents} */
function toolEvents(stage) {
  return {
    search: (query) => stage.finder.search(query),
    next: (back) => stage.finder.next(back),
    hide: (below) => stage.change({ below }, true),
    fold: (what) => stage.change({ [what]: !stage.picture[what] }, true),
    fit: () => stage.fit(),
    zoom: (factor) => stage.draw.camera.zoom(factor),
    theme: (theme) => stage.theme(theme),
    save: () => stage.model.send({ type: "save-page" }),
    help: () => stage.help.showModal(),
  };
}

/** @param {Stage} stage @param {string} measure */
function legendOf({ doc, graph }, measure) {
  const kinds = new Set(doc.nodes.map((node) => /** @type {string} */ (node.kind)));
  const sides = new Set(doc.edges.map((edge) => /** @type {string} */ (edge.side)));
  if (graph.sinks + graph.constants > 0) kinds.add("sinks");
  return legend(kinds.add("group"), sides, { measure, attached: graph.attached > 0, negative: heldBack(doc) });
}

/** @param {CircuitDocument} doc @param {string | undefined} left what a large circuit's page leaves out */
function heading(doc, left) {
  const explained = `${count(doc.firings.length, "firing")} explained`;
  const found = doc.parameters.found;
  const suffice = isSufficient(doc) ? `${count(found, "edge")} suffice, ${count(doc.edges.length - found, "signal")} attached` : "";
  const missed = doc.errors?.rounding ? `${(100 * doc.errors.rounding).toFixed(1)}% rounded away` : "";
  const facts = [answerFacts(doc), count(doc.tokens.length, "token"), suffice, explained, missed, left].filter(Boolean).join(" · ");
  const title = h("h1", null, modelLabel(doc), ": why ", h("q", null, answerText(doc)), "?");
  const prompt = promptOf(doc);
  return h(
    "header",
    { class: "title" },
    title,
    h("p", { class: "asked-of", title: joined(doc.tokens) }, prompt),
    h("p", { class: "soft" }, facts),
    doc.measured ? faithfulnessLine(doc.measured) : null,
  );
}

/** @param {CircuitDocument} doc do edges of what suffices hold the answer back? */
function heldBack(doc) {
  return isSufficient(doc) && doc.edges.slice(0, doc.parameters.found).some((edge) => edge.weight < 0);
}

/** @param {CircuitDocument} doc the prompt; of a long one both ends, as its end is what is answered */
function promptOf({ tokens }) {
  if (tokens.length <= LONG) return joined(tokens);
  return `${joined(tokens.slice(0, LONG / 2))} … ${joined(tokens.slice(-LONG / 2))}`;
}

/** @param {CircuitDocument} doc every choice that was made, and how exact the run is */
function footing(doc) {
  const errors = Object.entries(doc.errors).map(([name, value]) => [`error of ${name}`, value.toExponential(0)]);
  const told = [...Object.entries(doc.parameters), ...errors].flatMap(([name, value]) => {
    const text = Array.isArray(value) ? value.join(", ") : value;
    return text === null || text === "" ? [] : [`${name} ${text}`];
  });
  return h("details", { class: "footing" }, h("summary", null, "How it was traced"), h("p", null, told.join(" · ")));
}
