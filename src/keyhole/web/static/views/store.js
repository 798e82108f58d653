import { h } from "../lib/dom.js";
/** @param {{ model: import("../lib/model.js").Model, el: HTMLElement }} into */
function render({ el }) {
  el.append(h("p", null, "soon"));
}
export default { render };
