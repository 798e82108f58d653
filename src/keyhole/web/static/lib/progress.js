// How far is it? A bar that stays in its place while it grows, so that its button can be hit.
import { h } from "./dom.js";

/** @typedef {import("./model.js").Model} Model */

/**
 * Shows the model's `busy[what]` as long as there is one; its button sends `{type: "cancel", what}`.
 * @param {Model} model @param {string} what
 */
export function progressBar(model, what) {
  const bar = h("progress", { "aria-label": "Progress" });
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
    const amount = known ? `${busy.done.toLocaleString("en")} of ${busy.total.toLocaleString("en")}` : "";
    told.textContent = busy.ahead ? `waiting for ${busy.ahead} before it` : amount;
  };
  model.on("change:busy", show);
  show();
  return h("div", { class: "waiting" }, bar, told, button);
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
