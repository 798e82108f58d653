// Which two? At the left the page's own prompt, at the right another prompt, model, method, or a store's circuit.
import { fill, h } from "../../lib/dom.js";
import { select } from "../../lib/controls.js";
import { short, visible } from "../../lib/tokens.js";

/** @typedef {import("../../lib/model.js").Model} Model */

/** @type {[string, string][]} */
const METHODS = [
  ["", "ACC++"],
  ["svt", "SVT"],
];
/** @type {[string, string][]} */
const THROUGH = [
  ["", "through MLPs"],
  ["heads", "end at MLPs"],
];

/** What the address says goes into a field when it changes; what was typed since stays through other redraws. @param {HTMLInputElement | HTMLTextAreaElement} field @param {string} text */
function put(field, text) {
  if (field.dataset.put === text) return;
  field.dataset.put = text;
  field.value = text;
}

/** @param {Model} model the answer that the left one is traced for, as the page's own fields have it */
function answerOf(model) {
  const { target, against } = model.get("place");
  const known = [...(model.get("run")?.predictions ?? []), ...(model.get("tokens") ?? [])];
  const text = (/** @type {number} */ id) => visible(known.find((one) => one.id === id)?.text ?? `token ${id}`);
  const names = (/** @type {number[]} */ ids) => ids.map(text).join(", ");
  return `why ${target.length ? names(target) : "the likeliest answer"}${against.length ? ` against ${names(against)}` : ""}?`;
}

/** @param {Model} model @param {HTMLElement} left @param {HTMLElement} right @returns {() => void} draws the form, and leaves what is being typed */
export function asked(model, left, right) {
  const prompt = h("textarea", {
    rows: 2,
    "aria-label": "The other prompt",
    placeholder: "Another prompt, or none: the same",
    spellcheck: "false",
  });
  const name = h("input", {
    type: "text",
    class: "model",
    list: "keyhole-models",
    "aria-label": "The other model",
    placeholder: "same model",
    spellcheck: "false",
    autocomplete: "off",
  });
  const word = (/** @type {string} */ label, /** @type {string} */ hint) =>
    h("input", { type: "text", class: "word", "aria-label": label, placeholder: hint, spellcheck: "false", autocomplete: "off" });
  const [target, against] = [word("Its answer", "its answer: likeliest"), word("Against", "against: none")];
  const go = () =>
    model.send({
      type: "ask",
      slot: "comparison",
      change: {
        "b.prompt": prompt.value.trim(),
        "b.model": name.value.trim(),
        "b.target": target.value.trim(),
        "b.against": against.value.trim(),
        "b.store": "",
        "b.index": "",
        compared: "1",
        term: "",
      },
    });
  for (const one of [prompt, target, against])
    one.addEventListener("keydown", (event) => {
      if (!(event instanceof KeyboardEvent) || event.key !== "Enter" || event.shiftKey) return;
      event.preventDefault();
      go();
    });
  const button = h("button", { type: "button", class: "go", "data-action": "compare", onclick: go }, "Compare");
  const options = h("div", { class: "line-of" });
  const stored = h("p", { class: "of-store" });
  const answers = h("div", { class: "line-of" }, target, against);
  fill(right, stored, prompt, answers, h("div", { class: "line-of" }, name, options, button));
  return () => {
    const place = model.get("place");
    const { own } = place;
    const change = (/** @type {string} */ key) => (/** @type {string} */ value) =>
      model.send({ type: "own", change: { [key]: value, compared: own.compared ?? "" } });
    const how = (/** @type {string} */ side) => [
      select("method", METHODS, own[`${side}.method`] ?? "", change(`${side}.method`)),
      select("MLPs", THROUGH, own[`${side}.through`] ?? "", change(`${side}.through`)),
    ];
    const fromStore = place.traced === "stored";
    fill(
      left,
      h("p", { class: "said-prompt", title: "Edit it in the bar above" }, short(place.prompt, 160)),
      h("p", { class: "line-of soft", title: "Change it beside the answers of the Attention tab" }, fromStore ? "" : answerOf(model)),
      h(
        "div",
        { class: "line-of" },
        h("span", { class: "soft" }, place.model ?? "organism"),
        fromStore ? h("span", { class: "soft" }, `${own.store}, prompt ${own.index}`) : how("a"),
      ),
    );
    put(prompt, own["b.prompt"] ?? "");
    put(name, own["b.model"] ?? "");
    put(target, own["b.target"] ?? "");
    put(against, own["b.against"] ?? "");
    fill(options, how("b"));
    stored.hidden = !own["b.index"];
    fill(stored, `Prompt ${own["b.index"]} of ${own["b.store"]}; type another prompt to compare with that.`);
  };
}
