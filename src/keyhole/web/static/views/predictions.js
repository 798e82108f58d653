// What does the model say next? The likeliest tokens, and any other that is written: one is the answer to trace, another
// can stand against it.
import { fill, h, keepingFocus } from "../lib/dom.js";
import { share } from "../lib/format.js";
import { short, visible } from "../lib/tokens.js";

/** @typedef {import("../lib/model.js").Model} Model */
/** @typedef {{ id: number, text: string, probability: number, logit: number }} Answer */
/** @typedef {"target" | "against"} Field */

/**
 * Keys: `run`, `tokens`, `answer`, `place`, `errors`. Sends `{type: "target", ids}`, `{type: "against", ids}`,
 * `{type: "answer", field, text}` and `{type: "trace"}`.
 * @param {{ model: Model, el: HTMLElement }} where
 */
function render({ model, el }) {
  const list = h("ol", { class: "predictions" });
  const fields = [field(model, "target", "Answer"), field(model, "against", "against")];
  const refused = h("p", { class: "error", role: "alert" });
  const form = h("div", { class: "answer-fields" }, fields.map((one) => one.el), refused);
  const go = h(
    "button",
    { type: "button", class: "go", "data-action": "trace", onclick: () => model.send({ type: "trace" }) },
  );
  el.append(form, go, list);
  const draw = () => {
    const run = model.get("run");
    keepingFocus(() => fill(list, run ? listed(model).map((one) => row(model, one)) : null));
    for (const part of [form, go]) part.hidden = !run;
    fill(go, run ? wanted(model) : null);
    for (const one of fields) one.show();
    const reason = refusal(model);
    fill(refused, reason);
    refused.hidden = !reason;
  };
  const keys = ["run", "tokens", "answer", "place", "errors"];
  for (const key of keys) model.on(`change:${key}`, draw);
  draw();
  return () => keys.forEach((key) => model.off(`change:${key}`, draw));
}

export default { render };

/** @param {Model} model the likeliest, and those that the user asked for besides @returns {Answer[]} */
function listed(model) {
  const { target, against } = model.get("place");
  const likely = /** @type {Answer[]} */ (model.get("run").predictions);
  const others = /** @type {Answer[]} */ (model.get("tokens") ?? []).filter(
    ({ id }, i, all) => [...target, ...against].includes(id) && all.findIndex((one) => one.id === id) === i,
  );
  return [...likely, ...others.filter(({ id }) => !likely.some((one) => one.id === id))];
}

/** @param {Model} model @param {number} id */
function textOf(model, id) {
  const known = listed(model).find((one) => one.id === id);
  return known ? visible(known.text) : `token ${id}`;
}

/** @param {Model} model @param {Field} name @param {string} title a field for any token */
function field(model, name, title) {
  const input = h("input", {
    type: "text",
    "aria-label": title,
    title: name === "target" ? "Any token; none: the likeliest. Enter takes it." : "The token that it is held against. Enter takes it.",
    spellcheck: "false",
    autocomplete: "off",
  });
  let put = "";
  const send = () => {
    if (input.value.trim() !== put) model.send({ type: "answer", field: name, text: input.value.trim() });
  };
  input.addEventListener("change", send); // Enter, or the field is left
  return {
    el: h("label", { class: "field" }, h("span", { class: "soft" }, title), input),
    /** What the address says stands there, unless something else is being written. */
    show: () => {
      const run = model.get("run");
      const ids = /** @type {number[]} */ (model.get("place")[name]);
      const said = model.get("answer");
      const now = run ? ids.map((id) => textOf(model, id)).join(", ") : "";
      input.placeholder =
        name === "against" ? "none" : run ? `${textOf(model, run.predictions[0]?.id)}` : "";
      if (now === put && run && (document.activeElement === input || said?.field === name || model.get("errors").answer)) return;
      put = now;
      input.value = now;
    },
  };
}

/** @param {Model} model why a word is no answer, with what to ask for instead */
function refusal(model) {
  const { answer, texts } = model.get("errors");
  const said = model.get("answer");
  if (answer ?? texts) return answer ?? texts;
  if (!said?.refused) return null;
  const { against } = model.get("place");
  const ask = () => model.send({ type: said.field, ids: [said.instead.id], against });
  return [
    said.refused,
    said.instead && " ",
    said.instead &&
      h("button", { type: "button", class: "small", "data-action": "instead", onclick: ask }, `Ask for ${visible(said.instead.text)}`),
  ];
}

/** @param {Model} model @param {Answer} p */
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
  const text = (/** @type {number} */ id) => short(textOf(model, id), 14);
  const target = place.target.length ? place.target : run.predictions.slice(0, 1).map((/** @type {any} */ p) => p.id);
  const against = place.against.length ? ` against ${place.against.map(text).join(", ")}` : "";
  return `Trace ${target.map(text).join(", ")}${against}`;
}
