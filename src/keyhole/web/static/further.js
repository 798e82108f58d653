// What do the further views ask for? Two circuits, stores, contrasts, a verification: each by its own parameters.
import { ask, job } from "./api.js";
import { traceOf, placeOf } from "./flow.js";
import { editsOf } from "./lib/edits.js";
import { filterOf } from "./own.js";
import { writingOf } from "./writing.js";

/** @typedef {import("./lib/model.js").Model} Model */
/** @typedef {import("./url.js").Place} Place */
/** @typedef {ReturnType<typeof import("./flow.js").slotsOf>} Slots */
/** @typedef {(change: Partial<Place>, how?: { replace?: boolean }) => void} Go */
/** @typedef {{ slot: string, kind: string, body: object, quick?: boolean }} Question */

export const ROWS = 50; // prompts of a store on one page
/** Answers of which a tab shows only those to its own questions. @type {Partial<Record<import("./url.js").Tab, string[]>>} */
const SLOTS = { compare: ["comparison"], contrasts: ["contrast"], edits: ["beside"] };

/**
 * `arrive(place)` asks for what is not there yet; `wishes` are those of the further views.
 * @param {Model} model @param {Slots} slots @param {Go} go
 */
export function further(model, slots, go) {
  /** @type {Map<string, string>} */
  const asked = new Map();
  const arrive = (/** @type {Place} */ place) => {
    const wanted = questions(place, model);
    for (const slot of SLOTS[place.tab] ?? []) {
      if (wanted.some((one) => one.slot === slot)) continue;
      asked.delete(slot); // what another question brought is no answer to this page
      slots.drop(slot);
    }
    for (const { slot, kind, body, quick } of wanted) {
      const spelled = JSON.stringify(body);
      if (asked.get(slot) === spelled) continue;
      asked.set(slot, spelled);
      slots.drop(slot);
      slots.fill(slot, (signal) =>
        quick ? ask(kind, body, signal) : job(kind, body, { progress: slots.progress(slot), signal }),
      );
    }
    const stands = ["busy", "errors"].some((where) => model.get(where).verification) || model.get("verification");
    if (place.own.verify && model.get("circuit") && (!stands || asked.get("verification") !== verified(place))) {
      asked.set("verification", verified(place));
      model.send({ type: "verify", mode: place.own.verify });
    }
  };
  model.on("change:circuit", () => arrive(model.get("place")));
  const own = (/** @type {Record<string, string>} */ change, /** @type {Partial<Place>} */ more = {}) =>
    go({ ...more, own: { ...model.get("place").own, ...change } });
  return { arrive, wishes: wishesOf(model, slots, { asked, own }) };
}

/**
 * @param {Model} model @param {Slots} slots
 * @param {{ asked: Map<string, string>, own: (change: Record<string, string>, more?: Partial<Place>) => void }} state
 * @returns {Record<string, (wish: any) => void>}
 */
function wishesOf(model, slots, { asked, own }) {
  const again = (/** @type {string} */ slot) => {
    if (model.get("busy")[slot]) return;
    asked.delete(slot);
  };
  return {
    own: ({ change }) => own(change),
    "trace-answer": () => own({}, { traced: "answer" }), // and the view stays
    "open-store": ({ store }) =>
      own(
        { store, index: "", page: "", where: "", k: "" },
        model.get("place").traced === "stored" ? { traced: "" } : {},
      ),
    ask: ({ slot, change }) => {
      again(slot);
      own(change);
    },
    "open-stored": async ({ store, row }) => {
      const prompt =
        row.prompt ??
        (await slots.fill("opened", (signal) => ask("circuit", { store, index: row.index }, signal)))?.outcome.prompt;
      if (prompt === undefined) return; // the reason is told where the store is
      const about = model.get("stores")?.stores.find((/** @type {any} */ one) => one.id === store);
      const name = about?.model === "organism" ? null : (about?.model ?? null);
      const there = { prompt, chat: "", model: name, dest: null, src: null, target: [], against: [] };
      own({ store, index: String(row.index) }, { ...there, tab: "circuit", traced: "stored" });
    },
    "compare-stored": ({ store, row }) =>
      own(
        { "b.store": store, "b.index": String(row.index), "b.prompt": "", "b.model": "", compared: "1", term: "" },
        { tab: "compare" },
      ),
  };
}

/** @param {Place} place @param {Model} model @returns {Question[]} what the shown view needs */
function questions(place, model) {
  const { own } = place;
  if (place.tab === "compare")
    return own.compared && place.prompt ? [{ slot: "comparison", kind: "compare", body: comparisonOf(place) }] : [];
  if (place.tab === "edits") {
    const edits = editsOf(own.edits);
    return edits.length && place.prompt ? [{ slot: "beside", kind: "beside", body: { ...writingOf(place), edits } }] : [];
  }
  if (place.tab === "contrasts")
    return own.studied ? [{ slot: "contrast", kind: "contrast", body: contrastOf(place) }] : [];
  return place.tab === "store" ? storeQuestions(place, model) : [];
}

/** @param {Place} place @param {Model} model @returns {Question[]} */
function storeQuestions(place, model) {
  const { own } = place;
  /** @type {Question[]} */
  const found = [{ slot: "stores", kind: "stores", body: {}, quick: true }];
  if (own.part === "names" && model.get("hello")?.names)
    return [...found, { slot: "naming", kind: "naming", body: {}, quick: true }];
  const store = storeOf(place, model);
  if (!store) return found;
  const where = conditions(filterOf(own.where));
  if (own.part === "families") found.push({ slot: "families", kind: "families", body: familiesOf(own, store, where) });
  else if (own.part === "sinks" && own.sinks)
    found.push({ slot: "sinks", kind: "sinks", body: { store, prompts: Number(own.sinks) || 24 } });
  else if (!own.part)
    found.push({
      slot: "outcomes",
      kind: "outcomes",
      body: { store, where, offset: ROWS * (Number(own.page) || 0), limit: ROWS },
      quick: true,
    });
  return found;
}

/** @param {Place} place @param {Model} model the chosen store, or the first */
export function storeOf(place, model) {
  const known = /** @type {{ id: string }[]} */ (model.get("hello")?.stores ?? []);
  return known.find((one) => one.id === place.own.store)?.id ?? known[0]?.id ?? null;
}

/** @param {Record<string, string>} filter texts as they stand in the address; the server wants `correct` as it is */
function conditions(filter) {
  return Object.fromEntries(
    Object.entries(filter).map(([name, value]) => [name, name === "correct" ? value === "true" : value]),
  );
}

/** Families are of right answers with circuits. @param {import("./own.js").Own} own @param {string} store @param {any} where */
function familiesOf(own, store, { status: _, correct: __, ...where }) {
  const k = Number(own.k);
  return { store, where, granularity: own.grain || "channels", role: own.role === "1", ...(k >= 2 ? { k } : {}) };
}

/** @param {Place} place @returns {{ a: any, b: any }} both sides: the page's own prompt, and the other one */
export function comparisonOf(place) {
  const { own } = place;
  const left = place.traced === "stored" ? traceOf(place) : traceOf({ ...place, traced: "answer" });
  const how = (/** @type {string} */ side) => ({
    ...(own[`${side}.method`] ? { method: own[`${side}.method`] } : {}),
    ...(own[`${side}.through`] ? { through: own[`${side}.through`] } : {}),
  });
  const a = place.traced === "stored" ? left : { ...left, ...how("a") };
  if (own["b.index"]) return { a, b: { store: own["b.store"], index: Number(own["b.index"]) } };
  const ids = own["b.prompt"] || own["b.model"] ? [] : place.ids;
  const other = { ...place, prompt: own["b.prompt"] || place.prompt, ids, model: own["b.model"] || place.model };
  const [target, against] = ["b.target", "b.against"].map((name) => (own[name] ? [own[name]] : null));
  const same = other.prompt === place.prompt && other.model === place.model && !target && !against;
  const aim = same ? {} : { target, against }; // ids of one prompt's answer are no answer to another
  return { a, b: { ...traceOf({ ...other, traced: "answer" }), ...aim, ...how("b") } };
}

/** @param {Place} place */
function contrastOf(place) {
  const { own } = place;
  const { model } = /** @type {{ model?: string }} */ (placeOf(place));
  const what = own.contrast || "lists";
  const number = (/** @type {string} */ name, /** @type {number} */ usual) => Number(own[name]) || usual;
  return {
    ...(model ? { model } : {}),
    what,
    ...(what === "boxes" && own.feature ? { feature: own.feature } : {}),
    prompts: number("samples", 60),
    tests: number("tests", 30),
  };
}

/** @param {Place} place */
function verified(place) {
  return JSON.stringify([traceOf(place), place.own.verify]);
}
