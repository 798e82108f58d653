// What would it have said? The edits that were collected, and both answers: tokens, heads that looked elsewhere, controls.
import { fill, h } from "../lib/dom.js";
import { standing, watch } from "../lib/controls.js";
import { editLabel, editsOf, factorChoice } from "../lib/edits.js";
import { number, share } from "../lib/format.js";
import { sortable } from "../lib/table.js";
import { short, visible } from "../lib/tokens.js";
import { ended, writingFields } from "./answer.js";

/** @typedef {import("../lib/model.js").Model} Model */
/** @typedef {{ id: number, text: string, probability: number }} Token */
/** @typedef {{ text: string, tokens: Token[], stopped: string, reason: string }} Said */
/** @typedef {{ text: string, before: number, after: number, instead: string, kl: number }} Row */
/**
 * @typedef {object} Beside
 * @property {Said} original @property {Said} edited @property {boolean} changed @property {Row[]} tokens
 * @property {{ head: [number, number], distance: number, edited: boolean }[]} heads
 * @property {{ name: string, text: string, before: number, after: number }[]} controls
 */

/**
 * Keys: `beside`, `run`, `place`, `busy`, `errors`. Sends `{type: "edits", edits}`, `{type: "edit", part}`,
 * `{type: "ask", slot, change}`, `{type: "own", change}`, `{type: "open-head", layer, head}`, `{type: "cancel", what}`.
 * @param {{ model: Model, el: HTMLElement }} into
 */
function render({ model, el }) {
  const list = h("div", { class: "edit-list" });
  const typed = typedEdit(model);
  const how = h("div", { class: "asking" });
  const state = h("div", { "aria-live": "polite" });
  const body = h("div", { class: "both-answers" });
  fill(el, list, typed.el, how, state, body);
  /** @type {any} */
  let drawn = null;
  let fields = "";
  const draw = () => {
    const { own } = model.get("place");
    const edits = editsOf(own.edits);
    fill(list, collected(model, edits));
    typed.show();
    const now = JSON.stringify([edits.length > 0, own.length, own.temperature, own.seed]);
    if (now !== fields) fill(how, edits.length ? writingFields(model) : null);
    fields = now;
    const error = model.get("errors").beside;
    fill(state, error === "Cancelled." ? cancelled(model) : standing(model, "beside", "Writing both answers"));
    const found = model.get("beside");
    if (found === drawn) return;
    drawn = found;
    fill(body, found ? both(model, found) : null);
  };
  return watch(model, ["beside", "run", "place", "busy", "errors"], draw);
}

export default { render };

/** @param {Model} model @param {import("../lib/edits.js").Edit[]} edits */
function collected(model, edits) {
  const keep = (/** @type {typeof edits} */ list) => model.send({ type: "edits", edits: list });
  if (!edits.length)
    return h(
      "p",
      { class: "soft" },
      "What would the model say without a signal, a head or an MLP? Pin one in the circuit and choose removed, halved or doubled; or type an edit. Several can be collected here.",
    );
  const tokens = model.get("run")?.tokens ?? [];
  const rows = edits.map((edit, i) => {
    const label = editLabel(edit, tokens);
    return h(
      "li",
      { "data-edit": i },
      factorChoice(edit, (factor) => keep(edits.map((one, at) => (at === i ? { ...one, factor } : one)))),
      h("span", { class: "text" }, label),
      h("button", { type: "button", class: "small", "aria-label": `Leave out: ${label}`, onclick: () => keep(edits.filter((_, at) => at !== i)) }, "×"),
    );
  });
  const all = h("button", { type: "button", class: "small", "data-action": "no-edits", onclick: () => keep([]) }, "Leave out all");
  return [h("h4", null, "What is edited", edits.length > 1 ? all : null), h("ul", { class: "edits" }, rows)];
}

/** @param {Model} model an edit in words of the command line */
function typedEdit(model) {
  const input = h("input", { type: "text", "aria-label": "An edit", placeholder: "3.6:0,2*0.5", spellcheck: "false", autocomplete: "off" });
  const refused = h("p", { class: "error", role: "alert" });
  const add = (/** @type {Event} */ event) => {
    event.preventDefault();
    if (input.value.trim()) model.send({ type: "edit", part: { typed: input.value.trim() } });
  };
  const hint = "Channels of a head times a factor: 3.6:0,2*0.5. A head: 3.6*0. An MLP: mlp2*0.";
  const el = h("form", { class: "line-of typed", title: hint, onsubmit: add }, input, h("button", { type: "submit" }, "Add"), h("span", { class: "faint" }, hint), refused);
  let last = "";
  const show = () => {
    const editing = model.get("editing") ?? "";
    const error = editing.startsWith('{"typed"') ? model.get("errors").edit : null;
    fill(refused, error);
    refused.hidden = !error;
    const { edits = "" } = model.get("place").own;
    if (edits !== last && !error) input.value = "";
    last = edits;
  };
  return { el, show };
}

/** @param {Model} model */
function cancelled(model) {
  const again = () => model.send({ type: "ask", slot: "beside", change: {} });
  return h("p", { class: "soft line-of" }, "This was cancelled.", h("button", { type: "button", "data-action": "beside", onclick: again }, "What would it say?"));
}

/** @param {Model} model @param {Beside} found */
function both(model, found) {
  const [one, other] = [found.original, found.edited];
  let same = 0; // tokens with which both begin
  while (same < one.tokens.length && one.tokens[same].id === other.tokens[same]?.id) same++;
  const verdict = found.changed ? "The edits change the answer." : "The answer is the same with the edits.";
  return [
    h("p", { class: `verdict-line${found.changed ? " changed" : ""}` }, verdict),
    h("div", { class: "two" }, said("Without edits", "original", one, same), said("With edits", "edited", other, same)),
    h("div", { class: "two tables" }, tokenTable(found), h("div", null, headTable(model, found), controlTable(found))),
  ];
}

/** @param {string} title @param {string} which @param {Said} answer @param {number} same */
function said(title, which, answer, same) {
  const chip = (/** @type {Token} */ one, /** @type {number} */ i) =>
    h(
      "span",
      { class: `chip${i >= same ? " differs" : ""}`, "data-index": i, title: `${JSON.stringify(one.text)}, probability ${share(one.probability)}` },
      short(visible(one.text), 24),
      h("span", { class: "number" }, share(one.probability)),
    );
  return h(
    "section",
    { class: "said-answer", "data-answer": which, "aria-label": title },
    h("h4", null, title),
    h("p", { class: "whole" }, answer.text.trim() || "(nothing)"),
    h("div", { class: "tokens" }, answer.tokens.map(chip)),
    h("p", { class: "faint" }, ended(answer)),
  );
}

/** @param {Beside} found */
function tokenTable({ tokens }) {
  /** @type {import("../lib/table.js").Column<Row & { at: number }>[]} */
  const columns = [
    { key: "at", title: "at", value: (row) => row.at },
    { key: "token", title: "token", text: true, value: (row) => row.text, show: (row) => short(visible(row.text), 20) },
    { key: "before", title: "without", why: "Its probability", value: (row) => row.before, show: (row) => share(row.before) },
    { key: "after", title: "with", why: "Its probability with the edits, after the same tokens", value: (row) => row.after, show: (row) => share(row.after) },
    { key: "instead", title: "likeliest with edits", text: true, value: (row) => row.instead, show: (row) => short(visible(row.instead), 20) },
    { key: "kl", title: "KL", why: "Of the edited distribution from the plain one, in nats", value: (row) => row.kl, show: (row) => number(row.kl) },
  ];
  const rows = tokens.map((row, at) => ({ ...row, at }));
  const row = (/** @type {Row} */ { text, instead }) => ({ class: text === instead ? null : "differs" });
  return h("section", null, h("h4", null, "Token by token, after the same tokens"), sortable({ label: "Token by token", columns, rows, row, most: 20 }));
}

/** @param {Model} model @param {Beside} found */
function headTable(model, { heads }) {
  /** @type {import("../lib/table.js").Column<Beside["heads"][number]>[]} */
  const columns = [
    {
      key: "head",
      title: "head",
      text: true,
      value: (row) => row.head.join("."),
      show: ({ head: [layer, head] }) =>
        h("button", { type: "button", class: "plain", onclick: () => model.send({ type: "open-head", layer, head }) }, `${layer}.${head}`),
    },
    { key: "distance", title: "attention that moved", value: (row) => row.distance, show: (row) => share(row.distance) },
    { key: "edited", title: "edited", text: true, value: (row) => (row.edited ? "yes" : "") },
  ];
  const none = h("p", { class: "soft" }, "No head looks elsewhere by more than 0.1%.");
  return h("section", null, h("h4", null, "Heads that looked elsewhere"), heads.length ? sortable({ label: "Heads that looked elsewhere", columns, rows: heads }) : none);
}

/** @param {Beside} found */
function controlTable({ controls }) {
  /** @type {import("../lib/table.js").Column<Beside["controls"][number]>[]} */
  const columns = [
    { key: "name", title: "control", text: true, value: (row) => row.name },
    { key: "before", title: "first token without", value: (row) => row.before, show: (row) => share(row.before) },
    { key: "after", title: "with", value: (row) => row.after, show: (row) => share(row.after) },
    { key: "text", title: "answer", text: true, value: (row) => row.text, show: (row) => h("span", { title: row.text }, row.text.trim()) },
  ];
  const none = h("p", { class: "soft" }, "Edits of MLPs and embeddings alone have no control.");
  return h("section", null, h("h4", null, "Controls: edits of the same size"), controls.length ? sortable({ label: "Controls", columns, rows: controls }) : none);
}
