// What did it do? Attention before, predicted and measured on one line, the answers before and after beside each other.
import { h, s } from "../../lib/dom.js";
import { number, share } from "../../lib/format.js";
import { linear } from "../../lib/scale.js";
import { short, visible } from "../../lib/tokens.js";
import { cross } from "./close.js";

const ANSWERS = 4;
const TITLES = { remove: "Removed", boost: "Boosted", random: "Random channels removed" };

/** @typedef {import("../firing.js").Effect} Effect */
/** @typedef {import("../firing.js").Firing} Firing */
/** @typedef {{ id: number, text: string, probability: number }} Answer */

/** @param {import("../../lib/model.js").Model} model @param {Firing} firing @param {Effect} effect */
export function effectCard(model, firing, effect) {
  const close = cross(model, { type: "forget", id: effect.id });
  const card = h(
    "div",
    { class: "effect", "data-effect": effect.type },
    h(
      "div",
      { class: "across" },
      h("b", {}, TITLES[effect.type]),
      h("span", { class: "faint" }, effect.mode),
      h("span", { class: "spring" }),
      close,
    ),
  );
  if (effect.error) card.append(h("p", { class: "error", role: "alert" }, effect.error));
  else if (!effect.outcome) card.append(h("p", { class: "faint" }, "Running the model …"));
  else card.append(attention(firing, effect.outcome), numbers(effect.outcome), answers(effect.outcome));
  return card;
}

/** @param {Firing} firing @param {any} outcome */
function attention(firing, outcome) {
  const x = linear([0, 1], [2, 198]);
  const [before, predicted, after] = [outcome.before, outcome.predicted, outcome.after].map((v) => number(v));
  const says = `attention ${before}, predicted ${predicted}, measured ${after}`;
  const dot = (/** @type {number} */ at, /** @type {string} */ name, /** @type {string} */ title) =>
    s("circle", { cx: x(at), cy: 9, r: 4, class: name }, s("title", {}, `${title} ${number(at)}`));
  const random = /** @type {any[]} */ (outcome.controls ?? []).map(
    (c) =>
      s(
        "line",
        { x1: x(c.after), x2: x(c.after), y1: 4, y2: 14, class: "random" },
        s("title", {}, `random control ${number(c.after)}`),
      ),
  );
  return s(
    "svg",
    {
      class: "axis",
      viewBox: "0 0 200 18",
      role: "img",
      "aria-label": says,
    },
    s("line", { x1: x(0), x2: x(1), y1: 9, y2: 9, class: "ground" }),
    s("line", { x1: x(firing.tau), x2: x(firing.tau), y1: 1, y2: 17, class: "tau" }),
    s("line", { x1: x(outcome.before), x2: x(outcome.after), y1: 9, y2: 9, class: "way" }),
    ...random,
    dot(outcome.before, "before", "before"),
    s(
      "line",
      { x1: x(outcome.predicted), x2: x(outcome.predicted), y1: 1, y2: 17, class: "predicted" },
      s("title", {}, `predicted ${number(outcome.predicted)}`),
    ),
    dot(outcome.after, "after", "measured"),
  );
}

/** @param {any} outcome */
function numbers(outcome) {
  const cell = (/** @type {string} */ name, /** @type {number | null} */ value, /** @type {string} */ says) =>
    h(
      "div",
      { "data-number": name, "data-value": value },
      h("span", { class: "faint" }, says),
      h("b", { class: "number" }, number(value)),
    );
  const others = /** @type {any[]} */ (outcome.controls ?? []);
  const mean = others.length && outcome.action !== "random"
    ? others.reduce((sum, c) => sum + c.after, 0) / others.length
    : null;
  const met = outcome.agrees === null || outcome.agrees === undefined ? null : outcome.agrees;
  return h(
    "div",
    { class: "numbers" },
    cell("before", outcome.before, "before"),
    cell("predicted", outcome.predicted, "predicted"),
    cell("after", outcome.after, "measured"),
    mean !== null && cell("control", mean, `random ×${others.length}`),
    h(
      "div",
      {},
      h("span", { class: "faint" }, "answer’s log p"),
      h("b", { class: "number" }, `${number(outcome.metric_before, 2)} → ${number(outcome.metric_after, 2)}`),
    ),
    met !== null && h("div", { class: met ? "met" : "missed" }, met ? "as predicted" : "not as predicted"),
  );
}

/** The likeliest next tokens, before and after. @param {any} outcome */
function answers(outcome) {
  const [before, after] = [outcome.answers_before, outcome.answers_after].map(
    (list) => /** @type {Answer[]} */ (list).slice(0, ANSWERS),
  );
  return h("div", { class: "answers" }, column("answers before", before), column("and after", after));
}

/** @param {string} title @param {Answer[]} list */
function column(title, list) {
  const rows = list.map(
    (a) =>
      h(
        "li",
        {},
        h("i", { style: { width: `${100 * a.probability}%` } }),
        h("span", { class: "text" }, short(visible(a.text), 12)),
        h("span", { class: "number" }, share(a.probability)),
      ),
  );
  return h("div", {}, h("span", { class: "faint" }, title), h("ol", {}, rows));
}
