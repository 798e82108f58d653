// Which circuit is behind the answer? How far the tracing is; then the circuit, its story, and whether it holds.
import { fill, h } from "../lib/dom.js";
import { progressBar, whenBusy } from "../lib/progress.js";
import { setTheme } from "../lib/theme.js";
import circuit from "./circuit.js";
import measuring from "./measuring.js";
import { summary } from "./verified.js";

/** @typedef {import("../lib/model.js").Model} Model */

/**
 * Keys: `circuit`, `told`, `verification`, `busy`, `errors`, `place`, and those of the circuit's view. Sends
 * `{type: "trace"}`, `{type: "cancel", what}`, `{type: "verify", mode}`.
 * @param {{ model: Model, el: HTMLElement }} where
 */
function render({ model, el }) {
  const state = h("div", { class: "state", "aria-live": "polite" });
  const stage = h("div", { class: "circuit-host" });
  const below = h("div", { class: "holds" });
  const bar = h("div", { class: "measuring-bar" });
  el.append(state, bar, stage, below);
  const stop = measuring.render({ model, el: bar });
  /** @type {(() => void) | void} */
  let leave;
  const host = () => {
    leave?.();
    leave = undefined;
    fill(stage);
    stage.hidden = !model.get("circuit");
    if (model.get("circuit")) leave = circuit.render({ model, el: stage });
    dress();
  };
  const dress = () => setTheme(stage, model.get("theme") ?? "auto"); // the page's choice, not the view's own
  const say = () => fill(state, standing(model));
  const tell = () => fill(below, model.get("circuit") ? [story(model), verification(model)] : null);
  /** @type {[string, () => void][]} */
  const heard = [
    ["change:circuit", host],
    ["change:circuit", say],
    ["change:circuit", tell],
    ["change:told", tell],
    ["change:verification", tell],
    ["change:theme", dress],
    ["change:run", say],
    ["change:busy", whenBusy(model, ["circuit", "run"], say)],
    ["change:busy", whenBusy(model, ["told", "verification"], tell)],
    ["change:errors", say],
    ["change:errors", tell],
  ];
  for (const [event, does] of heard) model.on(event, does);
  for (const does of [host, say, tell]) does();
  return () => {
    for (const [event, does] of heard) model.off(event, does);
    leave?.();
    stop?.();
  };
}

export default { render };

/** @param {Model} model nothing yet, under way, or what went wrong */
function standing(model) {
  const [busy, error] = [model.get("busy").circuit, model.get("errors").circuit];
  const searches = model.get("place").traced === "sufficient";
  const again = h(
    "button",
    { type: "button", "data-action": "trace", onclick: () => model.send({ type: "trace" }) },
    error && !searches ? "Trace again" : "Trace the answer",
  );
  if (busy) return progressBar(model, "circuit", searches ? "Searching for the smallest circuit" : "Tracing");
  if (model.get("busy").run) return progressBar(model, "run", "Running the model");
  if (!model.get("run") && model.get("busy").hello) return null;
  if (!model.get("run")) return h("p", { class: "soft" }, "There is no run of this prompt, so there is nothing to trace.");
  if (error) return [
    h("p", { class: "error", role: "alert" }, error === "Cancelled." ? `The ${searches ? "search" : "tracing"} was cancelled.` : error),
    again,
  ];
  if (!model.get("circuit")) return [
    h(
      "p",
      { class: "soft" },
      "Nothing is traced yet. The circuit behind the answer takes a moment on small models, minutes on large ones.",
    ),
    again,
  ];
  return null;
}

/** @param {Model} model how far the story is, or why there is none; the story itself stands beside the drawing */
function story(model) {
  const [told, busy, error] = [model.get("told"), model.get("busy").told, model.get("errors").told];
  if (told || (!busy && !error)) return null;
  const body = error ? h("p", { class: "error", role: "alert" }, error) : progressBar(model, "told", "Making the story");
  return h("section", { class: "held", "aria-label": "Story" }, h("h4", {}, "How much the story tells"), body);
}

/** @param {Model} model */
function verification(model) {
  const [found, busy, error] = [
    model.get("verification"),
    model.get("busy").verification,
    model.get("errors").verification ?? model.get("errors").edge,
  ];
  const go = (/** @type {string} */ mode) =>
    h(
      "button",
      { type: "button", "data-verify": mode, onclick: () => model.send({ type: "verify", mode }) },
      `Verify (${mode})`,
    );
  const buttons = h("div", { class: "actions" }, go("exact"), go("chain"), go("global"));
  const body = busy
    ? progressBar(model, "verification", "Verifying")
    : error
    ? h("p", { class: "error", role: "alert" }, error)
    : found
    ? [
      ...summary(found),
      h("button", { type: "button", "data-tab-to": "verification", onclick: () => model.send({ type: "tab", tab: "verification" }) }, "Every removal"),
    ]
    : h(
      "p",
      { class: "soft" },
      "Removes every part of the circuit in the model’s own forward pass. Arithmetic: is it as predicted? Causes: does the answer need it, more than random controls?",
    );
  return h(
    "section",
    { class: "verification", "aria-label": "Verification" },
    h("h4", {}, "Does it hold?"),
    body,
    busy ? null : buttons,
    found?.note ? h("p", { class: "faint" }, found.note) : null,
  );
}
