// Which circuit is behind this answer? A drawing to walk through, what is pinned beside it, and all edges as a table.
import { fill, h } from "../lib/dom.js";
import { Stage } from "./circuit/stage.js";

/** @typedef {import("../lib/model.js").Model} Model */

/** @param {{ model: Model, el: HTMLElement }} into */
function render({ model, el }) {
  el.classList.add("keyhole");
  let stop = () => {};
  const again = () => {
    stop();
    stop = show(model, el);
  };
  const keysOf = ["circuit", "names", "story", "verified"];
  for (const key of keysOf) model.on(`change:${key}`, again);
  again();
  return () => {
    for (const key of keysOf) model.off(`change:${key}`, again);
    stop();
    fill(el);
  };
}

/** @param {Model} model @param {HTMLElement} el one circuit, until another takes its place */
function show(model, el) {
  const doc = /** @type {import("../lib/circuit.js").CircuitDocument | null} */ (model.get("circuit"));
  if (!doc) {
    fill(el, h("p", { class: "soft" }, "There is no circuit yet."));
    return () => {};
  }
  const stage = new Stage(model, el, doc);
  return () => stage.stop();
}

export default { render };
