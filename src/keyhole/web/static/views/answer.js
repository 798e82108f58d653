// What does the model write after the prompt? Its tokens as they come, each with its probability; a click asks why.
import { fill, h, keepingFocus } from "../lib/dom.js";
import { count, share } from "../lib/format.js";
import { progressBar } from "../lib/progress.js";
import { short, visible } from "../lib/tokens.js";
import { askedToken, belongs, follows, LENGTH } from "../writing.js";

/** @typedef {import("../lib/model.js").Model} Model */
/** @typedef {import("../writing.js").Written} Written */

/**
 * Keys: `written`, `writes`, `place`, `busy`, `errors`. Sends `{type: "continue"}`, `{type: "ask-token", index}`,
 * `{type: "close-answer"}`, `{type: "own", change}`, `{type: "cancel", what}`.
 * @param {{ model: Model, el: HTMLElement }} where
 */
function render({ model, el }) {
  const about = h("div", { class: "standing" });
  const chips = h("div", { class: "tokens", role: "group", "aria-label": "Tokens that the model wrote" });
  const box = h("section", { class: "written", "aria-label": "What the model wrote" }, chips, about);
  el.append(box);
  let [said, wrote] = ["", ""];
  const draw = () => {
    const [busy, error, place] = [model.get("busy").written, model.get("errors").written, model.get("place")];
    const found = /** @type {Written | null} */ (model.get("written"));
    const here = found ? belongs(place, found) : Boolean((busy || error) && follows(place, model.get("writes")));
    box.hidden = !here;
    if (!here) return;
    const tokens = found?.tokens ?? busy?.tokens ?? [];
    const mark = found ? askedToken(place, found) : null;
    const now = JSON.stringify([tokens.length, Boolean(found), mark, found?.text]);
    if (now !== wrote) keepingFocus(() => fill(chips, tokens.map((/** @type {any} */ one, /** @type {number} */ i) => token(model, one, i, mark))));
    if (now !== wrote) chips.scrollTop = busy ? chips.scrollHeight : 0; // what was written last; then all from its beginning
    wrote = now;
    const stands = JSON.stringify([Boolean(busy), error, found?.reason, place.own.length, place.own.temperature, place.own.seed]);
    if (stands !== said) keepingFocus(() => fill(about, busy ? progressBar(model, "written", "Writing") : standing(model, found, error)));
    said = stands;
  };
  const keys = ["written", "writes", "place", "busy", "errors"];
  for (const key of keys) model.on(`change:${key}`, draw);
  draw();
  return () => keys.forEach((key) => model.off(`change:${key}`, draw));
}

export default { render };

/** @param {Model} model @param {any} one @param {number} index @param {number | null} mark */
function token(model, one, index, mark) {
  const text = short(visible(one.text), 24);
  if (one.probability === undefined) return h("span", { class: "chip", "data-index": index }, text);
  return h(
    "button",
    {
      type: "button",
      class: `chip${index === mark ? " dest" : ""}`,
      "data-index": index,
      "data-probability": one.probability,
      "aria-current": index === mark ? "true" : null,
      title: `${JSON.stringify(one.text)}, probability ${share(one.probability)}. Click: why this token?`,
      style: { "--weight": `${(40 * (1 - one.probability)).toFixed(1)}%` },
      onclick: () => model.send({ type: "ask-token", index }),
    },
    text,
    h("span", { class: "number" }, share(one.probability)),
  );
}

/** @param {Model} model @param {Written | null} found @param {string | null} error */
function standing(model, found, error) {
  const wrong = error === "Cancelled." ? "This was cancelled before a token was written." : error;
  return [
    wrong ? h("span", { class: error === "Cancelled." ? "soft" : "error", role: "alert" }, wrong) : null,
    found && h("span", { class: "faint" }, `${ended(found)} Click a token to see why it was written.`),
    h("span", { class: "spring" }),
    h("span", { class: "how" }, writingFields(model)),
    h("button", { type: "button", class: "small", "data-action": "again", onclick: () => model.send({ type: "continue" }) }, "Write again"),
    h("button", { type: "button", class: "small", "aria-label": "Close the answer", "data-action": "close-answer", onclick: () => model.send({ type: "close-answer" }) }, "×"),
  ];
}

/** @param {{ stopped: string, reason: string, tokens: any[] }} answer why it ended, in words of this page */
export function ended({ stopped, reason, tokens }) {
  if (stopped === "length") return `It ended after ${count(tokens.length, "token")}, as many as were asked for.`;
  if (stopped === "interrupted") return `It was cancelled after ${count(tokens.length, "token")}.`;
  return `${reason[0].toUpperCase()}${reason.slice(1)}.`;
}

/** How answers are written: also beside edits. @param {Model} model */
export function writingFields(model) {
  const { own } = model.get("place");
  const one = (/** @type {string} */ name, /** @type {string} */ label, /** @type {string} */ usual, /** @type {object} */ how) => {
    const input = h("input", { type: "number", class: "few", name, "aria-label": label, value: own[name] || usual, ...how });
    input.addEventListener("change", () => {
      if (input.checkValidity()) model.send({ type: "own", change: { [name]: input.value === usual ? "" : input.value } });
    });
    return h("label", { class: "field" }, label, input);
  };
  return [
    one("length", "at most", String(LENGTH), { min: 1, max: 1000, title: "How many tokens are written at most" }),
    one("temperature", "temperature", "0", { min: 0, max: 10, step: 0.1, title: "0 takes the likeliest token, 1 draws as the model’s probabilities say" }),
    Number(own.temperature) > 0 && one("seed", "seed", "0", { min: 0, max: 2 ** 31 - 1, title: "Another seed draws other tokens" }),
  ];
}
