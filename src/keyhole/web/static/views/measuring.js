// How much of the answer does the circuit carry? One line; effects of its parts, and the smallest circuit that suffices.
import { fill, h } from "../lib/dom.js";
import { segments } from "../lib/controls.js";
import { count } from "../lib/format.js";
import { faithfulnessLine, measuredOf } from "../lib/measured.js";
import { progressBar, whenBusy } from "../lib/progress.js";

/** @typedef {import("../lib/model.js").Model} Model */
/** @typedef {import("../baseline.js").Baseline} Baseline */

/**
 * Keys: `run`, `circuit`, `measured`, `alike`, `place`, `busy`, `errors`. Sends `{type: "faithfulness", baseline}`,
 * `{type: "effects", baseline}`, `{type: "sufficient", baseline, signs}`, `{type: "cancel", what}`, `{type: "trace"}`.
 * @param {{ model: Model, el: HTMLElement }} where
 */
function render({ model, el }) {
  const line = h("div", { class: "measured-line", "aria-live": "polite" });
  const buttons = h("div", { class: "actions" });
  const choices = h("div", { class: "baseline", hidden: true });
  el.append(line, buttons, choices);
  const draft = drafted(model);
  const say = () => fill(line, standing(model, draft.get));
  const offer = () => fill(buttons, offers(model, draft, choose));
  const choose = () => {
    choices.hidden = !choices.hidden;
    offer();
  };
  const form = () => fill(choices, baselineForm(model, draft, () => (form(), offer())));
  const all = () => {
    el.hidden = !model.get("run") || Boolean(model.get("busy").circuit);
    for (const draw of [say, offer, form]) draw();
  };
  const moved = () => {
    if (draft.arrive()) all();
  };
  /** @type {[string, () => void][]} */
  const heard = [
    ...["run", "circuit", "measured", "alike", "errors"].map((key) => /** @type {[string, () => void]} */ ([`change:${key}`, all])),
    ["change:busy", whenBusy(model, ["circuit", "faithfulness", "parts"], all)],
    ["change:place", moved],
  ];
  for (const [event, does] of heard) model.on(event, does);
  all();
  return () => heard.forEach(([event, does]) => model.off(event, does));
}

export default { render };

/** @typedef {ReturnType<typeof drafted>} Draft */

/** What is chosen, before it is asked for; as the address has it at first. @param {Model} model */
function drafted(model) {
  const own = () => model.get("place").own;
  const key = () => JSON.stringify([model.get("place").prompt, ...["baseline", "like", "counterfactual", "signs"].map((name) => own()[name] ?? "")]);
  const taken = () => ({ kind: own().baseline ?? "", like: own().like ?? "", counterfactual: own().counterfactual ?? "", signs: own().signs ?? "" });
  let [last, values] = [key(), taken()];
  return {
    /** @returns {Baseline & { signs: string }} of a task's prompt its task's, else copies with other words */
    get: () => ({ ...values, kind: values.kind || (model.get("alike")?.task ? "task" : "words") }),
    set: (/** @type {Partial<typeof values>} */ change) => {
      values = { ...values, ...change };
    },
    arrive: () => {
      if (key() === last) return false;
      [last, values] = [key(), taken()];
      return true;
    },
  };
}

/** @param {Model} model @param {() => Baseline} baseline the line, how far it is, or what went wrong */
function standing(model, baseline) {
  const [doc, busy, errors] = [model.get("circuit"), model.get("busy"), model.get("errors")];
  if (!doc) return null;
  if (busy.parts) return progressBar(model, "parts", "Measuring effects");
  const wrong = (/** @type {string} */ text, /** @type {string} */ what) =>
    h("p", { class: text === "Cancelled." ? "soft" : "error", role: "alert" }, text === "Cancelled." ? `${what} was cancelled.` : text);
  const found = measuredOf(model, doc);
  const parts = errors.parts ? wrong(errors.parts, "The measurement of effects") : null;
  if (found) return [faithfulnessLine(found), parts];
  if (busy.faithfulness) return progressBar(model, "faithfulness", "Measuring faithfulness");
  if (!errors.faithfulness) return parts;
  const again = h(
    "button",
    { type: "button", "data-action": "faithfulness", onclick: () => model.send({ type: "faithfulness", baseline: baseline() }) },
    "Measure faithfulness",
  );
  return [wrong(errors.faithfulness, "The measurement of faithfulness"), errors.faithfulness === "Cancelled." ? again : null, parts];
}

/** @type {Record<string, string>} */
const BASELINES = { words: "other words", task: "prompts of its task", like: "my prompts", counterfactual: "a counterfactual prompt" };

/** @param {Model} model @param {Draft} draft @param {() => void} choose what can be asked for now */
function offers(model, draft, choose) {
  const doc = model.get("circuit");
  const sufficient = model.get("place").traced === "sufficient";
  const busy = model.get("busy").parts;
  const answered = doc?.parameters.target_ids?.length > 0;
  const measured = doc && measuredOf(model, doc)?.edges.length;
  const button = (/** @type {string} */ action, /** @type {string} */ text, /** @type {string} */ title, /** @type {() => void} */ act) =>
    h("button", { type: "button", "data-action": action, title, onclick: act }, text);
  const back = doc && sufficient && button("traced", "The traced circuit", "All that the trace follows", () => model.send({ type: "trace" }));
  const effects =
    answered && !measured && !busy &&
    button("effects", "Effects", "What the answer loses without each node and edge: a forward pass for each", () =>
      model.send({ type: "effects", baseline: draft.get() }));
  const search =
    (!doc || answered) &&
    button("sufficient", "Smallest circuit that suffices", "Searches for the fewest edges that keep 90% of the answer by themselves", () =>
      model.send({ type: "sufficient", baseline: draft.get(), signs: draft.get().signs }));
  const signs = h("input", { type: "checkbox", checked: draft.get().signs === "both", name: "signs" });
  signs.addEventListener("change", () => draft.set({ signs: signs.checked ? "both" : "" }));
  const both = search && h("label", { class: "soft", title: "Also edges that hold the answer back" }, signs, "both signs");
  const open = button("baseline", `Baseline: ${BASELINES[draft.get().kind]} ▾`, "What stands in for writers that are taken away", choose);
  return [effects, search, both, (effects || search) && open, back];
}

/** @param {Model} model @param {Draft} draft @param {() => void} again */
function baselineForm(model, draft, again) {
  const alike = model.get("alike");
  const { kind, like, counterfactual } = draft.get();
  const pick = (/** @type {string} */ next) => {
    draft.set({ kind: next });
    again();
  };
  const kinds = Object.entries(BASELINES).filter(([name]) => name !== "task" || alike?.task);
  const lines = h("textarea", {
    rows: 5,
    maxlength: 20000,
    spellcheck: "false",
    name: "like",
    "aria-label": "Prompts like this one, one per line",
    placeholder: "Prompts like this one, one per line: the same template with other names or values, at least eight",
  });
  lines.value = like;
  lines.addEventListener("input", () => draft.set({ like: lines.value }));
  const other = h("input", {
    type: "text",
    maxlength: 8000,
    spellcheck: "false",
    name: "counterfactual",
    value: counterfactual,
    "aria-label": "Counterfactual prompt",
    placeholder: "One prompt with as many tokens, and what decides changed",
  });
  other.addEventListener("input", () => draft.set({ counterfactual: other.value }));
  /** @type {Record<string, () => HTMLElement>} */
  const of = {
    words: () => h("p", { class: "soft" }, "The mean over copies of the prompt with other words that the model finds likely."),
    task: () =>
      h(
        "p",
        { class: "soft" },
        `The mean over ${count(alike?.prompts.length ?? 0, "prompt")} of the task ${alike?.task}, such as “${alike?.prompts[0] ?? ""}”.`,
      ),
    like: () => lines,
    counterfactual: () => other,
  };
  return [segments("Baseline", kinds, kind, pick), of[kind]?.() ?? null];
}
