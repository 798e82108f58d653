// How does one choose, and wait? Segments, lists and numbers that tell what was chosen; progress that can be stopped.
import { h, keepingFocus } from "./dom.js";
import { amountOf, underWay } from "./progress.js";

/**
 * A few choices side by side.
 * @param {string} label @param {[string, string][]} choices value and text @param {string} now @param {(value: string) => void} pick
 */
export function segments(label, choices, now, pick) {
  return h(
    "div",
    { class: "segments", role: "radiogroup", "aria-label": label },
    choices.map(([value, text]) =>
      h(
        "button",
        {
          type: "button",
          role: "radio",
          "aria-checked": String(value === now),
          "data-choice": value,
          onclick: () => pick(value),
        },
        text,
      ),
    ),
  );
}

/**
 * @param {string} label @param {[string, string][]} choices @param {string} now @param {(value: string) => void} pick
 */
export function select(label, choices, now, pick) {
  const list = h(
    "select",
    { "aria-label": label },
    choices.map(([value, text]) => h("option", { value, selected: value === now }, text)),
  );
  list.addEventListener("change", () => pick(list.value));
  return h("label", { class: "field" }, h("span", null, label), list);
}

/**
 * @param {string} label @param {string} now @param {{ min: number, max: number, name: string }} how
 */
export function numberField(label, now, how) {
  return h(
    "label",
    { class: "field" },
    h("span", null, label),
    h("input", {
      type: "number",
      class: "few",
      value: now,
      min: how.min,
      max: how.max,
      name: how.name,
      "aria-label": label,
    }),
  );
}

/**
 * How far a question is, with a button that ends it; what went wrong; or nothing.
 * @param {import("./model.js").Model} model @param {string} what the slot @param {string} doing
 */
export function standing(model, what, doing) {
  const [busy, error] = [model.get("busy")?.[what], model.get("errors")?.[what]];
  if (error) return h("p", { class: "error", role: "alert" }, error);
  if (!busy) return null;
  return h(
    "div",
    { class: "waiting", "data-waiting": what },
    h("span", { class: "soft" }, underWay(busy, doing)),
    h("progress", { max: busy.total || 1, value: busy.total ? busy.done : null, "aria-label": underWay(busy, doing) }),
    h("span", { class: "faint number" }, amountOf(busy)),
    h(
      "button",
      { type: "button", "data-action": "cancel", onclick: () => model.send({ type: "cancel", what }) },
      "Cancel",
    ),
  );
}

/**
 * Calls `draw` now and whenever one of these keys changes. What had the focus has it again, by its label.
 * @param {import("./model.js").Model} model @param {string[]} keys @param {() => void} draw @returns {() => void} ends it
 */
export function watch(model, keys, draw) {
  const anew = () => keepingFocus(draw);
  for (const key of keys) model.on(`change:${key}`, anew);
  draw();
  return () => keys.forEach((key) => model.off(`change:${key}`, anew));
}
