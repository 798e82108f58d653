// What does the model say next? The likeliest tokens: one is the answer to trace, others can stand against it.
import { fill, h } from "../lib/dom.js";
import { share } from "../lib/format.js";
import { short, visible } from "../lib/tokens.js";

/** @typedef {import("../lib/model.js").Model} Model */

/**
 * Keys: `run`, `place`. Sends `{type: "target", ids}`, `{type: "against", ids}` and `{type: "trace"}`.
 * @param {{ model: Model, el: HTMLElement }} where
 */
function render({ model, el }) {
  const list = h("ol", { class: "predictions" });
  const go = h(
    "button",
    { type: "button", class: "go", "data-action": "trace", onclick: () => model.send({ type: "trace" }) },
  );
  el.append(list, go);
  const draw = () => {
    const run = model.get("run");
    fill(list, run ? run.predictions.map((/** @type {any} */ p) => row(model, p)) : null);
    go.hidden = !run;
    fill(go, run ? wanted(model) : null);
  };
  model.on("change:run", draw);
  model.on("change:place", draw);
  draw();
  return () => {
    model.off("change:run", draw);
    model.off("change:place", draw);
  };
}

export default { render };

/** @param {Model} model @param {{ id: number, text: string, probability: number, logit: number }} p */
function row(model, p) {
  const place = model.get("place");
  const first = model.get("run").predictions[0]?.id;
  const target = place.target.length ? place.target.includes(p.id) : p.id === first;
  const against = place.against.includes(p.id);
  const without = (/** @type {number[]} */ ids) => ids.filter((id) => id !== p.id);
  const aim = () => model.send({ type: "target", ids: [p.id], against: without(place.against) });
  const oppose = () => model.send({ type: "against", ids: against ? without(place.against) : [p.id] });
  return h(
    "li",
    { class: `${target ? "target" : ""}${against ? "against" : ""}`, "data-id": p.id },
    h(
      "button",
      {
        type: "button",
        class: "answer",
        "aria-pressed": String(target),
        title: `token ${p.id}: ${JSON.stringify(p.text)}, logit ${p.logit.toFixed(2)}. Click to make it the answer.`,
        onclick: aim,
      },
      h("i", { style: { width: `${100 * p.probability}%` } }),
      h("span", { class: "text" }, short(visible(p.text), 18)),
      h("span", { class: "number" }, share(p.probability)),
    ),
    h(
      "button",
      {
        type: "button",
        class: "vs",
        "aria-pressed": String(against),
        disabled: target,
        title: "Trace the difference to this one",
        onclick: oppose,
      },
      "vs",
    ),
  );
}

/** @param {Model} model */
function wanted(model) {
  const [run, place] = [model.get("run"), model.get("place")];
  const text = (/** @type {number} */ id) => {
    const known = run.predictions.find((/** @type {any} */ p) => p.id === id);
    return known ? short(visible(known.text), 14) : `token ${id}`;
  };
  const target = place.target.length ? place.target : run.predictions.slice(0, 1).map((/** @type {any} */ p) => p.id);
  const against = place.against.length ? ` against ${place.against.map(text).join(", ")}` : "";
  return `Trace ${target.map(text).join(", ")}${against}`;
}
