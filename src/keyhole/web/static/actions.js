// What do the views' wishes come to? A new place, or a question to the server.
import { ask, job } from "./api.js";
import { baselineInto } from "./baseline.js";
import { firingOf, measure, placeOf, traceOf } from "./flow.js";
import { largestControl } from "./views/verification/causes.js";

/** @typedef {import("./lib/model.js").Model} Model */
/** @typedef {import("./url.js").Place} Place */
/** @typedef {import("./baseline.js").Baseline} Baseline */
/** @typedef {ReturnType<typeof import("./flow.js").follow>} Flow */
/** @typedef {(change: Partial<Place>, how?: { replace?: boolean }) => void} Go */

/**
 * Every wish by its type.
 * @param {Model} model @param {Flow} flow @param {Go} go
 * @returns {Record<string, (wish: any) => void>}
 */
export function wishes(model, flow, go) {
  const place = () => /** @type {Place} */ (model.get("place"));
  /** @type {Promise<boolean>} is the word that was written last an answer? */
  let written = Promise.resolve(true);
  return {
    "open-prompt": ({ prompt }) => (prompt === place().prompt ? flow.again() : go({ prompt, ...ELSEWHERE })),
    "open-model": (wish) => openModel(model, flow, go, wish),
    "open-head": ({ layer, head }) => go({ layer, head, ...strongest(model, layer, head), tab: "pattern" }),
    "open-firing": ({ layer, head, dest, src }) => go({ layer, head, dest, src, ...whyBeside(place()) }),
    "open-dest": ({ dest }) => go({ dest, src: attended(model, dest) }),
    measure: ({ measure }) => go({ measure }, { replace: true }),
    tab: ({ tab }) => go({ tab }),
    target: ({ ids, against }) => {
      flow.slots.drop("answer"); // what was said of a word that was written before
      go({ target: ids, against, traced: "" });
    },
    against: ({ ids }) => {
      flow.slots.drop("answer");
      go({ against: ids, traced: "" });
    },
    answer: (wish) => {
      written = answer(model, flow, go, wish);
    },
    "open-example": () => openExample(model, flow, go),
    trace: async () => {
      if (model.get("busy").answer && !(await written)) return; // a click left the field with a word in it
      trace(flow, place(), go, "answer");
    },
    "trace-from": () => trace(flow, place(), go, [place().layer, place().head, place().dest, place().src].join(".")),
    faithfulness: (wish) => measured(model, flow, go, "faithfulness", wish),
    effects: (wish) => measured(model, flow, go, "parts", wish),
    sufficient: (wish) => sufficient(model, flow, go, wish),
    cancel: ({ what }) => flow.slots.cancel(what),
    close: ({ what }) => flow.slots.drop(what),
    verify: ({ mode }) => verify(model, flow, "verification", { mode }),
    "verify-edge": ({ edge }) => {
      verify(model, flow, "edge", { mode: "exact", edge });
      model.set("measuring", edge);
    },
    remove: (wish) => intervene(model, wish),
    boost: (wish) => intervene(model, wish),
    random: (wish) => intervene(model, wish),
    forget: ({ id }) => model.set("effects", model.get("effects").filter((/** @type {any} */ e) => e.id !== id)),
    "explain-mlp": (wish) => explainMlp(flow, place(), wish),
    where: (wish) => whereElse(flow, place(), wish),
  };
}

/** @param {Place} place a circuit makes room for the reasons of a firing that is opened in it @returns {Partial<Place>} */
function whyBeside({ tab, own }) {
  return tab === "circuit" ? { own: { ...own, why: "open" } } : {};
}

/** What another prompt leaves behind. @type {Partial<Place>} */
const ELSEWHERE = { dest: null, src: null, target: [], against: [], traced: "" };

/**
 * A word that was written into a field becomes the answer, or what stands against it; nothing clears the field.
 * @param {Model} model @param {Flow} flow @param {Go} go @param {{ field: "target" | "against", text: string }} wish
 * @returns {Promise<boolean>} is it one?
 */
async function answer(model, flow, go, { field, text }) {
  flow.slots.drop("answer");
  if (!text) {
    go({ [field]: [], traced: "" });
    return true;
  }
  const body = { ...placeOf(model.get("place")), words: [text] };
  const found = await flow.slots.fill("answer", (signal) => ask("answers", body, signal));
  if (!found || found.refused) {
    if (found) model.set("answer", { ...found, field });
    return false;
  }
  const [{ id }] = found.tokens;
  const { target, against } = model.get("place");
  model.set("tokens", [...model.get("tokens"), ...found.tokens]);
  const others = (/** @type {number[]} */ ids) => ids.filter((one) => one !== id);
  if (field === "against" && id === (target[0] ?? model.get("run")?.predictions[0]?.id)) {
    model.set("answer", { field, refused: `${text} is the answer itself: name another token to hold against it.` });
    return false;
  }
  go(field === "target" ? { target: [id], against: others(against), traced: "" } : { against: [id], traced: "" });
  return true;
}

/** The question that the README begins with. @param {Model} model @param {Flow} flow @param {Go} go */
async function openExample(model, flow, go) {
  const { example: prompt, question: words } = model.get("hello");
  const own = placeOf({ ...model.get("place"), prompt, ids: [], chat: "" });
  const found = await flow.slots.fill("answer", (signal) => ask("answers", { ...own, words }, signal));
  if (!found || found.refused) return; // a model that does not know these words: the answers' fields say so
  const [target, against] = found.tokens.map((/** @type {any} */ one) => [one.id]);
  go({ ...(prompt === model.get("place").prompt ? {} : ELSEWHERE), prompt, chat: "", target, against, traced: "" });
}

/** @param {Model} model @param {Flow} flow @param {Go} go @param {{ model: string | null, prompt: string }} wish */
async function openModel(model, flow, go, wish) {
  model.set("wanted", wish.model);
  const loaded = await flow.slots.fill(
    "model",
    (signal) => job("load", { model: wish.model ?? "organism" }, { progress: flow.slots.progress("model"), signal }),
  );
  if (!loaded) return;
  go({ model: loaded.id, prompt: wish.prompt, chat: "", ...ELSEWHERE, layer: null, head: null });
  flow.start(); // the list of models is longer now
}

/** @param {Model} model @param {number} layer @param {number} head where it fires most above uniform */
function strongest(model, layer, head) {
  const found = model.get("heads")?.heads.find((/** @type {any} */ f) => f.layer === layer && f.head === head);
  return found ? { dest: found.dest, src: found.src } : { dest: null, src: null };
}

/** @param {Model} model @param {number} dest what the chosen head attends to most from here */
function attended(model, dest) {
  const pattern = model.get("pattern");
  if (!pattern) return dest;
  const row = pattern.weights.subarray(dest * pattern.size, dest * pattern.size + dest + 1);
  return row.indexOf(Math.max(...row));
}

/** @param {Flow} flow @param {Place} place @param {Go} go @param {string} traced */
function trace(flow, place, go, traced) {
  const again = place.traced === traced;
  go({ tab: "circuit", traced });
  if (again) flow.retrace();
}

/** @param {Model} model @param {Flow} flow @param {Go} go @param {"faithfulness" | "parts"} slot @param {{ baseline: Baseline }} wish */
function measured(model, flow, go, slot, { baseline }) {
  go({ own: { ...model.get("place").own, ...baselineInto(baseline), ...(slot === "parts" ? { effects: "1" } : {}) } });
  if (slot === "parts") flow.slots.drop("faithfulness"); // effects measure it, too
  measure(model, flow.slots, slot);
}

/**
 * The smallest circuit for the question at hand; of a stored circuit, for its own.
 * @param {Model} model @param {Flow} flow @param {Go} go @param {{ baseline: Baseline, signs: string }} wish
 */
function sufficient(model, flow, go, { baseline, signs }) {
  const place = model.get("place");
  const { target_ids: target, against_ids: against } = model.get("circuit")?.parameters ?? {};
  const answer = place.traced === "stored" ? { target, against } : {};
  const own = { ...place.own, ...baselineInto(baseline), signs, effects: "" };
  const before = JSON.stringify(traceOf(place));
  go({ tab: "circuit", traced: "sufficient", own, ...answer });
  if (JSON.stringify(traceOf(model.get("place"))) === before) flow.retrace();
}

/**
 * All removals of a circuit, or those of one edge.
 * @param {Model} model @param {Flow} flow @param {string} slot @param {{ mode: string, edge?: number }} how
 */
async function verify(model, flow, slot, how) {
  const body = { ...traceOf(model.get("place")), ...how };
  const found = await flow.slots.fill(
    slot,
    (signal) => job("verify", body, { progress: flow.slots.progress(slot), signal }),
  );
  /** @type {any[]} */
  const own = (found?.rows ?? []).filter((/** @type {any} */ row) => row.edge !== null);
  if (model.get("measuring") === how.edge) model.set("measuring", null);
  const told = own.map((row) => [row.edge, shown(row)]);
  if (own.length) model.set("verified", { ...model.get("verified"), ...Object.fromEntries(told) });
}

/** @param {any} row what an edge tells of its removal */
function shown(row) {
  const effects = { "effect on the answer": row.effect, "largest control’s effect": largestControl(row) };
  return { before: row.before, measured: row.after, predicted: row.predicted, ...effects };
}

let count = 0;

/** @param {Model} model @param {{ type: string, side: string, signal: number | null }} wish */
async function intervene(model, wish) {
  const place = model.get("place");
  const firing = model.get("firing");
  const mode = model.get("mode") ?? "exact";
  const effect = {
    id: ++count,
    type: wish.type,
    side: wish.side,
    signal: wish.signal,
    mode,
    outcome: null,
    error: null,
  };
  const keep = (/** @type {object} */ change) => {
    if (model.get("firing") !== firing) return; // the user has gone on
    const others = model.get("effects").map(
      (/** @type {any} */ e) => (e.id === effect.id ? { ...effect, ...change } : e),
    );
    model.set("effects", others);
  };
  const same = (/** @type {any} */ e) => e.side === wish.side && e.signal === wish.signal && e.type === wish.type;
  model.set("effects", [...model.get("effects").filter((/** @type {any} */ e) => !same(e)), effect]);
  const target = place.target.length ? place.target : null;
  const body = {
    ...firingOf(place),
    action: wish.type,
    side: wish.side,
    signals: wish.signal === null ? null : [wish.signal],
    mode,
    target,
  };
  try {
    keep({ outcome: await ask("intervene", body) });
  } catch (error) {
    keep({ error: error instanceof Error ? error.message : String(error) });
  }
}

/**
 * An MLP's causes, along what the firing reads of it, or, deeper down, along the answer.
 * @param {Flow} flow @param {Place} place
 * @param {{ layer: number, pos: number, side: string | null, signal: number | null }} wish
 */
function explainMlp(flow, place, wish) {
  const target = place.target.length ? { target: place.target } : {};
  const against = place.against.length ? { against: place.against } : {};
  const read = { ...firingOf(place), side: wish.side, signal: wish.signal, ...target };
  const answering = { ...placeOf(place), layer: wish.layer, pos: wish.pos, ...target, ...against };
  flow.slots.fill("mlp", (signal) => ask("mlp", wish.side === null ? answering : read, signal));
}

/** @param {Flow} flow @param {Place} place @param {{ side: string | null, signal: number | null }} wish */
function whereElse(flow, place, wish) {
  const own = place.model ? { model: place.model } : {};
  const what = wish.side === null
    ? { ...own, what: `${place.layer}.${place.head}` }
    : { ...firingOf(place), side: wish.side, signal: wish.signal };
  const progress = flow.slots.progress("where");
  flow.slots.fill("where", (signal) => job("where", what, { progress, signal }));
}
