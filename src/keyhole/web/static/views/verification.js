// Does the whole circuit hold? Every removal, predicted against measured, with its random controls; a table beside.
import { fill, h } from "../lib/dom.js";
import { segments, standing, watch } from "../lib/controls.js";
import { count } from "../lib/format.js";
import { plot } from "./verification/plot.js";
import { removals } from "./verification/rows.js";

/** @typedef {import("../lib/model.js").Model} Model */

/** @type {[string, string][]} */
const MODES = [
  ["exact", "Exact"],
  ["local", "Local"],
  ["chain", "Chain"],
  ["global", "Global"],
];
/** @type {Record<string, string>} */
const SAYS = {
  exact:
    "Edits the traced row of the head’s scores, and what an MLP reads. Measured values must equal the predicted ones.",
  local: "Edits the head’s own query or keys; other heads keep theirs.",
  chain: "What an MLP without its causes changes in each of its readers, one at a time.",
  global: "Edits what writers add to the stream: everything downstream feels it, and nothing is promised.",
};

/**
 * Keys: `circuit`, `verification`, `place`, `busy`, `errors`. Sends `{type: "verify", mode}`, `{type: "cancel", what}`,
 * `{type: "trace-answer"}`, `{type: "ask", slot, change}`.
 * @param {{ model: Model, el: HTMLElement }} into
 */
function render({ model, el }) {
  const above = h("div", { class: "asking" });
  const below = h("div", { class: "verified-body" });
  fill(el, above, below);
  /** @type {any} */
  let drawn = null;
  const draw = () => {
    fill(above, asking(model));
    const ready = model.get("circuit") && !model.get("busy").verification; // of another mode, while this one is run
    const found = ready ? model.get("verification") : null;
    if (found && found === drawn) return;
    drawn = found;
    fill(below, found ? told(found, model) : null);
  };
  return watch(model, ["run", "circuit", "verification", "place", "busy", "errors"], draw);
}

export default { render };

/** @param {Model} model */
function asking(model) {
  const busy = model.get("busy");
  if (busy.circuit) return standing(model, "circuit", "Tracing");
  if (busy.run) return standing(model, "run", "Running the model");
  if (!model.get("run") && busy.hello) return null;
  if (!model.get("run")) return h("p", { class: "soft" }, "There is no run of this prompt, so there is nothing to verify.");
  if (!model.get("circuit")) {
    const trace = h(
      "button",
      {
        type: "button",
        class: "go",
        "data-action": "trace",
        onclick: () => model.send({ type: model.get("place").traced ? "trace" : "trace-answer" }),
      },
      "Trace the answer",
    );
    return [
      h(
        "p",
        { class: "soft" },
        model.get("errors").circuit ??
          "A circuit is traced first; then every part of it is removed in the model’s own forward pass.",
      ),
      trace,
    ];
  }
  const mode = model.get("place").own.verify || model.get("verification")?.mode || "exact";
  const pick = (/** @type {string} */ next) =>
    model.send({ type: "ask", slot: "verification", change: { verify: next } });
  const again = h(
    "button",
    { type: "button", class: "go", "data-action": "verify", onclick: () => pick(mode) },
    model.get("verification") ? "Verify again" : "Verify",
  );
  return [
    segments("How signals are removed", MODES, mode, pick),
    busy.verification ? null : again,
    h("span", { class: "soft says" }, SAYS[mode]),
    standing(model, "verification", "Verifying"),
  ];
}

/** @param {any} found @param {Model} model */
function told(found, model) {
  const circuit = model.get("circuit");
  const promised = found.rows.filter((/** @type {any} */ row) => row.agrees !== null);
  const met = promised.filter((/** @type {any} */ row) => row.agrees).length;
  const verdict = promised.length
    ? `${met} of ${count(promised.length, "removal")} did what was predicted.`
    : `${count(found.rows.length, "removal")}; with this mode nothing is promised.`;
  const good = promised.length === 0 ? null : met === promised.length ? "met" : "missed";
  const picture = plot(found, circuit);
  const table = removals(found, circuit, (row) => picture.light(row));
  return [
    h(
      "div",
      { class: "verdict" },
      h("h3", { class: good, "data-met": met, "data-of": promised.length }, verdict),
      h("pre", { class: "lines" }, found.text),
      found.note ? h("p", { class: "soft" }, found.note) : null,
    ),
    h("div", { class: "plot-and-table" }, picture.el, h("div", { class: "tall" }, table)),
  ];
}
