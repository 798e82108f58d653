// Which heads tell a contrast's keys apart? Heads by share, their queries and keys, and what swapping features moves.
import { fill, h } from "../lib/dom.js";
import { numberField, segments, select, standing, watch } from "../lib/controls.js";
import { cloudOf } from "./contrasts/cloud.js";
import { headBars } from "./contrasts/heads.js";
import { withoutFeature } from "./contrasts/none.js";
import { swapsOf } from "./contrasts/swaps.js";

/** @typedef {import("../lib/model.js").Model} Model */

/** @type {[string, string][]} */
const WHAT = [
  ["lists", "Lists"],
  ["boxes", "Boxes"],
];
/** @type {[string, string][]} */
const FEATURES = [
  ["both", "order and lexical"],
  ["order", "order"],
  ["lexical", "lexical"],
  ["reflexive", "reflexive"],
];
/** @type {Record<string, string>} */
const SAYS = {
  lists: "By what does a head find the items of the kind asked for?",
  boxes:
    "By what does a head find the box of the thing asked about: its place in the order told, the thing, or the box?",
};

/**
 * Keys: `contrast`, `place`, `busy`, `errors`. Sends `{type: "ask", slot, change}`, `{type: "own", change}`,
 * `{type: "cancel", what}`.
 * @param {{ model: Model, el: HTMLElement }} into
 */
function render({ model, el }) {
  const [form, state, body] = [
    h("div", { class: "asking" }),
    h("div", { class: "state-line" }),
    h("div", { class: "contrast-body" }),
  ];
  fill(el, form, state, body);
  const draw = () => {
    const { own } = model.get("place");
    if (!form.contains(document.activeElement) || !form.firstChild) fill(form, asked(model));
    const waiting = standing(model, "contrast", "Studying heads");
    fill(state, waiting);
    const found = model.get("contrast");
    fill(body, found && !waiting ? told(found, own, (change) => model.send({ type: "own", change })) : null);
  };
  return watch(model, ["contrast", "place", "busy", "errors"], draw);
}

export default { render };

/** @param {Model} model */
function asked(model) {
  const { own } = model.get("place");
  const what = own.contrast || "lists";
  const pick = (/** @type {string} */ key) => (/** @type {string} */ value) => {
    /** @type {HTMLElement | null} */ (document.activeElement)?.blur();
    model.send({ type: "own", change: { [key]: value, studied: "", seen: "" } });
  };
  const fields = [
    numberField("samples", own.samples || "60", { min: 8, max: 2000, name: "samples" }),
    numberField("tests", own.tests || "30", { min: 8, max: 2000, name: "tests" }),
  ];
  const value = (/** @type {number} */ i) => String(fields[i].querySelector("input")?.value || "");
  const go = (/** @type {Event} */ event) => {
    /** @type {HTMLElement} */ (event.currentTarget).blur();
    model.send({
      type: "ask",
      slot: "contrast",
      change: { contrast: what, samples: value(0), tests: value(1), studied: "1", seen: "" },
    });
  };
  return [
    segments("Contrast", WHAT, what, pick("contrast")),
    what === "boxes" && select("feature", FEATURES, own.feature || "both", pick("feature")),
    ...fields,
    h("button", { type: "button", class: "go", "data-action": "contrast", onclick: go }, "Study"),
    h("span", { class: "soft says" }, `${SAYS[what]} On ${model.get("place").model ?? "organism"}.`),
  ];
}

/** @param {any} found @param {Record<string, string>} own @param {(change: Record<string, string>) => void} pick */
function told(found, own, pick) {
  const features = Object.keys(found.samples.given);
  const [head, feature] = chosen(found, own.seen ?? "", features);
  const see = (/** @type {string} */ h_, /** @type {string} */ f) => pick({ seen: `${h_}:${f}` });
  return [
    h(
      "p",
      { class: "verdict-line" },
      found.summary.split("\n").join(" "),
      found.selection_passed
        ? ""
        : h("span", { class: "missed" }, " No head passed the selection: the best ones are shown."),
    ),
    ...withoutFeature(found, head),
    h(
      "div",
      { class: "contrast-view" },
      h(
        "div",
        { class: "column" },
        features.map((name) => headBars(found, name, { head, feature }, see)),
      ),
      h("div", { class: "column" }, cloudOf(found, { head, feature }, see)),
      h("div", { class: "column" }, swapsOf(found, head)),
    ),
  ];
}

/** @param {any} found @param {string} seen head:feature, out of the address @param {string[]} features @returns {[string, string]} */
function chosen(found, seen, features) {
  const [head, feature] = seen.split(":");
  const known = found.selected.includes(head) ? head : (found.selected[0] ?? "");
  return [known, features.includes(feature) ? feature : features[0]];
}
