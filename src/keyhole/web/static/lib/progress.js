// How far is it? A bar that stays in its place while it grows, so that its button can be hit.
import { h } from "./dom.js";
import { count } from "./format.js";

/** @typedef {import("./model.js").Model} Model */

/** @typedef {import("../api.js").Progress} Progress */

/** @param {Progress} busy @param {string} doing what is being done now: this, or what must be done before it */
export function underWay(busy, doing) {
  if (!busy.ahead) return busy.what ?? doing;
  return busy.running === "load" ? "Loading a model" : `Waiting for ${count(busy.ahead, "request")} before this one`;
}

/** @param {Progress} busy how much of it is done, and how long the rest will take, where that is known */
export function amountOf(busy) {
  const { done = 0, total = 0, left } = busy;
  const time = left ? `, about ${left} left` : "";
  return total ? `${done.toLocaleString("en")} of ${total.toLocaleString("en")}${time}` : "";
}

/**
 * Shows the model's `busy[what]` as long as there is one; its button sends `{type: "cancel", what}`.
 * @param {Model} model @param {string} what @param {string} doing
 */
export function progressBar(model, what, doing) {
  const bar = h("progress", { "aria-label": "Progress" });
  const label = h("span", { class: "soft" });
  const told = h("span", { class: "faint number" });
  const cancel = () => model.send({ type: "cancel", what });
  const button = h("button", { type: "button", "data-action": "cancel", onclick: cancel }, "Cancel");
  const show = () => {
    const busy = model.get("busy")?.[what];
    if (!busy) return model.off("change:busy", show);
    const known = Boolean(busy.total);
    bar.max = known ? busy.total : 1;
    if (known) bar.value = busy.done;
    else bar.removeAttribute("value");
    label.textContent = underWay(busy, doing);
    told.textContent = amountOf(busy);
  };
  model.on("change:busy", show);
  show();
  return h("div", { class: "waiting", "data-waiting": what }, label, bar, told, button);
}

/**
 * Calls when something begins or ends to be busy, not whenever it is a little further.
 * @param {Model} model @param {string[]} what @param {() => void} draw
 * @returns {() => void} for change:busy
 */
export function whenBusy(model, what, draw) {
  const now = () => what.map((key) => Boolean(model.get("busy")?.[key])).join();
  let last = now();
  return () => {
    if (now() === last) return;
    last = now();
    draw();
  };
}
