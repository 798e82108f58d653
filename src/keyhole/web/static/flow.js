// What must be asked for, now that the user is here? An answer is a key of the page's model; the newest question wins.
import { ask, Cancelled, hello, job } from "./api.js";
import { baselineOf } from "./baseline.js";
import { decode } from "./views/pattern/frame.js";

/** @typedef {import("./lib/model.js").Model} Model */
/** @typedef {import("./url.js").Place} Place */
/** @typedef {(place: Place, signal: AbortSignal) => Promise<any>} Question */

const ANSWERS = ["model", "run", "heads", "pattern", "firing", "mlp", "where", "answer", "texts", "alike"];
const OF_CIRCUIT = [
  ...["circuit", "told", "verification", "edge", "story", "names", "verified", "measuring"],
  ...["measured", "faithfulness", "parts"],
];
const TRACING = { tau: "dynamic", first_token: "keep" };

/**
 * Follows the user: `arrive(place)` asks for all that is not there yet.
 * @param {Model} model
 * @param {(change: Partial<Place>) => void} settle puts into the address what the page chose for the user
 */
export function follow(model, settle) {
  const slots = slotsOf(model);
  const asked = { run: "", pattern: "", firing: "", circuit: "", answer: "", texts: "" };

  const prompt = async (/** @type {Place} */ place) => {
    for (const key of [...ANSWERS, ...OF_CIRCUIT]) slots.drop(key);
    for (const key of ["effects", "tokens"]) model.set(key, []);
    const work = (/** @type {string} */ kind) =>
      slots.fill(kind, (signal) => job(kind, placeOf(place), { progress: slots.progress(kind), signal }));
    const run = await work("run"); // it may have to load the model first, and says so
    if (!run) return;
    aim(model.get("place"));
    const heads = await work("heads");
    if (heads) settle(chosen(model.get("place"), run, heads));
    if (heads) slots.fill("alike", (signal) => ask("like", placeOf(place), signal)); // is it a task's prompt?
  };
  const aim = (/** @type {Place} */ place) => {
    if (answerOf(place) !== asked.answer) {
      asked.answer = answerOf(place);
      slots.drop("mlp"); // what was measured of another answer
      model.set("effects", []);
    }
    answers(place);
    const circuit = place.traced ? JSON.stringify(traceOf(place)) : "";
    if (circuit === asked.circuit) return;
    asked.circuit = circuit;
    trace(model, slots, place);
  };
  const answers = async (/** @type {Place} */ place) => {
    const known = (/** @type {number} */ id) =>
      [...model.get("run").predictions, ...model.get("tokens")].some((/** @type {any} */ one) => one.id === id);
    const words = [...place.target, ...place.against].filter((id) => !known(id));
    if (!words.length || String(words) === asked.texts) return;
    asked.texts = String(words);
    const found = await slots.fill("texts", (signal) => ask("answers", { ...placeOf(place), words }, signal));
    if (found) model.set("tokens", [...model.get("tokens"), ...found.tokens]);
  };
  const arrive = async (/** @type {Place} */ place) => {
    const key = JSON.stringify(placeOf(place));
    if (key !== asked.run) {
      Object.assign(asked, { run: key, pattern: "", firing: "", circuit: "", answer: answerOf(place), texts: "" });
      await prompt(place);
      return;
    }
    const { layer, head, dest, src } = place;
    if (!model.get("run")) return;
    aim(place);
    if (layer === null || head === null) return;
    const pattern = `${layer}.${head}`;
    if (pattern !== asked.pattern) {
      asked.pattern = pattern;
      slots.drop("pattern"); // another head's attention must not stand under this one's name
      slots.fill("pattern", async (signal) => decode(await ask("pattern", { ...placeOf(place), layer, head }, signal)));
    }
    const firing = `${layer}.${head}.${dest}.${src}`;
    if (firing !== asked.firing && dest !== null && src !== null) {
      asked.firing = firing;
      for (const slot of ["mlp", "where"]) slots.drop(slot);
      model.set("effects", []);
      slots.fill("firing", (signal) => ask("firing", firingOf(place), signal));
    }
  };
  return {
    arrive,
    slots,
    start: () => slots.fill("hello", () => hello()),
    again: () => {
      asked.run = "";
      return arrive(model.get("place"));
    },
    retrace: () => {
      asked.circuit = "";
      return arrive(model.get("place"));
    },
  };
}

/**
 * Questions under way, one per key: a new one ends the old; errors and progress stand in `errors` and `busy`.
 * @param {Model} model
 */
export function slotsOf(model) {
  /** @type {Map<string, AbortController>} */
  const open = new Map();
  const note = (/** @type {"errors" | "busy"} */ where, /** @type {string} */ key, /** @type {any} */ value) => {
    if ((model.get(where)[key] ?? null) !== value) model.set(where, { ...model.get(where), [key]: value });
  };
  const stop = (/** @type {string} */ key) => {
    open.get(key)?.abort();
    open.delete(key);
  };
  const drop = (/** @type {string} */ key) => {
    stop(key);
    note("errors", key, null);
    note("busy", key, null);
    model.set(key, null);
  };
  const fill = async (/** @type {string} */ key, /** @type {(signal: AbortSignal) => Promise<any>} */ question) => {
    stop(key);
    const mine = new AbortController();
    open.set(key, mine);
    note("errors", key, null);
    note("busy", key, {});
    try {
      const answer = await question(mine.signal);
      if (open.get(key) !== mine) return null;
      model.set(key, answer);
      return answer;
    } catch (error) {
      if (open.get(key) !== mine) return null;
      model.set(key, null);
      note(
        "errors",
        key,
        error instanceof Cancelled ? "Cancelled." : error instanceof Error ? error.message : String(error),
      );
      return null;
    } finally {
      if (open.get(key) === mine) {
        open.delete(key);
        note("busy", key, null);
      }
    }
  };
  const cancel = (/** @type {string} */ key) => open.get(key)?.abort(); // whoever asked hears of it
  return {
    fill,
    cancel,
    drop,
    progress: (/** @type {string} */ key) => (/** @type {any} */ event) => note("busy", key, event),
  };
}

/** @param {Pick<Place, "model" | "prompt" | "ids" | "chat">} place the model and the prompt: tokens, messages or a text */
export function placeOf({ model, prompt, ids, chat }) {
  const given = ids.length ? ids : chat ? [{ role: "user", content: prompt }] : prompt;
  return { ...(model ? { model } : {}), prompt: given };
}

/** @param {Place} place which answer, against which */
function answerOf(place) {
  return JSON.stringify([place.target, place.against]);
}

/** @param {Place} place */
export function firingOf(place) {
  const { layer, head, dest, src } = place;
  return { ...placeOf(place), layer, head, dest, src };
}

/** @param {Place} place what identifies the circuit that was asked for */
export function traceOf(place) {
  if (place.traced === "stored") return { store: place.own.store ?? "", index: Number(place.own.index) };
  const [layer, head, dest, src] = place.traced.split(".").map(Number);
  const ids = (/** @type {number[]} */ list) => (list.length ? list : null);
  const answer = { target: ids(place.target), against: ids(place.against) };
  if (place.traced === "sufficient") {
    const sufficient = { ...baselineOf(place.own), both_signs: place.own.signs === "both" };
    return { ...placeOf(place), ...answer, sufficient };
  }
  const asked = place.traced === "answer" ? answer : { from: { layer, head, dest, src } };
  return { ...placeOf(place), ...TRACING, ...asked };
}

/** @param {Model} model @param {ReturnType<typeof slotsOf>} slots @param {Place} place */
async function trace(model, slots, place) {
  for (const key of OF_CIRCUIT) slots.drop(key);
  if (!place.traced) return;
  const found = await slots.fill("circuit", async (signal) => {
    const answer = await job("trace", traceOf(place), { progress: slots.progress("circuit"), signal });
    model.set("names", answer.names ?? {});
    return answer.circuit;
  });
  if (!found) return;
  if (found.nodes.some((/** @type {any} */ node) => typeof node.influence === "number")) {
    const told = await slots.fill(
      "told",
      (signal) => job("story", traceOf(place), { progress: slots.progress("told"), signal }),
    );
    if (told) model.set("story", told.lines);
  }
  const known = found.measured?.faithfulness || !found.parameters.target_ids?.length; // without an answer, nothing is kept
  if (model.get("circuit") === found && !known) measure(model, slots, place.own.effects ? "parts" : "faithfulness");
}

/** @type {Record<string, string>} which work fills which slot */
const MEASURES = { faithfulness: "faithfulness", parts: "effects" };

/**
 * Measures how much of the answer the circuit carries, or all effects of its parts, against the address's baseline.
 * @param {Model} model @param {ReturnType<typeof slotsOf>} slots @param {"faithfulness" | "parts"} slot
 */
export async function measure(model, slots, slot) {
  const place = model.get("place");
  const body = { ...traceOf(place), ...(place.traced === "sufficient" ? {} : baselineOf(place.own)) };
  const found = await slots.fill(slot, (signal) => job(MEASURES[slot], body, { progress: slots.progress(slot), signal }));
  if (found) model.set("measured", found);
}

/**
 * The head and the cell to begin with where the address names none that exists: what moves most towards the answer;
 * where that is not known, or of a head that is named, what the last token attends to most above uniform.
 * @param {Place} place @param {any} run @param {any} heads
 * @returns {Partial<Place>}
 */
export function chosen(place, run, heads) {
  const same = (/** @type {{ layer: number, head: number }} */ f) => f.layer === place.layer && f.head === place.head;
  const known = heads.heads.some(same);
  const { dest, src } = place;
  if (known && dest !== null && src !== null && src <= dest && dest < run.tokens.length) return {};
  if (!known && heads.first) return heads.first;
  const own = heads.firings.filter((/** @type {any} */ f) => !known || same(f));
  const last = own.filter((/** @type {any} */ f) => f.dest === run.end);
  const away = last.find((/** @type {any} */ f) => f.src !== f.dest);
  const best = away ?? last[0] ?? own[0] ?? (known ? heads.heads.find(same) : null);
  return best ? { layer: best.layer, head: best.head, dest: best.dest, src: best.src } : {};
}
