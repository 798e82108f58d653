// How is a card put away? By a cross that tells the host what.
import { h } from "../../lib/dom.js";

/** @param {import("../../lib/model.js").Model} model @param {object} wish what is sent */
export function cross(model, wish) {
  const does = () => model.send(wish);
  return h("button", { type: "button", class: "plain", "aria-label": "Close", title: "Close", onclick: does }, "×");
}
