// What do signals mean, as far as it was tested? Names with their outcome; the evidence of one beside them.
import { h } from "../../lib/dom.js";
import { standing } from "../../lib/controls.js";
import { count, number, share } from "../../lib/format.js";
import { sortable } from "../../lib/table.js";
import { example } from "./example.js";

/** @typedef {import("../../lib/model.js").Model} Model */

/** @param {Model} model */
export function names(model) {
  if (model.get("hello") && !model.get("hello").names)
    return h(
      "p",
      { class: "soft" },
      "There are no names here: make some with ",
      h("code", null, "keyhole name ioi.store --out names.json"),
      " and start ",
      h("code", null, "keyhole explore --names names.json"),
      ".",
    );
  const [found, waiting] = [model.get("naming"), standing(model, "naming", "Reading names")];
  if (!found) return waiting;
  const { own } = model.get("place");
  const chosen = found.signals.find((/** @type {any} */ one) => one.id === own.signal) ?? found.signals[0];
  return [
    h(
      "p",
      { class: "verdict-line" },
      `${count(found.signals.length, "signal")} of ${found.model}, named by ${found.explainer}. `,
      h("span", { class: "faint" }, found.landmarks),
    ),
    h(
      "div",
      { class: "names-view" },
      h("div", { class: "name-list" }, list(model, found, chosen), shares(found)),
      chosen ? evidence(chosen) : null,
    ),
  ];
}

/** @param {Model} model @param {any} found @param {any} chosen */
function list(model, found, chosen) {
  const test = (/** @type {any} */ one) =>
    one.tests.find((/** @type {any} */ t) => t.kind === "detection" && t.of === "top") ?? null;
  return sortable({
    label: "Names",
    rows: /** @type {any[]} */ (found.signals),
    most: 100,
    row: (row) => ({
      "data-signal": row.id,
      class: row === chosen ? "picked opens" : "opens",
      "aria-selected": row === chosen ? "true" : null,
      onclick: () => model.send({ type: "own", change: { signal: row.id } }),
    }),
    columns: [
      {
        key: "id",
        title: "signal",
        text: true,
        value: (row) => row.id,
        show: (row) => h("button", { type: "button", class: "plain" }, row.id),
      },
      {
        key: "name",
        title: "name",
        text: true,
        value: (row) => row.name.text,
        show: (row) =>
          h(
            "span",
            { class: row.name.text ? "named" : "faint", title: row.name.text },
            row.name.text ?? "no valid interpretation",
          ),
      },
      {
        key: "outcome",
        title: "outcome",
        text: true,
        value: (row) => row.outcome,
        show: (row) => outcome(row.outcome),
      },
      {
        key: "accuracy",
        title: "accuracy",
        value: (row) => test(row)?.accuracy ?? null,
        show: (row) => number(test(row)?.accuracy, 2),
      },
      {
        key: "p",
        title: "corrected p",
        value: (row) => test(row)?.corrected ?? null,
        show: (row) => number(test(row)?.corrected),
      },
      {
        key: "beyond",
        title: "random as good",
        why: "share of random directions whose names do as well",
        value: (row) => test(row)?.beyond ?? null,
        show: (row) => share(test(row)?.beyond),
      },
      { key: "prompts", title: "prompts", value: (row) => (row.about.prompts ? Number(row.about.prompts) : null) },
    ],
  });
}

/** @param {string} text as the library tells it */
function outcome(text) {
  return h("span", { class: `outcome ${text.replaceAll(" ", "-")}` }, text);
}

/** @param {any} found how many are right, with intervals, beside the controls */
function shares(found) {
  const line = (/** @type {any} */ one) =>
    h(
      "tr",
      null,
      h("td", null, one.group),
      h("td", { class: "soft" }, one.counted),
      h("td", null, interval(one)),
      h("td", { class: "number" }, one.text),
    );
  return h(
    "section",
    { class: "shares" },
    h("h4", null, "How many names are right?"),
    h("table", { "aria-label": "Shares" }, h("tbody", null, found.shares.map(line))),
  );
}

/** @param {{ share: number, low: number, high: number }} one */
function interval(one) {
  const at = (/** @type {number} */ x) => `${(100 * x).toFixed(1)}%`;
  return h(
    "span",
    { class: "interval" },
    h("i", { class: "range", style: { left: at(one.low), width: at(Math.max(0, one.high - one.low)) } }),
    h("i", { class: "mean", style: { left: at(one.share) } }),
  );
}

/** @param {any} one */
function evidence(one) {
  const about = Object.entries(one.about).filter(([key]) => key !== "coordinates");
  const tests = sortable({
    label: "Tests",
    rows: /** @type {any[]} */ (one.tests),
    columns: [
      { key: "kind", title: "test", text: true, value: (row) => `${row.kind}, ${row.of}` },
      { key: "right", title: "right", value: (row) => row.accuracy, show: (row) => `${row.right} of ${row.questions}` },
      { key: "p", title: "p", value: (row) => row.p, show: (row) => number(row.p) },
      { key: "corrected", title: "corrected", value: (row) => row.corrected, show: (row) => number(row.corrected) },
      { key: "beyond", title: "random as good", value: (row) => row.beyond ?? null, show: (row) => share(row.beyond) },
      {
        key: "outcome",
        title: "outcome",
        text: true,
        value: (row) => row.outcome,
        show: (row) => outcome(row.outcome),
      },
    ],
  });
  const claims = one.name.claims.map((/** @type {any} */ claim) =>
    h(
      "tr",
      null,
      h("td", { class: "named" }, claim.text),
      h("td", { class: "number" }, share(claim.examples)),
      h("td", { class: "number" }, claim.background === null ? "none" : share(claim.background)),
      h("td", { class: "number" }, claim.hard === null ? "none" : share(claim.hard)),
      h("td", { class: "number" }, number(claim.corrected)),
    ),
  );
  const head = ["claim", "examples", "at random", "hard", "corrected p"].map((text, i) =>
    h("th", { class: i ? "number" : null, scope: "col" }, text),
  );
  return h(
    "section",
    { class: "name-evidence", "aria-label": `Evidence for ${one.id}` },
    h("h3", null, one.id),
    h("p", { class: "the-name" }, one.name.text ?? "no valid interpretation", " ", outcome(one.outcome)),
    h("p", { class: "faint" }, about.map(([key, value]) => `${key} ${value}`).join(" · ")),
    tests,
    claims.length
      ? h("table", { "aria-label": "Claims" }, h("thead", null, h("tr", null, head)), h("tbody", null, claims))
      : null,
    h("h4", null, "Examples"),
    h(
      "p",
      { class: "soft small-text" },
      h("mark", { class: "dest" }, "dest"),
      " attends to ",
      h("mark", { class: "src" }, "src"),
      ". The name was made of some of these; it was tested on others.",
    ),
    h("div", { class: "examples" }, one.examples.map(example)),
  );
}
