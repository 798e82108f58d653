// Does the whole circuit hold? Arithmetic: predicted against measured. Causes: effects on the answer, with their controls.
import { fill, h } from "../lib/dom.js";
import { segments, standing, watch } from "../lib/controls.js";
import { count } from "../lib/format.js";
import { kinds, said } from "./verification/causes.js";
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

const EFFECTS =
  "Effect: what the answer loses without a part; below 0, the part holds it back. A part matters if its effect is larger than each of its own controls’, than those of 95 % of all controls of its kind, and than 0.01 logits.";

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

/** @param {any} found @param {Model} model two parts, each under its name */
function told(found, model) {
  const circuit = model.get("circuit");
  const { agree, of, largest, tolerance } = found.arithmetic;
  const outcome = of
    ? `${agree} of ${count(of, "measured value")} equal the predicted ones.`
    : `${count(found.rows.length, "measured value")}; with this mode nothing is promised.`;
  const good = of === 0 ? null : agree === of ? "met" : "missed";
  const differences = of ? `Largest difference ${largest.toExponential(0)}, tolerance ${tolerance.toExponential(0)}.` : null;
  const picture = plot(found, circuit);
  const table = removals(found, circuit, (row) => picture.light(row));
  const arithmetic = h(
    "section",
    { class: "verdict", "aria-label": "Arithmetic" },
    h("h2", null, "Arithmetic: is it as predicted?"),
    h("h3", { class: good, "data-met": agree, "data-of": of }, outcome),
    h("p", { class: "soft" }, differences),
    found.note ? h("p", { class: "soft" }, found.note) : null,
    picture.el,
  );
  const causes = h(
    "section",
    { class: "verdict causes", "aria-label": "Causes" },
    h("h2", null, "Causes: does the answer need it?"),
    h("h3", { "data-causes": found.causes.order.length }, said(found)),
    h("p", { class: "soft" }, EFFECTS),
    kinds(found),
    h("div", { class: "tall" }, table),
  );
  return h("div", { class: "plot-and-table" }, arithmetic, causes);
}
